"""What numbers may depend on besides the configuration: versions and the processor."""

from __future__ import annotations

import os
import platform
import sys
from pathlib import Path

import torch

from coterie.version import VERSION


def machine() -> dict[str, str]:
    """The versions at work, the processor, and which of its instructions PyTorch uses.

    >>> sorted(machine())
    ['capability', 'coterie', 'processor', 'python', 'torch']
    """
    return {
        "coterie": VERSION,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "processor": _processor(),
        "capability": torch.backends.cpu.get_cpu_capability(),
    }


def memory_bytes() -> int:
    """The memory of this machine; without a limit where it is not known.

    >>> memory_bytes() > 1 << 20
    True
    """
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return sys.maxsize


def _processor() -> str:
    described = Path("/proc/cpuinfo")
    lines = described.read_text(encoding="utf-8").splitlines() if described.is_file() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or sys.platform
