"""`python -m tests.crash`: kill processes at chosen file operations, carry on, and compare with the undisturbed.

Each scenario is first run undisturbed, which counts its file operations. Then it is run again and again, each time in
a fork of this process that is killed at one of them, with and without the loss of what was not flushed; somebody
carries on as they are told to, and what comes of it must be the same. `--kills` are shared out evenly; what is to be
killed where follows from `--seed`.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.crash.forks import KILLED, in_a_fork
from tests.crash.kills import Killer

os.environ["OMP_NUM_THREADS"] = "1"


def main() -> int:
    """Read the command line and do as it says; 1 if anything went wrong."""
    parser = argparse.ArgumentParser(prog="python -m tests.crash", description=__doc__)
    parser.add_argument("--kills", type=int, default=500, help="how many kills in all")
    parser.add_argument("--seed", type=int, default=0, help="chooses the operations")
    parser.add_argument("--only", action="append", help="a scenario; may be repeated (all)")
    given = parser.parse_args()

    import torch
    from tests.crash.scenarios import SCENARIOS

    torch.set_num_threads(1)
    chosen = [one for one in SCENARIOS if not given.only or one.name in given.only]
    if not chosen:
        raise SystemExit(f"--only: the scenarios are {', '.join(one.name for one in SCENARIOS)}")
    wrong = done = 0
    for number, scenario in enumerate(chosen):
        share = given.kills * (number + 1) // len(chosen) - given.kills * number // len(chosen)
        with tempfile.TemporaryDirectory(prefix="coterie-crash-") as folder:
            os.environ["XDG_CACHE_HOME"] = folder
            stage = Stage(scenario, Path(folder))
            for at, power in stage.chosen(share, given.seed):
                done += 1
                why = stage.kill(at, power)
                where = f"{scenario.name}: operation {at} of {len(stage.operations)} ({stage.operations[at - 1]})"
                if why:
                    wrong += 1
                    print(f"\n{where}{', power cut' if power else ''}: {why}")
                print(f"\r{done} of {given.kills} kills, {wrong} went wrong; {where:100.100}", end="", flush=True)
    print(f"\n{done} kills, {wrong} went wrong")
    return 1 if wrong else 0


class Stage:
    """A scenario, what comes of it undisturbed, and its file operations."""

    def __init__(self, scenario: Any, folder: Path) -> None:
        self.scenario, self.folder = scenario, folder
        self.place = folder / "stage"  # always the same: files name each other by whole paths
        self.place.mkdir()
        self.must(in_a_fork(lambda: scenario.before(self.place)), "before")
        shutil.copytree(self.place, folder / "before")
        noted = folder / "operations"
        self.must(in_a_fork(lambda: self._counted(noted)), "undisturbed")
        self.operations = noted.read_text(encoding="utf-8").splitlines()
        self.undisturbed = scenario.outcome(self.place)

    def must(self, why: str, what: str) -> None:
        """Without a kill everything goes well."""
        if why:
            raise SystemExit(f"{self.scenario.name}, {what}: {why}")

    def _counted(self, noted: Path) -> None:
        killer = Killer(self.place)
        killer.install()
        self.scenario.act(self.place)
        noted.write_text("\n".join(killer.seen), encoding="utf-8")

    def chosen(self, count: int, seed: int) -> list[tuple[int, bool]]:
        """Which operations are killed at: all of them if that is not too many, with the power cut and without."""
        everything = [(at, power) for at in range(1, len(self.operations) + 1) for power in (False, True)]
        stream = random.Random(f"{seed} {self.scenario.name}")
        rounds = [stream.sample(everything, len(everything)) for _ in range(count // len(everything) + 1)]
        return [one for order in rounds for one in order][:count]

    def kill(self, at: int, power: bool) -> str:
        """Kill at an operation and carry on; what went wrong, if anything."""
        shutil.rmtree(self.place)
        for left in self.folder.glob(".stage*"):
            left.unlink()
        shutil.copytree(self.folder / "before", self.place)
        ended = in_a_fork(lambda: self._killed(at, power))
        if ended != KILLED:
            return f"it was not killed: {ended or 'it came to its end'}"
        if why := in_a_fork(lambda: self.scenario.recover(self.place)):
            return why
        found = self.scenario.outcome(self.place)
        if found == self.undisturbed:
            return ""
        names = sorted(found.keys() | self.undisturbed.keys())
        return f"differs: {[name for name in names if found.get(name) != self.undisturbed.get(name)]}"

    def _killed(self, at: int, power: bool) -> None:
        Killer(self.place, at, power).install()
        self.scenario.act(self.place)


if __name__ == "__main__":
    sys.exit(main())
