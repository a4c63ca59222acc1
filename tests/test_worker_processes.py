"""Processes that train keep the memory that they have freed."""

from __future__ import annotations

import os
import platform
import subprocess
import sys

import pytest

# Blocks like the activations of a batch, made and freed again and again: how many pages the system had to give anew.
CHURN = """
import resource
import torch
from coterie.processes import use_one_core

def churn(turns):
    for _ in range(turns):
        blocks = [torch.ones(1 << 20) for _ in range(4)]
        del blocks

use_one_core()
churn(5)
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
churn(15)
print(torch.get_num_threads(), resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""
# The same after a run, whose settings stay.
RUN = """
import coterie as ct
import resource
import torch

ct.Experiment("fedavg", data="digits", partition=ct.Iid(clients=2), rounds=1, engine="serial").run()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(15):
    blocks = [torch.ones(1 << 20) for _ in range(4)]
    del blocks
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""
ASKED = "from coterie.processes import keep_freed_memory; print(keep_freed_memory())"

pytestmark = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc's allocator is told anything")


def said(program: str, **settings: str) -> str:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "GLIBC_"))}
    command = [sys.executable, "-c", program]
    return subprocess.run(command, env=environment | settings, capture_output=True, text=True, check=True).stdout


def test_a_process_that_trains_with_one_core_asks_for_its_memory_once() -> None:
    threads, pages = map(int, said(CHURN).split())
    assert threads == 1
    assert pages < 2000, "fifteen turns with 16 MB each are 60,000 pages of 4 kB if they are given back"


def test_so_does_the_process_of_a_run() -> None:
    assert int(said(RUN)) < 8000, "fifteen turns with 16 MB each are 60,000 pages; the first are asked for"


def test_whoever_has_settings_of_his_own_keeps_them() -> None:
    assert said(ASKED).strip() == "True"
    assert said(ASKED, MALLOC_MMAP_THRESHOLD_="65536").strip() == "False"
