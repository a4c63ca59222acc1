"""From a table's file to its page: cells run once, are carried on, and what they say is worked out."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from tests.reproduce.toy import TOML, toy_table

from coterie.compare.pool import Run
from coterie.core.number import Number
from coterie.errors import CoterieError
from coterie.reproduce import check
from coterie.reproduce.budget import fitting
from coterie.reproduce.cells import Amount, TableCell, cells_of
from coterie.reproduce.figure import LETTERS, drawn
from coterie.reproduce.page import page_of
from coterie.reproduce.program import run_cells, write_page
from coterie.reproduce.store import Results
from coterie.reproduce.verdict import Rebuilt, word_of

pytestmark = pytest.mark.thorough


class Silent:
    """A watcher that takes note of rounds and failures."""

    def __init__(self) -> None:
        self.rounds = 0
        self.failures: list[str] = []

    def begun(self, run: Run) -> None: ...

    def ended(self, run: Run, summary: object) -> None: ...

    def round_done(self, run: Run, round: int, received: float | None) -> None:
        self.rounds += 1

    def failed(self, run: Run, error: Exception) -> None:
        self.failures.append(str(run))


@pytest.fixture(scope="module")
def rebuilt(tmp_path_factory: pytest.TempPathFactory) -> tuple[Rebuilt, Path]:
    """The toy's first column with two seeds, all of it run."""
    folder, table, watch = tmp_path_factory.mktemp("toy"), toy_table(), Silent()
    cells = cells_of(table, ["half", "bytes"], [], [0, 1], Amount())
    assert run_cells(cells, folder / "cells", folder / "results", watch, jobs=1) == {}
    assert watch.rounds == 6 * 3
    return Rebuilt(table, Results(table, folder / "results")), folder


def test_a_long_title_is_not_cut_off(rebuilt: tuple[Rebuilt, Path]) -> None:
    """A picture of one column is narrow."""
    pytest.importorskip("matplotlib", reason="the extra coterie[plots] is not installed")
    found, _ = rebuilt
    long = replace(found.table, title="Toy, table 1: " + "digits " * 8)
    picture = (drawn(Rebuilt(long, found.results)) or b"").decode()
    lines = re.findall(r"<text[^>]*>([^<]*digits[^<]*)</text>", picture)
    assert sum(line.count("digits") for line in lines) == 8
    assert max(map(len, lines)) <= LETTERS


def test_cells_that_two_programs_finish_are_all_kept(rebuilt: tuple[Rebuilt, Path], tmp_path: Path) -> None:
    found, _ = rebuilt
    (first, one), (second, two), *_ = found.results.cells.items()
    cells = [
        TableCell(found.table, found.table.row(own["row"]), found.table.column(own["column"]), own["seed"])
        for own in (one, two)
    ]
    here, there = Results(found.table, tmp_path), Results(found.table, tmp_path)
    here.add(cells[0], one)
    there.add(cells[1], two)
    assert set(Results(found.table, tmp_path).cells) == {first, second}
    assert [path.name for path in tmp_path.iterdir()] == [f"{found.table.key}.json"]


def test_the_number_shown_is_the_run_s_at_the_paper_s_moment(rebuilt: tuple[Rebuilt, Path]) -> None:
    found, folder = rebuilt
    half = found.parts[0]
    for row, moment in (("local", "stored"), ("fedavg", "received"), ("pfedsim", "stored")):
        number = half.ours(found.table.row(row))
        for seed, value in number.by_seed.items():
            cell = TableCell(found.table, found.table.row(row), half.column, seed)
            summary = json.loads((folder / "cells" / cell.name / "summary.json").read_text())
            assert value == 100 * summary["accuracy"][moment]["weighted"]["last"]
    assert half.difference(found.table.row("local")) == pytest.approx(half.ours(found.table.row("local")).mean - 50.0)


def test_columns_of_other_measures_read_the_same_runs(rebuilt: tuple[Rebuilt, Path]) -> None:
    found, folder = rebuilt
    sent = found.parts[1]
    assert sent.column.key == "bytes"
    assert sent.ours(found.table.row("local")).mean == 0
    cell = TableCell(found.table, found.table.row("fedavg"), found.table.column("half"), 0)
    summary = json.loads((folder / "cells" / cell.name / "summary.json").read_text())
    assert sent.ours(found.table.row("fedavg")).by_seed[0] == summary["bytes"]["per_client_round"]["up"]


def test_finished_cells_are_never_run_again(rebuilt: tuple[Rebuilt, Path]) -> None:
    found, folder = rebuilt
    watch = Silent()
    cells = cells_of(found.table, ["half"], [], [0, 1], Amount())
    run_cells(cells, folder / "cells", folder / "elsewhere", watch, jobs=1)
    assert watch.rounds == 0
    assert Results(found.table, folder / "elsewhere").cells.keys() == found.results.cells.keys()


@pytest.mark.processes
def test_cells_in_parallel_have_the_same_bits(rebuilt: tuple[Rebuilt, Path], tmp_path: Path) -> None:
    found, _ = rebuilt
    cells = cells_of(found.table, ["half"], ["local", "fedavg"], [0], Amount())
    run_cells(cells, tmp_path / "cells", tmp_path / "results", Silent(), jobs=2)
    for digest, record in Results(found.table, tmp_path / "results").cells.items():
        assert record["scores"] == found.results.cells[digest]["scores"]
        assert record["first"] == found.results.cells[digest]["first"]


def test_the_page_shows_paper_and_ours(rebuilt: tuple[Rebuilt, Path]) -> None:
    found, _ = rebuilt
    page = page_of(found)
    local = found.parts[0].ours(found.table.row("local"))
    assert local.std is not None
    assert f"| Local † | 50.00 ± 1.00 | {local.mean:.2f} ± {local.std:.2f} | 2 | {local.mean - 50:+.2f} |" in page
    assert "| Other | 55 |  |  |  |  |  |" in page
    assert "Local beats FedAvg." in page
    assert "- FedAvg: Tested as received." in page
    assert "$ coterie reproduce toy-table1 --columns half --methods local,fedavg,pfedsim --seeds 0 1" in page
    assert "Kendall" not in page


def test_results_that_no_longer_match_the_table_are_refused(rebuilt: tuple[Rebuilt, Path]) -> None:
    found, folder = rebuilt
    found.results.require_current()
    changed = toy_table(TOML.replace("rho = 0.5", "rho = 0.6").replace("epochs = 1", "epochs = 1\nlr = 0.2"))
    with pytest.raises(CoterieError, match=r"was run with other settings than the table now has \(lr"):
        Results(changed, folder / "results").require_current()


def test_a_check_repeats_a_first_round_bit_for_bit(
    rebuilt: tuple[Rebuilt, Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    found, folder = rebuilt
    monkeypatch.setattr(check, "paper_tables", lambda: {"toy-table1": found.table})
    assert list(check.check_results(folder / "results"))[-1].endswith("the same bits")
    content = json.loads((folder / "results" / "toy-table1.json").read_text())
    for record in content["cells"].values():
        record["first"]["trained"] = {"accuracy": [0.5] * 6, "loss": [9.0] * 6}
    (tmp_path / "toy-table1.json").write_text(json.dumps(content))
    with pytest.raises(CoterieError, match="its first round was repeated and differs by up to"):
        list(check.check_results(tmp_path))


def test_committed_results_stand_beside_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check, "missing", lambda data: "not looked for here")
    lines = list(check.check_results(Path(__file__).parents[2] / "results"))
    assert any(line.startswith("pfedsim-table3: ") for line in lines)
    assert lines[-1].startswith("no first round was repeated")


def test_a_budget_leaves_out_what_does_not_fit(rebuilt: tuple[Rebuilt, Path]) -> None:
    found, folder = rebuilt
    cells = cells_of(found.table, ["half", "tenth"], [], [0, 1], Amount())
    chosen, left = fitting(cells, hours=1e-9, jobs=2, folder=folder / "cells")
    assert {cell.column.key for cell in chosen} == {"half"}
    assert {cell.column.key for cell in left} == {"tenth"}
    assert fitting(cells, hours=9, jobs=2, folder=folder / "cells")[1] == []


def test_a_cell_that_fails_is_named_and_the_others_run(tmp_path: Path) -> None:
    table, watch = toy_table(), Silent()
    cells = cells_of(table, ["half"], ["local", "fedavg"], [0], Amount())
    (tmp_path / "cells" / cells[0].name).mkdir(parents=True)
    (tmp_path / "cells" / cells[0].name / "mine.txt").write_text("mine")
    failures = run_cells(cells, tmp_path / "cells", tmp_path / "results", watch, jobs=1)
    assert len(failures) == len(watch.failures) == 1
    assert len(Results(table, tmp_path / "results").cells) == 1


def test_a_page_without_runs(tmp_path: Path) -> None:
    table = toy_table()
    write_page(table, tmp_path)
    assert "Nothing of it has been run yet." in (tmp_path / "toy-table1.md").read_text()


def test_claims_need_three_seeds_that_agree() -> None:
    assert word_of(Number({0: 1.0, 1: 2.0}), 1.0) == "points the same way (2 seeds)"
    assert word_of(Number({0: 1.0, 1: 1.1, 2: 0.9}), 0.4) == "holds"
    assert word_of(Number({0: -1.0, 1: -1.1, 2: -0.9}), 0.4) == "does not hold: it is the other way round"
    assert word_of(Number({0: 0.1, 1: 1.1, 2: -0.9}), 0.4).startswith("not seen")
    assert word_of(Number({0: 0.1, 1: 1.4, 2: 0.2}), 0.4).startswith("not seen")
    assert word_of(Number({0: -1.0, 1: -1.1, 2: -0.9}), -0.4) == "holds"
