"""`python -m tools.chaos`: run a chaos day, or carry on one that was interrupted, and write its table."""

from __future__ import annotations

import argparse
import signal
import sys
import time
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(REPOSITORY / "tests"))


def main() -> int:
    """Run; 0 if no rule was broken."""
    from tools.chaos.day import Day
    from tools.chaos.faults import FAMILIES, drawn
    from tools.chaos.place import Place
    from tools.chaos.table import write_table

    parser = argparse.ArgumentParser(prog="python -m tools.chaos", description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--faults", type=int, default=300)
    parser.add_argument("--only", help="families of faults, separated by commas", default=",".join(FAMILIES))
    parser.add_argument("--folder", type=Path, default=Path("build/chaos"), help="is gone on with if it was begun")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="stop in time; the same command carries on")
    parser.add_argument("--table", type=Path, help="write the table to FOLDER/chaos.md and chaos.json, and run nothing")
    given = parser.parse_args()
    folder = given.folder.resolve()
    if given.table:
        write_table(folder, given.table)
        return 0
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    place = Place(folder, given.rounds)
    plan = drawn(given.seed, given.rounds, given.faults, tuple(given.only.split(",")))
    begin = time.monotonic()

    def say(words: str) -> None:
        print(f"{time.strftime('%H:%M:%S')} +{time.monotonic() - begin:7.1f} {words}", flush=True)

    try:
        day = Day(place, plan, say, given.seed)
        ended = day.run(begin + 60 * given.minutes)
    finally:
        place.close()
    wrong = [event["words"] for event in day.events if event["event"] == "violation"]
    say(f"{'the day is over' if ended else 'the time is over: the same command carries on'}; {len(wrong)} violations")
    if ended and not wrong:
        place.unmount()
    return int(bool(wrong) or not ended)


if __name__ == "__main__":
    sys.exit(main())
