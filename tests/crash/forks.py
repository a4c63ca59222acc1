"""Doing something in a process of its own, a fork of this one, which may well be killed in it."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
import traceback
from collections.abc import Callable

PATIENCE = 300.0
"""Seconds after which a process counts as hanging."""
KILLED = "killed"


def in_a_fork(act: Callable[[], object]) -> str:
    """Do something in a process of its own: empty if that went well, else why not."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        try:
            act()
        except BaseException:
            os.write(writing, traceback.format_exc()[-3000:].encode())
            os._exit(1)
        os._exit(0)
    os.close(writing)
    end = time.monotonic() + PATIENCE
    while (found := os.waitpid(child, os.WNOHANG))[0] == 0:
        if time.monotonic() > end:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            os.close(reading)
            return f"no end after {PATIENCE:g} seconds"
        time.sleep(0.005)
    with os.fdopen(reading, "rb") as pipe:
        said = pipe.read().decode(errors="replace")
    if os.WIFSIGNALED(found[1]):
        return KILLED if os.WTERMSIG(found[1]) == signal.SIGKILL else f"signal {os.WTERMSIG(found[1])}"
    return said or ("" if os.WEXITSTATUS(found[1]) == 0 else f"exit code {os.WEXITSTATUS(found[1])}")


def in_a_clean_fork(act: Callable[..., object], *args: object) -> str:
    """The same, of a process that has never trained: where this one has trained on a device, its forks cannot train."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["coterie.runs.resume", act.__module__])
    child = context.Process(target=act, args=args)
    child.start()
    child.join(PATIENCE)
    if child.exitcode is None:
        child.kill()
        child.join()
        return f"no end after {PATIENCE:g} seconds"
    if child.exitcode < 0:
        return KILLED if -child.exitcode == signal.SIGKILL else f"signal {-child.exitcode}"
    return f"exit code {child.exitcode}" if child.exitcode else ""
