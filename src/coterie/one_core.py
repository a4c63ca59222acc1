"""How a process trains as one of many: with a single thread, and with memory that it keeps, once it has it."""

from __future__ import annotations

import ctypes
import os
import sys

import torch

# glibc's names for its settings (malloc.h), and what they are set to: bytes. Blocks up to the first come from the heap
# (it takes no larger value), and so much that is free at the heap's end is not given back.
MMAP_THRESHOLD, TRIM_THRESHOLD = -3, -1
LARGEST_BLOCK, KEPT = 32 << 20, 256 << 20
# Whoever has set anything of this knows better.
OWN_SETTINGS = ("MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_", "GLIBC_TUNABLES")


def use_one_core() -> None:
    """Train here as one of many processes."""
    torch.set_num_threads(1)
    keep_freed_memory()


def keep_freed_memory() -> bool:
    """Keep what is freed instead of giving it back to the system; whether that could be arranged.

    By default glibc gives large blocks back at once, and the system fills new ones with zeros, page by page: testing
    `lenet5` in a fresh process took 1.4 times as long for that. A process that has ever freed something large does
    better by itself. Other allocators and systems are left alone.
    """
    if not sys.platform.startswith("linux") or any(name in os.environ for name in OWN_SETTINGS):
        return False
    try:
        set_option = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):  # another C library
        return False
    set_option.argtypes, set_option.restype = [ctypes.c_int, ctypes.c_int], ctypes.c_int
    return bool(set_option(MMAP_THRESHOLD, LARGEST_BLOCK)) and bool(set_option(TRIM_THRESHOLD, KEPT))
