"""Tune by validation samples alone: one method over a grid, then two methods alike before they are compared."""

import sys

from coterie.cli import main

SAME = "--clients 10 --alpha 0.1 --rounds 8 --threads 1 --jobs 1"


def coterie(line):
    """Run a command as a terminal would, and leave if it fails."""
    print(f"$ coterie {line}", flush=True)
    if code := main(line.split()):
        sys.exit(code)


if __name__ == "__main__":  # runs may be spread over processes
    coterie(f"sweep fedprox --grid lr=0.01,0.1 --grid mu=0.01,1 {SAME} --out tuning")
    print()
    coterie(f"compare local fedper --tune lr=0.01,0.1 {SAME} --columns received.mean.last,trained.mean.last")
