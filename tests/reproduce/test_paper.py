"""The tables' files: read strictly, and true to the papers where they can be checked."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from tests.reproduce.toy import TOML, toy_table

from coterie.core.pixels import Pixels, PixelScale
from coterie.data.dataset import Dataset
from coterie.errors import CoterieError
from coterie.reproduce import cells
from coterie.reproduce.cells import Amount, TableCell, cells_of
from coterie.reproduce.paper import PaperColumn, PaperTable, paper_tables
from coterie.reproduce.verdict import RebuiltColumn
from coterie.setup import prepared


@pytest.mark.parametrize("table", paper_tables().values(), ids=lambda table: table.key)
def test_every_cell_of_every_table_can_be_built(table: PaperTable) -> None:
    digests = set()
    for row in table.rows:
        for column in table.columns:
            if not row.method_name:
                continue
            cell = TableCell(table, row, column, seed=0)
            assert cell.experiment.rounds > 0
            assert cell.config["seed"] == 0
            digests.add(cell.digest)
            reports = table.reports_of(row, column)
            assert reports.moment in ("received", "trained", "stored")
    assert digests


# By hand from the papers: row, column, number.
SAMPLES = {
    ("pfedcs-table1", "pfedcs", "cifar10-c2"): (90.60, None),
    ("pfedcs-table2", "fedgh", "cifar10-dir0.05"): (83.92, None),
    ("fedrema-table1", "fedpac", "cifar10"): (64.9, 0.1),
    ("fedcac-table2", "fedcac", "cifar10-dir0.1"): (86.82, 1.18),
    ("pfedsim-table3", "fedper", "cifar10-dir0.1"): (82.42, 0.55),
    ("pfedsim-table6", "rho-0.7", "cifar10-dir0.5"): (68.09, 0.62),
    ("fedtc-table2", "fedtc", "cifar10-dir0.5"): (76.71, None),
}


@pytest.mark.parametrize(("where", "number"), SAMPLES.items(), ids=lambda found: str(found))
def test_numbers_are_the_papers(where: tuple[str, str, str], number: tuple[float, float | None]) -> None:
    key, row, column = where
    table = paper_tables()[key]
    assert table.paper_number(table.row(row), table.column(column)) == number


def as_if_rebuilt(table: PaperTable, column: PaperColumn) -> RebuiltColumn:
    """A column whose runs gave the paper's very numbers."""
    numbers = {row.key: found[0] for row in table.rows if (found := table.paper_number(row, column)) is not None}
    scale = {"score": 100.0, "seconds": 1e4}.get(column.measure, 1.0)
    records = {}
    for key, number in numbers.items():
        reports = table.reports_of(table.row(key), column)
        scores = {reports.moment: {reports.mean: {reports.round: number / scale}}}
        records[key] = {0: {"scores": scores, "config": {"epochs": 1}, column.measure: number / scale}}
    return RebuiltColumn(table, column, Amount(), records)


def test_the_papers_own_numbers_bear_its_claims_out_but_where_they_say_otherwise() -> None:
    against, told = set(), 0
    for table in paper_tables().values():
        for column in table.columns:
            part = as_if_rebuilt(table, column)
            for verdict in part.verdicts():
                assert verdict.paper is None or verdict.ours.mean == pytest.approx(verdict.paper)
                assert "those that ran" not in verdict.claim
                told += 1
                if verdict.ours.mean <= 0:
                    against.add((table.key, column.key, verdict.claim))
            if table.proposed and column.measure == "score" and part.records:
                assert part.lead() is not None
    assert told > 100
    assert against == {
        ("pfedcs-table2", "cifar10-dir0.05", "PFedCS leads (ours: against FedAMP)"),
        ("pfedsim-table3", "cinic10-dir0.5", "pFedSim leads (ours: against FedRep)"),  # level with it
    }


def test_a_lead_is_over_those_that_ran_variants_of_the_method_among_them() -> None:
    table = paper_tables()["pfedcs-table3"]
    whole = as_if_rebuilt(table, table.column("c10"))
    lead = whole.lead()
    assert lead is not None
    assert lead.claim == "PFedCS, adaptive leads (ours: against PFedCS, selects everybody)"
    assert lead.paper == pytest.approx(1.72)
    some = {key: record for key, record in whole.records.items() if key in ("fedper", "pfedcs")}
    lead = RebuiltColumn(table, whole.column, Amount(), some).lead()
    assert lead is not None
    assert lead.claim == "PFedCS, adaptive leads those that ran (ours: against FedPer)"
    assert lead.paper == pytest.approx(2.44)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('paper = "Toy"', 'papr = "Toy"', "'paper' is missing"),
        ("seeds = 2", "seeds = 2\nbudget = 3", "nobody knows budget"),
        ('moment = "stored"', 'moment = "storied"', "unknown moment 'storied'"),
        ('measure = "upload"', 'measure = "weight"', "unknown measure 'weight'"),
        ("set = { rho = 0.5 }", "sets = { rho = 0.5 }", "unknown key of a row 'sets'"),
        ("half = [40.0]", "haif = [40.0]", "there is no row or column haif"),
        ("half = [40.0]", "half = [40.0, 1, 2]", r"the number of half must be \[mean\] or \[mean, std\]"),
        ('columns = ["bytes"]', 'columns = ["bites"]', "there is no row or column bites"),
        ('worse = "fedavg"\ncolumns', 'worse = "fedvag"\ncolumns', "there is no row or column fedvag"),
        ('key = "tenth"', 'key = "half"', "a column stands there twice"),
    ],
)
def test_what_a_file_says_must_be_meant_for_something(old: str, new: str, message: str) -> None:
    assert TOML.count(old) == 1
    with pytest.raises(CoterieError, match=message):
        toy_table(TOML.replace(old, new))


def test_cells_come_most_informative_first_and_the_same_run_once() -> None:
    cells = cells_of(toy_table(), [], [], [0, 1], Amount())
    shown = [(cell.seed, cell.column.key, cell.row.key) for cell in cells]
    # The column of bytes reads off the runs of the first one; a row without a method has no runs.
    once = [(column, row) for column in ("half", "tenth") for row in ("pfedsim", "local", "fedavg")]
    assert shown == [(seed, *one) for seed in (0, 1) for one in once]


def test_amounts_change_the_run_and_its_name() -> None:
    table = toy_table()
    cell, less = (
        TableCell(table, table.row("local"), table.column("half"), 0, amount) for amount in (Amount(), Amount(rounds=2))
    )
    assert (cell.experiment.rounds, less.experiment.rounds) == (3, 2)
    assert cell.name != less.name
    assert cell.digest == TableCell(table, table.row("local"), table.column("half"), 0).digest


def test_a_cell_is_known_by_what_is_unusual_about_it(monkeypatch: pytest.MonkeyPatch) -> None:
    table = toy_table()
    cell = TableCell(table, table.row("pfedsim"), table.column("half"), 0)
    digest = cell.digest
    # A setting that there was not when the cell was run, at its default.
    later = TableCell(table, table.row("pfedsim"), table.column("half"), 0)
    grown = {**later.config, "share": 1.0, "device": "cpu"}
    monkeypatch.setitem(later.__dict__, "config", grown)
    assert later.digest == digest
    # Cells are pinned to their engine, so another default changes nothing.
    same = TableCell(table, table.row("pfedsim"), table.column("half"), 0)
    usual = cells._defaults
    with monkeypatch.context() as later_version:
        later_version.setattr(cells, "_defaults", lambda cls: {**usual(cls), "engine": "auto"})
        assert same.digest == digest
    for key, value in (("lr", 0.123), ("alpha", 0.7), ("share", 0.5), ("seed", 3)):
        other = TableCell(table, table.row("pfedsim"), table.column("half"), 0)
        monkeypatch.setitem(other.__dict__, "config", {**cell.config, key: value})
        assert other.digest != digest
    different = TableCell(table, table.row("pfedsim"), table.column("half"), 0)
    monkeypatch.setitem(different.__dict__, "config", {**cell.config, "set": {"rho": 0.3}})
    assert different.digest != digest


@dataclass(frozen=True)
class Like:
    """A data set's size and form."""

    samples: int
    train_size: int
    classes: int
    shape: tuple[int, ...]
    domains: int = 0

    def made(self, name: str, **_: object) -> Dataset:
        """A data set of that form: one black image, again and again."""
        labels = torch.randint(self.classes, (self.samples,), generator=torch.Generator().manual_seed(0))
        owners = torch.arange(self.samples) % self.domains if self.domains else None
        names = tuple(map(str, range(self.domains)))
        image = torch.zeros(1, *self.shape, dtype=torch.uint8)
        scale = PixelScale(means=(0.5,) * self.shape[0], deviations=(0.5,) * self.shape[0])
        inputs = Pixels(image.expand(self.samples, *self.shape), scale)
        return Dataset(name, inputs, labels, self.classes, self.train_size, owners, names)


FORMS = {
    "mnist": Like(70_000, 60_000, 10, (1, 28, 28)),
    "fashion_mnist": Like(70_000, 60_000, 10, (1, 28, 28)),
    "emnist": Like(814_255, 697_932, 62, (1, 28, 28)),
    "cifar10": Like(60_000, 50_000, 10, (3, 32, 32)),
    "cinic10": Like(270_000, 180_000, 10, (3, 32, 32)),
    "cifar100": Like(60_000, 50_000, 100, (3, 32, 32)),
    "tiny_imagenet": Like(110_000, 100_000, 200, (3, 64, 64)),
    "domainnet": Like(586_575, 410_000, 345, (3, 64, 64), domains=6),
}


@pytest.mark.thorough
@pytest.mark.parametrize("table", paper_tables().values(), ids=lambda table: table.key)
def test_every_table_can_be_tried_with_a_little_of_its_data(table: PaperTable, monkeypatch: pytest.MonkeyPatch) -> None:
    """A paper's samples a client, its least ones and its own partitions are of all the data."""
    monkeypatch.setattr(prepared, "load", lambda name, **_: FORMS[name].made(name))
    monkeypatch.setattr(cells, "missing", lambda _: None)
    prepared_once = set()
    for cell in cells_of(table, [], [], [0], Amount(rounds=1, share=0.02)):
        # Methods alike, what has to fit is the partition and the model.
        kind = cell.column.key, str(cell.row.settings)
        if kind not in prepared_once:
            prepared_once.add(kind)
            sizes = cell.experiment.prepare().partition.sizes
            assert sizes.min() > 0
    assert prepared_once


def test_a_paper_s_own_partition_is_for_all_of_its_data_alone() -> None:
    table = paper_tables()["pfedsim-table3"]
    row, column = table.row("pfedsim"), table.column("cifar10-dir0.5")
    whole, less, other = (
        TableCell(table, row, column, 0, amount)
        for amount in (Amount(rounds=2), Amount(share=0.5), Amount(data="digits"))
    )
    assert whole.config["partition"] == "pfedsim-cifar10-dir0.5.npz"
    for cell in (less, other):
        assert (cell.config["partition"], cell.config["alpha"]) == ("dirichlet", 0.5)


@pytest.mark.parametrize(("share", "samples"), [(1.0, 600), (0.5, 300), (0.1, 60), (0.02, 20), (0.001, 20)])
def test_samples_a_client_shrink_with_the_data_as_long_as_they_are_enough(share: float, samples: int) -> None:
    table = paper_tables()["fedrema-table1"]
    cell = TableCell(table, table.row("fedrema"), table.column("mnist"), 0, Amount(share=share))
    assert cell.config["samples"] == samples
