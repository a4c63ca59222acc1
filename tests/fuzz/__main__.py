"""`python -m tests.fuzz`: many cases of all targets, in processes of their own.

Every batch has a seed, which `runs/fuzz/batches.jsonl` records with what came of it; `--only TARGET --seed N --cases
M` repeats one. A finding is shrunk, and its minimal case written to `tests/fuzz/kept/`, where the ordinary tests try it
ever after. A batch whose process dies or hangs leaves the case that it was at.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO, Any

os.environ["OMP_NUM_THREADS"] = "1"

HERE = Path(__file__).parent
BATCH = 1000
SILENCE = 900.0
"""Seconds without a word after which a batch's process is given up: it hangs where no signal reaches it."""


def main() -> int:
    """Read the command line and do as it says; 1 if anything was found."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--cases", type=int, default=100_000, help="how many cases in all")
    parser.add_argument("--hours", type=float, default=1.0, help="begin no batch after so many hours")
    parser.add_argument("--seed", type=int, default=None, help="the first batch's seed (the clock's)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="batches at the same time")
    parser.add_argument("--only", action="append", help="a target; may be repeated (all)")
    parser.add_argument("--record", type=Path, default=Path("runs/fuzz"), help="where batches are recorded")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.worker is not None:
        return work(given.worker, given.seed, given.cases, given.record)
    first = int(time.time()) if given.seed is None else given.seed
    return Session(first, given.cases, given.hours, given.jobs, given.only or [], given.record).run()


def work(name: str, seed: int, cases: int, current: Path) -> int:
    """A batch in this process: says on stdout how far it is, and keeps in a file the case that it is at."""
    from tests.fuzz.everything import TARGETS
    from tests.fuzz.searching import paced, search

    spoken, progress = sys.stdout, paced(lambda done: print(json.dumps({"done": done}), file=spoken, flush=True))

    def tell(case: Any) -> None:
        if case is not None:
            current.write_text(json.dumps(case))
        progress(case)

    batch = search(TARGETS[name], seed, cases, tell)
    print(json.dumps({"cases": batch.cases, "findings": batch.findings}), file=spoken, flush=True)
    return 0


class Session:
    """All batches of a call."""

    def __init__(self, seed: int, cases: int, hours: float, jobs: int, only: list[str], record: Path) -> None:
        from tests.fuzz.everything import TARGETS

        self.seed, self.cases, self.jobs, self.record = seed, cases, jobs, record
        self.targets = {name: target for name, target in TARGETS.items() if not only or name in only}
        if not self.targets:
            raise SystemExit(f"--only: the targets are {', '.join(TARGETS)}")
        self.end = time.monotonic() + hours * 3600
        self.known: dict[str, int] = {}
        self.done = 0
        self.lock = threading.Lock()

    def run(self) -> int:
        """Run the batches and say what was found."""
        self.record.mkdir(parents=True, exist_ok=True)
        print(
            f"{self.cases:,} cases of {len(self.targets)} targets, from seed {self.seed}, {self.jobs} at the same time"
        )
        with ThreadPoolExecutor(self.jobs) as pool:
            for _ in pool.map(lambda one: self.batch(*one), self.batches()):
                pass
        short = "" if self.done >= self.cases else " (the time was up)"
        print(f"\n{self.done:,} cases{short}; {len(self.known)} findings; batches: {self.record / 'batches.jsonl'}")
        for kind, number in self.known.items():
            print(f"  {number:5} × {kind}")
        return 1 if self.known else 0

    def batches(self) -> Iterator[tuple[str, int, int]]:
        """Target, seed and cases of each batch: targets in turn, as often as their shares say."""
        whole, number = sum(target.share for target in self.targets.values()), self.seed
        wanted = {name: round(self.cases * target.share / whole) for name, target in self.targets.items()}
        left = dict(wanted)
        while any(left.values()):
            # Whoever has most of its share before it comes next, so that an hour that ends early has seen all.
            name = max(left, key=lambda one: left[one] / self.targets[one].share)
            size = min(BATCH, left[name], max(1, wanted[name] // 4))
            left[name] -= size
            yield name, number, size
            number += 1000

    def batch(self, name: str, seed: int, cases: int) -> None:
        """A batch in a process of its own."""
        if time.monotonic() > self.end:
            return
        begin = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="coterie-fuzz-batch-") as folder:
            current = Path(folder) / "current.json"
            environment = {**os.environ, "XDG_CACHE_HOME": folder, "TMPDIR": folder}
            environment.pop("COTERIE_CACHE", None)
            words = ["--worker", name, "--seed", str(seed), "--cases", str(cases), "--record", str(current)]
            with (
                (Path(folder) / "stderr").open("w+") as complaints,
                subprocess.Popen(
                    [sys.executable, "-m", "tests.fuzz", *words],
                    stdout=subprocess.PIPE,
                    stderr=complaints,
                    text=True,
                    env=environment,
                ) as process,
            ):
                assert process.stdout is not None
                told = self.follow(process, process.stdout)
                process.wait()
                complaints.seek(0)
                said = complaints.read()[-2000:]
            if "findings" not in told:
                case = json.loads(current.read_text()) if current.is_file() else {}
                why = f"the process ended with {process.returncode}"
                told = {"cases": told.get("done", 0), "findings": []}
                told["findings"].append({"target": name, "seed": seed, "found": why, "words": said, "case": case})
        self.keep(told["findings"])
        line = {"target": name, "seed": seed, "cases": told["cases"], "seconds": round(time.monotonic() - begin, 1)}
        line["found"] = [one["found"] for one in told["findings"]]
        with self.lock:
            with (self.record / "batches.jsonl").open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
            print(
                f"\r{self.done:,} of {self.cases:,} cases; {len(self.known)} findings; {name}      ", end="", flush=True
            )

    def follow(self, process: subprocess.Popen[str], lines: IO[str]) -> dict[str, Any]:
        """The last thing that a batch says, once it has ended; one that falls silent is killed."""
        told: dict[str, Any] = {}
        counted = 0
        watch = threading.Timer(SILENCE, process.kill)
        watch.start()
        for line in lines:
            watch.cancel()
            watch = threading.Timer(SILENCE, process.kill)
            watch.start()
            told = json.loads(line)
            now = int(told.get("cases", told.get("done", counted)))
            with self.lock:
                self.done += now - counted
                print(f"\r{self.done:,} of {self.cases:,} cases; {len(self.known)} findings      ", end="", flush=True)
            counted = now
        watch.cancel()
        return told

    def keep(self, findings: list[dict[str, Any]]) -> None:
        """Write down the minimal case of what was not found before."""
        for finding in findings:
            kind = f"{finding['target']}: {finding['found']}"
            with self.lock:
                new = kind not in self.known
                self.known[kind] = self.known.get(kind, 0) + 1
            if not new:
                continue
            print(
                f"\n{kind} (seed {finding['seed']})\n  {finding['words'][:300]}\n  {json.dumps(finding['case'])[:300]}"
            )
            text = json.dumps(finding, indent=1, ensure_ascii=True) + "\n"
            digest = hashlib.sha256(json.dumps(finding["case"], sort_keys=True).encode()).hexdigest()[:8]
            stem = re.sub(r"\W+", "-", finding["target"])
            (HERE / "kept" / f"{stem}-{digest}.json").write_text(text, encoding="ascii")


if __name__ == "__main__":
    sys.exit(main())
