"""A first look: three ways for twenty clients to learn, compared on the same data in under two minutes.

Run it with `make demo`, or `python examples/demo.py`.
"""

from __future__ import annotations

import sys
import textwrap
from pathlib import Path

from coterie.cli import main
from coterie.cli.commands import next_free

HOW_TO_READ = """
How to read this. Twenty clients share out 1,797 handwritten digits so that each sees only a few of the ten digits.
A row is a method: under 'local' every client trains alone; under 'fedavg' all clients train one common model;
under 'fedper' they share the lower layers and each keeps a classifier of its own. 'received' is the model as a
client downloads it, 'trained' the same model after the client has trained it on its own data; each is tested on
the client's own unseen digits, and 'mean' gives every client the same weight. 'best' is the best round, 'last' the
last one (best is chosen with the test data, so trust last). 'worst decile' is how the worst-off tenth of the clients
fare. A single model for everybody (fedavg, received) cannot suit clients that differ this much; personal models can.
What others add to training alone is the difference between a method's row and the row 'local'; 'bytes' is its price.
"""


def demo() -> int:
    """Compare the methods and explain the table; gives the exit code."""
    out = next_free(Path("runs"), "demo")
    arguments = "local fedavg fedper --seeds 0 1 2 --data digits --partition dirichlet --alpha 0.1 --clients 20"
    # One thread: a model this small is slower with two.
    arguments += " --model mlp --rounds 20 --epochs 5 --lr 0.05 --threads 1"
    print(f"coterie compare {arguments} --out {out}\n", flush=True)
    code = main(["compare", *arguments.split(), "--out", str(out)])
    if code == 0:
        print("\n" + textwrap.fill(" ".join(HOW_TO_READ.split()), width=100))
        print(f"\nLook into a run with: coterie show {out / 'fedper-s0'}")
    return code


if __name__ == "__main__":
    sys.exit(demo())
