"""A first look: eight ways for twenty clients to learn, compared on the same data in under two minutes.

Run it with `make demo`, or `python examples/demo.py`.
"""

from __future__ import annotations

import sys
import textwrap
from pathlib import Path

from coterie.cli import main
from coterie.cli.run import next_free
from coterie.errors import CoterieError
from coterie.report.figures import require_plots

METHODS = "local fedavg fedper pfedcs fedrema fedcac pfedsim fedtc"
# A client holds two of the ten digits, and three others hold the same two. A quarter of its samples is for
# training, the rest for testing: with so few, it pays to learn from others.
DATA = "--data digits --partition pathological --clients 20 --classes-per-client 2 --test 0.75"
# One thread: a model this small is slower with two.
TRAINING = "--model mlp --rounds 20 --epochs 5 --lr 0.05 --engine stacked --threads 1"
# The methods' papers train for hundreds of rounds; these options suit twenty.
OPTIONS = "--set fedcac.beta=10 --set fedtc.lr_classifier=0.05"

# Which round to draw. PFedCS and FedCAC learn from ever fewer clients: at the end from the nearest, and from none.
PICTURES = {"pfedcs": 5, "fedrema": 20, "fedcac": 3, "pfedsim": 20, "fedtc": 20}

HOW_TO_READ = """
How to read the table. Twenty clients share out 1,797 handwritten digits; each sees only two of the ten digits, and
three others see the same two. A row is a method: under 'local' every client trains alone; under 'fedavg' all clients
train one common model; under 'fedper' they share the lower layers and each keeps a classifier of its own; the other
five let clients learn from those that resemble them (fedtc: let a common classifier teach the lower layers).
'received' is the model as a client downloads it, 'trained' the same model after the client has trained it on its
own data; each is tested on the client's own unseen digits, and 'mean' gives every client the same weight. 'best' is
the best round, 'last' the last one (best is chosen with the test data, so trust last). 'worst decile' is how the
worst-off tenth of the clients fare. A single model for everybody (fedavg, received) cannot suit clients that differ
this much. What others add to training alone is the difference between a method's row and the row 'local'; 'bytes'
is its price. The options are set for this small demo: it shows how the methods work, not which is best.

How to read the pictures. A row is a client that learns, a column one it learns from; the darker, the more. Beside it
stand the digits that the client holds. No method is told them; the picture alone puts clients with the same digits
next to each other. Dark blocks along the diagonal therefore mean that a method found out by itself who
resembles whom, as pfedcs, fedrema and fedcac do; pfedsim prefers similar clients but listens to all. Under fedtc all
rows are alike: everybody learns the same mean, in which larger clients weigh more.
"""


def demo() -> int:
    """Compare the methods, draw who learned from whom, and explain both; gives the exit code."""
    try:
        require_plots()
    except CoterieError as problem:
        print(f"coterie: error: {problem}", file=sys.stderr)
        return 2
    out = next_free(Path("runs"), "demo")
    command = f"compare {METHODS} --seeds 0 1 2 {DATA} {TRAINING} {OPTIONS} --out {out}"
    code = _run(command)
    for method, round in PICTURES.items():
        if code == 0:
            code = _run(f"picture {out}/{method}-s0 --round {round} --out {out}/pictures/{method}.png")
    if code == 0:
        for paragraph in HOW_TO_READ.strip().split("\n\n"):
            print("\n" + textwrap.fill(" ".join(paragraph.split()), width=100))
        print(f"\nThe pictures are in {out / 'pictures'}. Look into a run with: coterie show {out / 'fedrema-s0'}")
    return code


def _run(command: str) -> int:
    print(f"\ncoterie {command}", flush=True)
    return main(command.split())


if __name__ == "__main__":
    sys.exit(demo())
