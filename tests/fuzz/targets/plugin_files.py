"""Plug-in files: whatever stands in one, it is refused in a line, or what it makes ends in a run that is whole."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hypothesis import strategies as st
from tests.fuzz.bases import damaged, damages, odd_texts
from tests.fuzz.targets.directories import SMALL
from tests.fuzz.targets.settings import TABLE, write_table
from tests.fuzz.trial import Case, Target, called, must, must_be_one_line, strict_json

from coterie.runs.run import open_run

FILE = "mine.py"
HEADS = (
    "", "", "", "", "def (:", "import nowhere_at_all", "from coterie import Nothing",
    "raise ValueError('odd\\n words')", "raise SystemExit(3)", "1 / 0", "assert False",
    "def again(): again()\nagain()", "x = '\udcff'", "\x00", "\tpass\n  x", "import sys; sys.exit()", "raise KeyError",
    "class Mine: pass\n", "from __future__ import braces", "Mine = 3", "raise RuntimeError", "nonlocal x", "yield 1",
    "return 1", "await x",
)  # fmt: skip
IMPORTS = """
from dataclasses import dataclass, field
import math
import numpy as np
import torch
from torch import nn
import coterie as ct
from coterie.client.recipe import Phase
from coterie.core.exchange import Mix, Put
from coterie.core.mixing import by_size
from coterie.data import from_arrays
from coterie.methods import FedAvg, FedPer
from coterie.partition import Iid, Partition
from coterie.partition.rule import Rule, Shares
"""
DECORATORS = (
    "@dataclass(frozen=True)", "@dataclass(frozen=True)", "@dataclass(frozen=True)", "@dataclass", "", "@staticmethod",
)  # fmt: skip
OPTIONS = (
    "pass", "pass", "pass", "beta: float = 0.5", "beta: float", "beta: float = 'x'", "beta: 'Nowhere' = 1", "beta = 3",
    "beta: list = field(default_factory=list)", "beta: float = math.nan", "beta: int = True", "name: str = 'x'",
    "lr: float = 0.1", "beta: torch.Tensor = None", "_hidden: int = 1", "shared = None", "shared = 'nowhere'",
    "shared = 5", "paper = 7", "extra_cost = None", "def __init__(self, a, b): pass",
    "def __post_init__(self): raise ValueError('no')",
    "def __post_init__(self): raise ct.CoterieError('beta = 3: must be 4')", "uploads = 3", "recipe = None",
    "exchange = 1",
)  # fmt: skip
EXCHANGES = (
    "yield Mix(by_size(uploads))", "pass", "return None", "return 5", "return []", "yield", "yield 3", "yield 'all'",
    "return [Mix(by_size(uploads))]", "return Mix(by_size(uploads))", "yield Mix(None)",
    "yield Mix([[0.5, 0.5, 0.5]])", "yield Mix(torch.full((1, 3), float('nan')))",
    "yield Mix(torch.full((1, 3), -1.0))", "yield Mix(torch.zeros(1, 3))", "yield Mix(torch.ones(1, 3))",
    "yield Mix(torch.ones(3))", "yield Mix(torch.ones(1, 2) / 2)", "yield Mix(torch.ones(3, 3) / 3)",
    "yield Mix(by_size(uploads), 'nowhere')", "yield Mix(by_size(uploads), target='nowhere')",
    "yield Mix(by_size(uploads), 3)", "yield Mix(by_size(uploads), source='nowhere')",
    "yield Mix(by_size(uploads), to='nobody')", "yield Mix(torch.ones(1, 3).int())",
    "yield Mix(by_size(uploads), to=torch.tensor([7]))", "yield Mix(by_size(uploads), gate=torch.ones(1, 1))",
    "yield Mix(by_size(uploads), to=torch.tensor([0.5]))", "yield Mix(torch.eye(3)[None])",
    "yield Mix(torch.full((1, 3), float('inf')))", "yield Put('model', None)", "yield Put('nowhere', torch.ones(1))",
    "yield Put('model', torch.ones(1))", "yield Put(3, 4)",
    "yield Mix(by_size(uploads), sources=torch.tensor([0, 0, 9]))", "yield Mix(by_size(uploads).cfloat())",
    "yield Mix(by_size(uploads)); yield None", "yield [Mix(by_size(uploads))]", "yield (Mix,)", "yield Mix",
    "uploads.trained['model'].fill_(float('nan')); yield Mix(by_size(uploads))",
    "uploads.rows('nowhere'); yield Mix(by_size(uploads))",
)  # fmt: skip
RECIPES = (
    "return (Phase(),)", "return ()", "return None", "return 5", "return Phase()", "return [Phase()]",
    "return (None,)", "return (Phase(epochs=-1),)", "return (Phase(epochs=0),)", "return (Phase(epochs='x'),)",
    "return ('all',)", "pass", "return (Phase(lr=float('nan')),)", "return (Phase(lr=-1),)",
    "return (Phase(terms=3),)", "return (Phase(terms=(3,)),)", "return (Phase(rule=3),)",
    "return (Phase(rule=lambda *a: None),)", "return (Phase(trains='nowhere'),)", "yield Phase()",
    "return (Phase(groups='nowhere'),)", "return (Phase(), Phase(), None)",
)  # fmt: skip
BASES = (
    "ct.Method", "ct.Method", "FedAvg", "FedAvg", "FedPer", "object", "nn.Module", "Rule", "int", "Exception", "dict",
)  # fmt: skip
MODELS = (
    "def Mine(shape, classes): return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(shape), classes))",
    "def Mine(): return nn.Linear(2, 3)", "def Mine(shape, classes): return None",
    "def Mine(shape, classes): return 3", "def Mine(a, b, c): return nn.Linear(2, 3)",
    "def Mine(shape, classes): return nn.Linear", "Mine = nn.Linear(2, 3)",
    "def Mine(shape, classes): return nn.Linear(5, classes)", "def Mine(shape, classes): return nn.Linear(2, 7)",
    "def Mine(shape, classes): return nn.Identity()", "def Mine(shape, classes): 1 / 0", "Mine = None",
    "Mine = nn.Module()", "def Mine(shape, classes): return nn.Module()",
    "def Mine(shape, classes): raise ct.CoterieError('shape: no')",
    "class Mine(nn.Module):\n    def __init__(self): pass\n",
    "class Mine(nn.Module):\n    def forward(self, x): return x\n",
    "class Mine(nn.Module):\n"
    "    def __init__(self, s, c):\n"
    "        super().__init__()\n"
    "        self.head = nn.Linear(2, c)\n"
    "    def forward(self, x): return 3\n",
    "class Mine(nn.Module):\n"
    "    def __init__(self, s, c):\n"
    "        super().__init__()\n"
    "        self.head = nn.Linear(2, c)\n"
    "    def forward(self, x): return self.head(x) * float('nan')\n",
    "class Mine(nn.Module):\n"
    "    def __init__(self, s, c):\n"
    "        super().__init__()\n"
    "        self.head = nn.Linear(2, c)\n"
    "    def forward(self): return 3\n",
    "class Mine(nn.Module):\n"
    "    def __init__(self, s, c):\n"
    "        super().__init__()\n"
    "        self.head = nn.Linear(2, c)\n"
    "    def forward(self, x): return self.head(x)[0]\n",
)  # fmt: skip
DATA = (
    "def Mine(): return from_arrays(np.ones((12, 2)), np.arange(12) % 3)", "def Mine(): return None",
    "def Mine(): return 3", "def Mine(a): return None", "def Mine(): return (np.ones((12, 2)), np.arange(12) % 3)",
    "Mine = 3", "def Mine(): 1 / 0", "def Mine(): return from_arrays(np.full((12, 2), np.nan), np.arange(12) % 3)",
    "def Mine(): return ct.Dataset",
    "def Mine(): return ct.Dataset('x', torch.ones(12, 2) * math.nan, torch.arange(12) % 3, 3)", "Mine = None",
    "def Mine(): return ct.Dataset('x', torch.ones(12, 2), torch.arange(12) % 3, 2)",
    "def Mine(): return ct.Dataset('x', 1, 2)",
    "def Mine(): return ct.Dataset('x', torch.ones(12, 2), torch.arange(11) % 3, 3)", "class Mine(ct.Dataset): pass",
    "def Mine(): return ct.Dataset('x', torch.ones(0, 2), torch.arange(0), 3)", "def Mine(): yield 1",
    "def Mine(): return ct.Dataset('x', torch.ones(12, 2).double(), torch.arange(12).float() % 3, 3)",
    "def Mine(): return ct.Dataset('x', torch.ones(12, 2), -torch.ones(12).long(), 3)", "def Mine(): raise SystemExit",
)  # fmt: skip
RULES = (
    "return Shares([np.arange(20) + 20 * k for k in range(3)])", "return None", "return 3", "return []",
    "return Shares([])", "return Shares(None)", "return Shares([np.arange(20)])", "return Shares([[0, 1], [2, 3]])",
    "return Shares([np.array([99, 3, 4])])", "return Shares([np.array([-1, 2, 3]), np.arange(9)])",
    "return Shares([np.arange(9) / 2, np.arange(9)])", "pass", "return Shares([np.arange(9), np.arange(9)])",
    "return Shares([np.array([], int), np.arange(9)])", "1 / 0", "return Shares([np.zeros(9, int), np.arange(9)])",
    "return Shares([np.arange(9)], names=('a', 'b'))", "yield 1",
    "return Shares([np.arange(9), np.arange(9, 18)], tests=[np.arange(9)])",
    "return Shares([np.arange(9)], names=(3,))",
    "return Shares([np.arange(9), np.arange(9, 18)], resolved={'x': object()})", "return Shares('abc')",
)  # fmt: skip
LISTENERS = (
    "class Mine(ct.Listener): pass", "class Mine: pass", "Mine = None",
    "class Mine(ct.Listener):\n    def __init__(self, a): pass\n", "Mine = ct.Listener()",
    "def Mine(): return 3",
)  # fmt: skip
KINDS = (
    "method", "method", "method", "method", "model", "data", "partition", "listener",
)  # fmt: skip


@st.composite
def plugin_files(draw: st.DrawFn) -> Case:
    """A file of one kind, with a head, some of it odd, and now and then damaged."""
    kind = draw(st.sampled_from(KINDS))
    text = IMPORTS + draw(st.sampled_from(HEADS)) + "\n" + draw(_content(kind))
    case: Case = {"kind": kind, "text": text.encode("utf-8", "surrogateescape").decode("latin-1")}
    if draw(st.integers(0, 9)) == 0:
        case["damages"] = draw(damages(len(case["text"])))
    if draw(st.integers(0, 14)) == 0:
        case["name"] = draw(odd_texts)
    return case


@st.composite
def _content(draw: st.DrawFn, kind: str) -> str:
    usual = {"model": MODELS, "data": DATA, "listener": LISTENERS}
    if kind in usual:
        return draw(st.sampled_from(usual[kind])) + "\n"
    if kind == "partition":
        base = draw(st.sampled_from(("Rule", "Rule", "Rule", "Rule", "object", "Iid", "ct.Method")))
        lines = [f"class Mine({base}):", "    name = 'mine'", f"    {draw(st.sampled_from(OPTIONS[:8]))}"]
        lines += ["    def shares(self, dataset, seed):", f"        {draw(st.sampled_from(RULES))}"]
    else:
        lines = [f"class Mine({draw(st.sampled_from(BASES))}):", f"    {draw(st.sampled_from(OPTIONS))}"]
        if draw(st.integers(0, 3)):
            lines += ["    def exchange(self, uploads):", f"        {draw(st.sampled_from(EXCHANGES))}"]
        if draw(st.integers(0, 2)) == 0:
            lines += ["    def recipe(self, federation):", f"        {draw(st.sampled_from(RECIPES))}"]
    return "\n".join([draw(st.sampled_from(DECORATORS)), *lines]) + "\n"


def check_plugin(case: Case, folder: Path) -> None:
    """Refused in a line, or a run whose files hold numbers; never what a plug-in raised, never nonsense from it."""
    write_table(folder)
    content = case["text"].encode("latin-1")
    (folder / FILE).write_bytes(damaged(content, case.get("damages", [])))
    reference, kind, out = f"{folder / FILE}:{case.get('name', 'Mine')}", case["kind"], folder / "run"
    words = ["run", reference if kind == "method" else "fedavg", *SMALL, f"--out={out}"]
    words += [] if kind == "data" else [f"--data={folder / TABLE}"]
    if kind == "partition":
        words = [word for word in words if not word.startswith(("--partition", "--clients"))]
    words += [] if kind == "method" else [f"--{kind}={reference}"]
    answer = called(words)
    if answer.code != 0:
        must_be_one_line(answer)
        return
    must_be_numbers(strict_json(answer.out))
    opened: Any = open_run(out)
    for round in opened.rounds:
        for mix in opened.mixes(round):
            must(bool(mix.weights.isfinite().all()), "weights that are none")


def must_be_numbers(summary: dict[str, Any]) -> None:
    """A summary of shares."""
    for moment in summary["accuracy"].values():
        last = moment["mean"]["last"]
        must(last is None or 0 <= last <= 1, f"an accuracy of {last}")


TARGETS = (Target("plug-in files", plugin_files(), check_plugin, 80),)
