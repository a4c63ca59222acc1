"""Runs for tests of reports, and the content of a page."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from coterie.methods import METHODS
from coterie.partition import Pathological
from coterie.runs.experiment import Experiment
from coterie.runs.tensors import SEAL, sealed

CLIENTS, ROUNDS = 6, 4


def small_run(folder: Path, method: str = "fedrema", seed: int = 0, **options: Any) -> Path:
    """A run on digits of a second or less, kept in a folder; `set` are the method's options."""
    own = options.pop("set", {"delta": 0.0} if method == "fedrema" else {})
    settings = {"partition": Pathological(clients=CLIENTS), "rounds": ROUNDS, "epochs": 1, "lr": 0.05, **options}
    Experiment(METHODS[method](**own), seed=seed, threads=1, **settings).run(folder)
    return folder


def with_classes(run: Path, counts: list[list[int]], names: list[str]) -> None:
    """Let a run say that its clients hold other classes than they do."""
    path = run / "about.json"
    about = json.loads(path.read_text())
    about["clients"] = [{**about["clients"][0], "classes": row} for row in counts]
    about["data"]["class_names"] = names
    path.write_text(json.dumps(sealed({key: value for key, value in about.items() if key != SEAL})))


def content_of(page: str) -> Any:
    """The data that a page holds, as a browser would find them."""
    (block,) = re.findall(r'<script type="application/json" id="content">(.*?)</script>', page, re.DOTALL)
    return json.loads(block)


def lines_of(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "rounds.jsonl").read_text().splitlines()]
