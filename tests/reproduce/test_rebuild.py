"""From a table's file to its page: cells run once, are carried on, and what they say is worked out."""

from __future__ import annotations

import json
import math
import re
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from tests.reproduce.toy import TOML, toy_table

from coterie.compare.workers import PlannedRun
from coterie.core.numbers import Number
from coterie.errors import CoterieError
from coterie.reproduce import check
from coterie.reproduce.cells import Amount, TableCell, cells_of
from coterie.reproduce.page import LETTERS_PER_INCH, NAMES, WIDTH, commands, drawn, page_in, page_of
from coterie.reproduce.paper import paper_tables, read_table
from coterie.reproduce.rebuild import fitting, run_cells, write_page
from coterie.reproduce.store import KEPT, Record, Results, amount_of, value_of, without_recorded
from coterie.reproduce.verdict import Rebuilt, RebuiltColumn, word_of
from coterie.rounds.evaluate import MOMENTS
from coterie.runs.directory import RunDirectory

pytestmark = pytest.mark.thorough


class Silent:
    """A watcher that takes note of rounds and failures."""

    def __init__(self) -> None:
        self.rounds = 0
        self.failures: list[str] = []

    def begun(self, run: PlannedRun) -> None: ...

    def ended(self, run: PlannedRun, summary: object) -> None: ...

    def round_done(self, run: PlannedRun, round: int, received: float | None) -> None:
        self.rounds += 1

    def failed(self, run: PlannedRun, error: Exception) -> None:
        self.failures.append(str(run))


@pytest.fixture(scope="module")
def rebuilt(tmp_path_factory: pytest.TempPathFactory) -> tuple[Rebuilt, Path]:
    """The toy's first column with two seeds, all of it run."""
    folder, table, watch = tmp_path_factory.mktemp("toy"), toy_table(), Silent()
    cells = cells_of(table, ["half", "bytes"], [], [0, 1], Amount())
    assert run_cells(cells, folder / "cells", folder / "results", watch, jobs=1) == {}
    assert watch.rounds == 6 * 3
    return Rebuilt(table, Results(table, folder / "results")), folder


def _cells(found: Rebuilt) -> list[TableCell]:
    return [check.cell_of(found.results, record) for record in found.results.cells.values()]


def test_a_long_title_is_not_cut_off(rebuilt: tuple[Rebuilt, Path]) -> None:
    """A picture of one column is narrow."""
    pytest.importorskip("matplotlib", reason="the extra coterie[plots] is not installed")
    found, _ = rebuilt
    long = replace(found.table, title="Toy, table 1: " + "digits " * 8, columns=found.table.columns[:1])
    picture = (drawn(Rebuilt(long, found.results)) or b"").decode()
    lines = re.findall(r"<text[^>]*>([^<]*digits[^<]*)</text>", picture)
    assert sum(line.count("digits") for line in lines) == 8
    assert max(map(len, lines)) <= LETTERS_PER_INCH * (NAMES + WIDTH)


def test_methods_that_send_nothing_are_drawn(rebuilt: tuple[Rebuilt, Path], tmp_path: Path) -> None:
    """Local alone has an upload of 0 bytes, and nothing to scale an axis by."""
    pytest.importorskip("matplotlib", reason="the extra coterie[plots] is not installed")
    found, _ = rebuilt
    alone = Results(found.table, tmp_path)
    alone.cells = {key: record for key, record in found.results.cells.items() if record["row"] == "local"}
    picture = (drawn(Rebuilt(found.table, alone)) or b"").decode()
    assert "Bytes" in picture


def test_cells_that_two_programs_finish_are_all_kept(rebuilt: tuple[Rebuilt, Path], tmp_path: Path) -> None:
    found, _ = rebuilt
    (first, one), (second, two), *_ = found.results.cells.items()
    cells = _cells(found)
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


def test_ranks_and_leads_are_by_seeds_that_the_rows_share(rebuilt: tuple[Rebuilt, Path], tmp_path: Path) -> None:
    """Of a seed with easy data, only those should profit in the order that all had it."""
    found, _ = rebuilt
    scores = {("local", 0): 0.5, ("local", 1): 0.9, ("fedavg", 0): 0.6, ("pfedsim", 0): 0.7, ("pfedsim", 1): 0.8}
    uneven = Results(found.table, tmp_path)
    for key, record in found.results.cells.items():
        score = scores.get((record["row"], record["seed"]))
        if score is not None:
            every = {moment: {"weighted": {"last": score}} for moment in ("received", "trained", "stored")}
            uneven.cells[key] = {**record, "scores": every}
    part = Rebuilt(found.table, uneven).parts[0]
    assert part.common_seeds == [0]
    assert {key: ours for key, (_, ours) in part.ranks().items()} == {"pfedsim": 1, "fedavg": 2, "local": 3}
    lead = part.lead()
    assert lead is not None
    assert "against Local" in lead.claim
    assert lead.ours.by_seed == pytest.approx({0: 20.0, 1: -10.0})
    page = page_of(Rebuilt(found.table, uneven))
    assert "| ours, seed 0 | our rank, seed 0 |" in page
    # Local's mean of both seeds stands in its row, and that of seed 0 beside its rank.
    assert re.search(r"\| Local \| .*70\.00 ± 28\.28 .*\| 50\.00 \| 3 \|", page)
    assert "our rank, seed" not in page_of(found)
    apart = {("local", 1), ("pfedsim", 0)}
    uneven.cells = {key: one for key, one in uneven.cells.items() if (one["row"], one["seed"]) in apart}
    assert Rebuilt(found.table, uneven).parts[0].ranks() == {}


def test_columns_of_other_measures_read_the_same_runs(rebuilt: tuple[Rebuilt, Path]) -> None:
    found, folder = rebuilt
    sent = found.parts[1]
    assert sent.column.key == "bytes"
    assert sent.ours(found.table.row("local")).mean == 0
    cell = TableCell(found.table, found.table.row("fedavg"), found.table.column("half"), 0)
    summary = json.loads((folder / "cells" / cell.name / "summary.json").read_text())
    assert sent.ours(found.table.row("fedavg")).by_seed[0] == summary["bytes"]["per_client_round"]["up"]


def test_time_is_that_of_training_a_sample_all_epochs_together(rebuilt: tuple[Rebuilt, Path]) -> None:
    found, folder = rebuilt
    time, row = found.parts[2], found.table.row("fedavg")
    cell = TableCell(found.table, row, found.table.column("half"), 0)
    summary = json.loads((folder / "cells" / cell.name / "summary.json").read_text())
    lines = RunDirectory(folder / "cells" / cell.name).lines()
    samples = sum(summary["clients"][client]["size"] for line in lines for client in line.cohort)
    seconds = sum(line.seconds.train for line in lines)
    assert time.ours(row).by_seed[0] == pytest.approx(1e4 * seconds / samples)
    of_two_epochs = {**time.records["fedavg"][0], "config": {"epochs": 2}, "seconds": 0.0003}
    assert value_of(of_two_epochs, "seconds", found.table.reports) == pytest.approx(6.0)
    # A fifth of the training set is kept to judge models by: of 100 samples 80 are trained on.
    judging = {**of_two_epochs, "config": {"epochs": 2, "validation": 0.2}}
    assert value_of(judging, "seconds", found.table.reports) == pytest.approx(6.0 * 80 / 100)


def test_of_what_costs_less_is_better(rebuilt: tuple[Rebuilt, Path]) -> None:
    found, _ = rebuilt
    (claim,) = found.parts[1].verdicts()
    more = found.parts[1].ours(found.table.row("fedavg"))
    assert (claim.claim, claim.paper) == ("Local sends less than FedAvg.", None)
    assert claim.ours.by_seed == more.by_seed
    assert claim.word == "points the same way (2 seeds)"
    assert claim.claim not in {verdict.claim for verdict in found.parts[0].verdicts()}
    page = page_of(found)
    assert f"| Local sends less than FedAvg. |  | +{more.mean:,.0f} ± 0 | points the same way (2 seeds) |" in page
    assert "| method | paper, bytes | ours, bytes |" in page
    assert found.parts[2].verdicts() == []


def test_finished_cells_are_never_run_again(rebuilt: tuple[Rebuilt, Path]) -> None:
    found, folder = rebuilt
    watch = Silent()
    cells = cells_of(found.table, ["half"], [], [0, 1], Amount())
    run_cells(cells, folder / "cells", folder / "elsewhere", watch, jobs=1)
    assert watch.rounds == 0
    assert Results(found.table, folder / "elsewhere").cells.keys() == found.results.cells.keys()


def test_a_cell_of_another_table_is_taken_over_with_its_own_place(rebuilt: tuple[Rebuilt, Path]) -> None:
    """Results outlive their runs: there need be no directory of a run any more."""
    found, folder = rebuilt
    text = TOML.replace('key = "pfedsim"', 'key = "ours"\nmethod = "pfedsim"').replace(
        'proposed = "pfedsim"', 'proposed = "ours"'
    )
    other = read_table("toy-table2", text.replace("rounds = 3", "rounds = 9"))
    cells = cells_of(other, ["half"], ["local", "ours"], [0, 7], Amount(rounds=3))
    assert [cell.seed for cell in without_recorded([*cells, *_cells(found)], folder / "results")] == [7, 7]
    taken = Results(other, folder / "results")
    taken.require_current()
    assert [(one["row"], one["rounds"], one["seed"]) for one in taken.cells.values()] == [
        ("local", 3, 0),
        ("ours", 3, 0),
    ]
    for digest, record in taken.cells.items():
        assert record["scores"] == found.results.cells[digest]["scores"]


def test_the_commands_name_what_has_run_and_nothing_else(rebuilt: tuple[Rebuilt, Path]) -> None:
    found, _ = rebuilt
    one = next(iter(found.results.cells.values()))
    ran = [
        ("half", "local", 0), ("half", "local", 1), ("half", "fedavg", 0),
        ("tenth", "fedavg", 0), ("tenth", "local", 0), ("tenth", "local", 1),
        ("bytes", "fedavg", 0), ("time", "fedavg", 0),
    ]  # fmt: skip
    records = [{**one, "column": column, "row": row, "seed": seed} for column, row, seed in ran]
    assert commands(found.table, [*records, {**one, "column": "half", "row": "local", "seed": 0, "rounds": 2}]) == [
        "coterie reproduce toy-table1 --columns half,tenth --methods local --seeds 0 1",
        "coterie reproduce toy-table1 --columns half --methods local --seeds 0 --rounds 2",
        "coterie reproduce toy-table1 --methods fedavg --seeds 0",
    ]


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


def test_columns_that_differ_by_their_data_alone_are_shown_once_on_other_data(tmp_path: Path) -> None:
    table = toy_table(TOML.replace("settings = { alpha = 0.1 }", 'settings = { data = "mnist" }'))
    results = Results(table, tmp_path)
    for cell in cells_of(table, ["tenth"], ["local", "pfedsim"], [0], Amount(rounds=2, data="digits")):
        results.cells[cell.digest] = {
            **{"row": cell.row.key, "column": cell.column.key, "seed": 0},
            **{"rounds": 2, "share": 1.0, "data": "digits"},
        }
    shown = [part.column.key for part in Rebuilt(table, results).parts]
    assert shown == ["tenth", "bytes", "time"]  # not "half"; the last two are other numbers of the same runs


def test_what_was_found_belongs_to_the_results_of_a_folder(rebuilt: tuple[Rebuilt, Path], tmp_path: Path) -> None:
    found, folder = rebuilt
    copied = shutil.copytree(folder / "results", tmp_path / "results")
    (copied / "toy-table1.findings.md").write_text("- Toys are small.\n")
    write_page(found.table, copied)
    page = (copied / "toy-table1.md").read_text()
    assert "\n## What was found\n\n- Toys are small.\n\n## Notes\n" in page
    assert page == page_in(copied, found)
    assert "found" not in page_of(found)


def test_a_partition_from_a_file_is_named_once_for_all_seeds(rebuilt: tuple[Rebuilt, Path]) -> None:
    found, folder = rebuilt
    digests = {one["seed"]: one["partition"][:12] for one in found.results.cells.values()}
    listed = "; ".join(f"half, seed {seed}: {digest}" for seed, digest in sorted(digests.items()))
    assert f"- partitions (SHA-256): {listed}\n" in page_of(found)
    from_file = Results(found.table, folder / "results")
    for record in from_file.cells.values():
        record["config"] = {**record["config"], "partition": "pfedsim-cifar10-dir0.1.npz"}
    line = r"- partitions \(SHA-256\): half, every seed: [0-9a-f]{12} \(the file pfedsim-cifar10-dir0.1.npz\)\n"
    assert re.search(line, page_of(Rebuilt(found.table, from_file)))


def test_results_that_no_longer_match_the_table_are_refused_until_they_are_run_again(
    rebuilt: tuple[Rebuilt, Path], tmp_path: Path
) -> None:
    found, folder = rebuilt
    found.results.require_current()
    assert all(record.keys() == KEPT for record in found.results.cells.values())
    changed = toy_table(TOML.replace("rho = 0.5", "rho = 0.6").replace("epochs = 1", "epochs = 1\nlr = 0.2"))
    with pytest.raises(CoterieError, match=r"was run with other settings than the table now has \(lr"):
        Results(changed, folder / "results").require_current()
    again = Results(changed, shutil.copytree(folder / "results", tmp_path / "results"))
    for record in list(again.cells.values()):
        row, column = changed.row(record["row"]), changed.column(record["column"])
        cell = TableCell(changed, row, column, record["seed"], amount_of(record))
        again.add(cell, {**record, "config": cell.config})
    again.require_current()
    assert len(again.cells) == len(found.results.cells)


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b'{"format": 2, "cells": {"a', "Unterminated string"),
        (b"\xff\xfe", "can't decode"),
        (b"[]", "it holds no cells"),
        (b'{"format": 2, "cells": 3}', "some of its cells are not whole"),
        (b'{"format": 2, "cells": {"a": {"row": "local"}}}', "some of its cells are not whole"),
    ],
)
def test_a_damaged_file_of_results_is_named_with_the_way_out(content: bytes, why: str, tmp_path: Path) -> None:
    (tmp_path / "toy-table1.json").write_bytes(content)
    with pytest.raises(CoterieError, match=rf"toy-table1.json: is damaged \(.*{why}.*\); move it away and run"):
        Results(toy_table(), tmp_path)


def test_a_check_repeats_a_first_round_bit_for_bit(
    rebuilt: tuple[Rebuilt, Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    found, folder = rebuilt
    monkeypatch.setattr(check, "paper_tables", lambda: {"toy-table1": found.table})
    assert list(check.check_results(folder / "results"))[-1].endswith("the same bits")
    fedavg = next(one for one in found.results.cells.values() if one["row"] == "fedavg")
    elsewhere = {**fedavg, "machine": {**fedavg["machine"], "processor": "of another maker"}}
    lost = fedavg["first"]["received"]
    elsewhere["first"] = {**fedavg["first"], "received": {**lost, "loss": [one + 1e-8 for one in lost["loss"]]}}
    told = check.repeated(check.cell_of(found.results, elsewhere), elsewhere)
    assert re.search(r"within 0.05 \(another build or processor\), largest 1(\.0\d*)?e-08", told)
    other = Results(found.table, folder / "results")
    other.path = tmp_path / "toy-table1.json"
    for record in other.cells.values():
        record["first"]["trained"] = {"accuracy": [0.5] * 6, "loss": [9.0] * 6}
    other.write()
    write_page(found.table, tmp_path)
    with pytest.raises(CoterieError, match="its first round was repeated and differs by up to"):
        list(check.check_results(tmp_path))


def test_a_check_repeats_what_ran_on_such_a_machine_rather_than_what_is_cheaper(
    rebuilt: tuple[Rebuilt, Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    found, folder = rebuilt
    monkeypatch.setattr(check, "paper_tables", lambda: {"toy-table1": found.table})
    others = Results(found.table, folder / "results")
    others.path = tmp_path / "toy-table1.json"
    for record in others.cells.values():
        if record["row"] != "pfedsim":
            record |= {"machine": {**record["machine"], "processor": "of another maker"}, "runtime": 0.0}
    others.write()
    write_page(found.table, tmp_path)
    told = list(check.check_results(tmp_path))[-1]
    assert re.search(r"half, pfedsim, seed \d: the first round was repeated: the same bits", told)


@pytest.mark.parametrize(
    ("name", "old", "new", "told"),
    [
        (
            "toy-table1.json",
            '"seed": 0',
            '"seed": 3',
            r"toy-table1.json: '[0-9a-f]{12}' is not as it was written",
        ),
        ("toy-table1.md", "Toys only.", "Toys.", "toy-table1 --columns half .* --seeds 0 1' writes it anew"),
    ],
)
def test_a_check_names_what_was_edited_by_hand(
    name: str,
    old: str,
    new: str,
    told: str,
    rebuilt: tuple[Rebuilt, Path],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    found, folder = rebuilt
    monkeypatch.setattr(check, "paper_tables", lambda: {"toy-table1": found.table})
    copied = shutil.copytree(folder / "results", tmp_path / "results")
    text = (copied / name).read_text()
    assert old in text
    (copied / name).write_text(text.replace(old, new, 1))
    with pytest.raises(CoterieError, match=told):
        list(check.check_results(copied))


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


def test_a_claim_is_judged_by_an_interval_over_three_seeds_or_more() -> None:
    assert word_of(Number({0: 1.0, 1: 2.0}), 1.0) == "points the same way (2 seeds)"
    assert word_of(Number({0: 1.0, 1: 1.1, 2: 0.9}), 0.4) == "holds"
    assert word_of(Number({0: -1.0, 1: -1.1, 2: -0.9}), 0.4) == "does not hold: it is the other way round"
    assert word_of(Number({0: -1.0, 1: -1.1, 2: -0.9}), -0.4) == "holds"
    # p = 0.074, though the mean is twice the standard deviation: the rule before let it hold.
    assert word_of(Number({0: 1.0, 1: 2.0, 2: 3.0}), 0.4) == "open: about 1 more seed"
    assert word_of(Number({0: 0.1, 1: 1.1, 2: -0.9}), 0.4) == "open: more than a hundred seeds"
    # 0.017 ± 0.259: what is published as 0.2 may be, what is published as 0.4 is smaller here.
    assert word_of(Number({0: 0.1, 1: -0.1, 2: 0.05}), 0.2) == "level within half a point"
    assert word_of(Number({0: 0.1, 1: -0.1, 2: 0.05}), 0.4) == "level within half a point; smaller than the paper's"
    assert word_of(Number({0: -0.1, 1: 0.1, 2: -0.05}), -0.4) == "level within half a point; smaller than the paper's"
    assert word_of(Number({0: 0.1, 1: -0.1, 2: 0.05}), 0.4, level=0.0).startswith("open")
    assert word_of(Number({0: 1.0, 1: math.nan, 2: 1.0}), 1.0) == "no number"


def test_less_than_the_papers_run_refutes_nothing() -> None:
    behind = Number({0: -1.0, 1: -1.1, 2: -0.9})
    assert word_of(behind, 0.4, hindrance="100 rounds") == "points the other way (100 rounds)"
    assert word_of(behind, -0.4, hindrance="100 rounds") == "holds (100 rounds)"
    assert word_of(Number({0: -1.0}), 0.4, hindrance="100 rounds") == "points the other way (1 seed)"


def scored(rebuilt: Rebuilt, folder: Path, amount: Amount, **scores: Sequence[float]) -> RebuiltColumn:
    """The first column as if rows had these scores, seed by seed."""
    records: dict[str, dict[int, Record]] = {}
    some = next(iter(rebuilt.results.cells.values()))
    for row, values in scores.items():
        every = [
            {moment: {"weighted": {"last": value}} for moment in ("received", "trained", "stored")} for value in values
        ]
        records[row] = {seed: {**some, "row": row, "seed": seed, "scores": each} for seed, each in enumerate(every)}
    return RebuiltColumn(rebuilt.table, rebuilt.table.columns[0], amount, records)


def test_a_lead_needs_every_rival_and_allows_for_their_number(rebuilt: tuple[Rebuilt, Path], tmp_path: Path) -> None:
    table, _ = rebuilt
    even, steep = (0.70, 0.70, 0.70), (0.60, 0.605, 0.617)
    # Leads of 1.0, 1.45 and 0.75 points: p is 0.035, below 0.05, and above 0.05 / 2.
    near = (0.69, 0.6855, 0.6925)
    alone = scored(table, tmp_path, Amount(), pfedsim=even, local=near).lead()
    assert alone is not None
    assert alone.ours.evidence.p == pytest.approx(0.035, abs=1e-3)
    assert alone.word == "holds"
    two = scored(table, tmp_path, Amount(), pfedsim=even, local=near, fedavg=near).lead()
    assert two is not None
    assert two.word == "open: the correction for several rivals decides; smaller than the paper's"
    behind = scored(table, tmp_path, Amount(), pfedsim=steep, local=even, fedavg=(0.1, 0.1, 0.1)).lead()
    assert behind is not None
    assert behind.word == "does not hold: Local ahead"
    short = scored(table, tmp_path, Amount(rounds=1), pfedsim=steep, local=even, fedavg=(0.1, 0.1, 0.1)).lead()
    assert short is not None
    assert short.word == "points the other way (not the paper's run: 1 rounds)"


def test_shortened_cells_show_no_difference_to_the_paper(rebuilt: tuple[Rebuilt, Path], tmp_path: Path) -> None:
    table, _ = rebuilt
    row = table.table.row("fedavg")
    whole, short = (scored(table, tmp_path, amount, fedavg=(0.5,)) for amount in (Amount(), Amount(rounds=2)))
    assert whole.difference(row) is not None
    assert short.difference(row) is None
    assert not short.differs(row)


def test_both_spreads_count_where_ours_is_far_from_the_papers() -> None:
    table = paper_tables()["pfedsim-table3"]
    column, row = table.column("cifar10-dir0.1"), table.row("pfedsim")  # 86.76 ± 0.84

    def part(*scores: float) -> RebuiltColumn:
        every = [{moment: {"weighted": {"last": score}} for moment in MOMENTS} for score in scores]
        records = {seed: {"scores": each, "config": {"epochs": 1}} for seed, each in enumerate(every)}
        return RebuiltColumn(table, column, Amount(), {"pfedsim": records})

    assert part(0.83, 0.83, 0.83).differs(row)  # 3.76 points, beyond 3 · 0.84
    assert not part(0.81, 0.83, 0.85).differs(row)  # 3 · √(0.84² + 2²) = 6.5
