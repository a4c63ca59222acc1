"""Columns on one scale at real sites: what they tell once, what comes of it, and that nobody scales twice."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from coterie.data import Dataset
from coterie.data.scaling import AgreedScale
from coterie.deployment.agreement import SCALING, Agreement
from coterie.deployment.disclosure import dry_run
from coterie.deployment.messages import RefusedError
from coterie.deployment.server import Server
from coterie.deployment.versions import extended
from coterie.deployment.wire import Parcel
from coterie.deployment.workplace import own_split
from coterie.errors import CoterieError
from coterie.serve.model import export_model, loaded, predict
from coterie.testing.together import SITES, SIZES, Together, agreed, simulated, site_data

RAW = torch.tensor([1e6, 1.0, 1e-3, 1.0, 50.0, 1.0])


def raw_data(number: int, size: int | None = None) -> Dataset:
    """A site's samples with columns in millions beside others in thousandths."""
    data = site_data(number, SIZES[number] if size is None else size)
    assert isinstance(data.inputs, torch.Tensor)
    return replace(data, inputs=data.inputs * RAW + 3 * RAW)


def together(folder: Path, change: Callable[[int, Dataset], Dataset] = lambda _, data: data, **terms: Any) -> Together:
    datas = {name: change(number, raw_data(number)) for number, name in enumerate(SITES)}
    return Together(agreed("fedper", scale="standard", **terms), folder, datas)


def scaling_of(federation: Any) -> list[list[float]]:
    found: list[list[float]] = federation.values[SCALING].tolist()
    return found


def test_a_federation_of_raw_tables_ends_with_the_rows_of_the_simulation(tmp_path: Path) -> None:
    ours = together(tmp_path)
    ours.run()
    result = simulated(ours.agreement, list((ours.data or {}).values())).run()
    assert result.prepared.scaling is not None
    shift, divisor = ours.server.federation.values[SCALING]
    torch.testing.assert_close(shift, result.prepared.scaling.shift, rtol=1e-6, atol=0)
    torch.testing.assert_close(divisor, result.prepared.scaling.divisor, rtol=1e-6, atol=0)
    theirs, mine = result.federation["model"], ours.server.federation["model"]
    torch.testing.assert_close(mine.shared, theirs.shared, atol=1e-5, rtol=0)
    for name, site in ours.sites.items():
        assert scaling_of(site.federation) == scaling_of(ours.server.federation), name
        path = tmp_path / f"{name}.safetensors"
        about = export_model(site.store, path)
        assert about.scaling == {"shift": shift.tolist(), "divisor": divisor.tolist()}
        raw = (ours.data or {})[name].inputs
        with torch.no_grad():
            found = loaded(path)[0](raw)
        torch.testing.assert_close(found, result.scores(SITES.index(name), raw), atol=1e-4, rtol=1e-4)
        assert len(predict(path, raw)[0]) == len(raw)


def test_what_is_not_trained_on_is_not_told(tmp_path: Path) -> None:
    """Test and validation samples may be anything; a training sample counts."""

    def hello(poison: str) -> object:
        def poisoned(number: int, data: Dataset) -> Dataset:
            parts = dict(zip(("train", "validation", "test"), own_split(agreed("fedavg"), data, number), strict=True))
            inputs = data.inputs[:]
            if poison:
                inputs[parts[poison][:1]] = 1e7
            return replace(data, inputs=inputs)

        return together(tmp_path / (poison or "none"), poisoned).sites["site-a"].hello()["moments"]

    assert hello("test") == hello("") != hello("train")


def test_a_site_with_few_samples_tells_nothing_and_is_scaled_like_the_others(tmp_path: Path) -> None:
    few = together(tmp_path, lambda number, data: raw_data(number, 12) if number == 2 else data)
    assert few.sites["site-c"].hello() | {"moments": None, "samples": 9} == few.sites["site-c"].hello()
    few.run()
    alone = together(tmp_path / "two")
    alone.admit("site-a", "site-b")
    alone.server.open_round(["site-a", "site-b"])
    assert scaling_of(few.server.federation) == scaling_of(alone.server.federation)
    assert scaling_of(few.sites["site-c"].federation) == scaling_of(few.server.federation)


def test_one_site_alone_tells_the_others_nothing(tmp_path: Path) -> None:
    one = together(tmp_path)
    one.admit("site-b")
    with pytest.raises(CoterieError, match=r"scale = standard: 1 of 3 sites have the 10 training samples.*least 2"):
        one.server.open_round(["site-b"])


def test_who_comes_late_counts_no_more_and_nobody_scales_twice(tmp_path: Path) -> None:
    late = together(tmp_path)
    late.admit("site-a", "site-b")
    late.round("site-a", "site-b")
    fixed = scaling_of(late.server.federation)
    late.admit("site-c")
    late.sites["site-a"] = late.site("site-a")  # begins again, from its disk
    late.admit("site-a")
    late.round()
    assert scaling_of(late.server.federation) == fixed
    for number, name in enumerate(SITES):
        site = late.sites[name]
        assert scaling_of(site.federation) == fixed
        assert torch.equal(site.problem.inputs[:], AgreedScale(*torch.tensor(fixed))(raw_data(number).inputs[:]))
    usual = together(tmp_path / "again")
    usual.admit("site-a", "site-b")
    tasks = usual.server.open_round(["site-a", "site-b"])
    assert [name for name in tasks if SCALING in tasks[name].note["values"]] == ["site-a", "site-b"]  # once
    for name, task in tasks.items():
        usual.server.receive(name, usual.answer(name, task))
    usual.server.close_round()
    assert SCALING not in usual.server.open_round(["site-a"])["site-a"].note["values"]


def test_a_server_that_begins_again_and_a_new_version_keep_the_numbers(tmp_path: Path) -> None:
    from coterie.deployment.versions import carry_over

    first = together(tmp_path, rounds=4)
    first.admit()
    first.round()
    fixed, state = scaling_of(first.server.federation), dict(first.server.federation.state())
    again = Server(first.agreement)
    again.federation.restore(state)
    again.federation.round = 1
    for name in SITES[:2]:
        again.admit(first.sites[name].hello())
    task = again.open_round(["site-a"])["site-a"]
    assert scaling_of(again.federation) == fixed
    assert SCALING not in task.note["values"]
    longer = extended(first.agreement, add=["site-d"])
    after = Server(longer)
    carry_over(state, SITES, 1, longer, after.federation)
    assert scaling_of(after.federation) == fixed
    assert SCALING in after._task(3, []).note["values"]  # the newcomer is told
    with pytest.raises(CoterieError, match="term = scale: cannot change"):
        extended(first.agreement, terms={"scale": ""})


@pytest.mark.parametrize(
    "told",
    [
        None,
        {"means": [0.0] * 6},
        {"means": [0.0] * 5, "deviations": [1.0] * 6},
        {"means": [0.0] * 6, "deviations": [-1.0] * 6},
        {"means": [1e300] * 6, "deviations": [1.0] * 6},
        {"means": ["1"] * 6, "deviations": [1.0] * 6},
        {"means": [True] * 6, "deviations": [1.0] * 6},
    ],
)
def test_what_cannot_be_meant_is_refused(told: object, tmp_path: Path) -> None:
    odd = together(tmp_path)
    hello = odd.sites["site-a"].hello()
    odd.server.admit(hello)
    with pytest.raises(RefusedError, match="site-a"):
        odd.server.admit(hello | {"moments": told})


def test_a_task_with_an_impossible_scale_is_refused(tmp_path: Path) -> None:
    odd = together(tmp_path)
    odd.admit()
    task = odd.server.open_round(list(SITES))["site-a"]
    key = f"value.{SCALING}"
    for wrong in (torch.zeros(2, 6), torch.full((2, 6), -1.0)):
        with pytest.raises(RefusedError, match="does not say how columns are scaled"):
            odd.sites["site-a"].work(Parcel(task.tensors | {key: wrong}, task.note))
    with pytest.raises(CoterieError, match="it is not scaled"):  # of data beyond what was agreed on
        odd.sites["site-a"].work(Parcel(task.tensors | {key: torch.full((2, 6), 1e-9)}, task.note))


def test_the_weight_of_a_site_is_bounded_here_too(tmp_path: Path) -> None:
    plain, bounded = together(tmp_path / "a", most_weight=0), together(tmp_path / "b", most_weight=1)
    for one in (plain, bounded):
        one.admit()
        one.server.open_round(list(SITES))
    means = torch.tensor([one["means"] for name in SITES if (one := plain.sites[name].hello()["moments"])])
    sizes = torch.tensor([17.0, 23.0, 13.0])  # three quarters of what each has
    torch.testing.assert_close(
        plain.server.federation.values[SCALING][0], (sizes @ means / 53).float(), rtol=1e-5, atol=0
    )
    sizes[1] = 17  # as the median site
    torch.testing.assert_close(
        bounded.server.federation.values[SCALING][0], (sizes @ means / 47).float(), rtol=1e-5, atol=0
    )


def test_what_is_no_table_or_promised_is_refused() -> None:
    with pytest.raises(CoterieError, match=r"scale = standard: is for columns of numbers, and shape = \[1, 8, 8\]"):
        agreed("fedavg", scale="standard", shape=(1, 8, 8))
    with pytest.raises(CoterieError, match="scale = range: must be standard, or left out; lowest and highest values"):
        agreed("fedavg", scale="range")
    with pytest.raises(CoterieError, match="not accounted for where privacy is promised"):
        agreed("fedavg", scale="standard", privacy="client")
    assert Agreement.parse({"name": "x", "sites": ["a"], "shape": [3], "classes": 2, "scale": "standard"}).scale


def test_a_dry_run_shows_it_and_the_page_says_it(tmp_path: Path) -> None:
    dry_run(agreed("fedavg", scale="standard", least_sites=1), "site-a", raw_data(0), tmp_path)
    told = json.loads((tmp_path / "hello.json").read_text())["moments"]
    assert {part: len(numbers) for part, numbers in told.items()} == {"means": 6, "deviations": 6}
    page = Path(__file__).parents[2] / "docs" / "what-leaves-a-site.md"
    words = " ".join(page.read_text(encoding="utf-8").split())
    assert "the mean and the deviation of each column over its training samples" in words
