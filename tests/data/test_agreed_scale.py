"""Columns on one scale: its numbers are those of all training samples together, and go wherever a model goes."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from coterie import Dataset, Experiment, from_arrays, load_model, open_run, resume
from coterie.cli import main
from coterie.data.scaling import AgreedScale, Moments, scaled
from coterie.errors import CoterieError
from coterie.partition import Iid, Partition, Split
from coterie.rounds.listeners import StopAfter
from coterie.serve.export import FORMATS, export_client
from coterie.serve.model import predict

SETTINGS: dict[str, Any] = {"rounds": 2, "epochs": 1, "batch": 8, "threads": 1}


def table(seed: int = 0, size: int = 90) -> Dataset:
    """Three columns: one in millions, one that never changes, one in fractions that tells the classes apart."""
    stream = np.random.default_rng(seed)
    labels = np.arange(size) % 2
    columns = [
        stream.normal(5e6, 1e6, size),
        np.full(size, 0.1),
        stream.normal(0.004, 0.0005, size) + 0.002 * labels,
    ]
    return replace(from_arrays(np.stack(columns, 1), labels), feature_names=("income", "site", "rate"))


def test_merged_moments_are_those_of_all_samples_by_hand() -> None:
    """Of 1, 3 and of 8, 8, 10: means 2 and 26/3; together 6, with squared deviations 25 + 9 + 4 + 4 + 16."""
    both = Moments.of(torch.tensor([[1.0], [3.0]])).merged(Moments.of(torch.tensor([[8.0], [8.0], [10.0]])))
    assert (both.count, both.means.tolist(), both.squares.tolist()) == (5, [6.0], pytest.approx([58.0]))
    assert both.deviations.tolist() == pytest.approx([(58 / 5) ** 0.5])
    nothing = Moments.of(torch.empty(0, 1))
    for one in (nothing.merged(both), both.merged(nothing)):
        assert (one.count, one.means.tolist(), one.squares.tolist()) == (both.count, [6.0], both.squares.tolist())
    assert nothing.merged(nothing).count == 0


def test_merging_keeps_digits_where_a_mean_is_large_beside_its_deviation() -> None:
    """Sums of squares in the same precision, E[x²] − E[x]², are wrong from the fourth digit on."""
    values = torch.tensor([16_000_000.0 + number % 3 for number in range(3000)])[:, None]
    merged = Moments.of(values[:7])
    for begin in range(7, 3000, 41):
        merged = merged.merged(Moments.of(values[begin : begin + 41]))
    assert merged.count == 3000
    assert float(merged.deviations[0]) == pytest.approx((2 / 3) ** 0.5, rel=1e-9)
    exact = values.double().numpy()
    assert abs(np.mean(exact**2) - np.mean(exact) ** 2 - 2 / 3) > 1e-3


@pytest.mark.parametrize("scale", ["standard", "range"])
def test_any_division_among_clients_gives_the_numbers_of_the_whole(scale: str) -> None:
    data, stream = table(), np.random.default_rng(1)
    whole, pooled = data.inputs.double().numpy(), scaled(data, scale, [np.arange(90)])[1]
    if scale == "standard":
        shift, divisor = whole.mean(0), whole.std(0)
    else:
        shift, divisor = (whole.max(0) + whole.min(0)) / 2, (whole.max(0) - whole.min(0)) / 2
    divisor[1] = 1  # never changes
    np.testing.assert_allclose(pooled.shift.numpy(), shift, rtol=1e-6)
    np.testing.assert_allclose(pooled.divisor.numpy(), divisor, rtol=1e-6)
    for _ in range(5):
        parts = np.split(stream.permutation(90), np.sort(stream.choice(91, 4)))  # some may be empty
        np.testing.assert_allclose(scaled(data, scale, parts)[1].divisor.numpy(), divisor, rtol=1e-6)
    found = scaled(data, scale, [np.arange(90)])[0].inputs
    assert bool(torch.isfinite(found).all())
    assert float(found[:, 1].abs().max()) < 1e-6  # it stays what it is: nothing


def test_what_is_new_in_a_column_that_never_changed_stays_finite() -> None:
    scaling = AgreedScale.standard(Moments.of(torch.full((1000, 1), 0.1)))
    assert scaling.divisor.tolist() == [1.0]
    assert scaling(torch.tensor([[1.1]])).tolist() == [[pytest.approx(1.0)]]


def divided(data: Dataset) -> Partition:
    return Iid(clients=4)(data, 0, Split(test=0.25, validation=0.25)).with_held_out(1, 0)


@pytest.mark.parametrize("scale", ["standard", "range"])
def test_only_training_samples_of_those_who_take_part_are_counted(scale: str) -> None:
    """Whatever else the data hold may be anything: the numbers stay the same, bit for bit."""
    data = table()
    part = divided(data)
    counted = np.concatenate([own for client, own in enumerate(part.train) if client not in part.held_out])
    others = np.setdiff1d(np.arange(len(data)), counted)
    assert len(part.held_out) == 1
    assert len(others) > len(part.train[part.held_out[0]]) > 0

    def scaling(poisoned: np.ndarray) -> AgreedScale:
        inputs = data.inputs.clone()
        inputs[torch.from_numpy(poisoned)] = 1e9
        prepared = Experiment("fedavg", replace(data, inputs=inputs), part, scale=scale, **SETTINGS).prepare()
        assert prepared.scaling is not None
        assert torch.equal(prepared.problem_base.inputs, prepared.scaling(inputs))  # newcomers' samples too, once
        return prepared.scaling

    usual = scaling(others[:0]).plain()
    assert scaling(others).plain() == usual
    assert scaling(counted[:1]).plain() != usual


def test_a_raw_table_is_learned_once_it_is_scaled() -> None:
    settings = {**SETTINGS, "rounds": 6, "lr": 0.1}
    raw = Experiment("fedavg", table(), Iid(clients=3), scale="none", **settings)
    standard = Experiment("fedavg", table(), Iid(clients=3), scale="standard", **settings)
    assert standard.run().accuracy().received.mean["last"] > 0.9 > 0.7 > raw.run().accuracy().received.mean["last"]


@pytest.mark.thorough
def test_every_way_to_a_prediction_scales_once(tmp_path: Path) -> None:
    data = table()
    result = Experiment("fedper", data, divided(data), scale="standard", **SETTINGS).run(tmp_path / "run")
    run, inputs = open_run(tmp_path / "run"), data.inputs[:9]
    assert run.about.data.scaling == result.about.data.scaling is not None
    scaling = AgreedScale.parse(run.about.data.scaling or {})
    with torch.no_grad():
        expected = run.models.bare(1)(scaling(inputs))
        assert float((expected - run.models.bare(1)(inputs)).abs().max()) > 1  # the scale is no small matter
        for found in (result.scores(1, inputs), run.scores(1, inputs), result.model(1)(inputs), run.model(1)(inputs)):
            assert torch.equal(found, expected)
    assert torch.equal(run.predict(1, inputs), expected.argmax(1))
    with (tmp_path / "new.csv").open("w", newline="") as file:  # in another order
        rows = [[rate, income, site] for income, site, rate in inputs.tolist()]
        csv.writer(file).writerows([("rate", "income", "site"), *rows])
    for format in FORMATS:
        path = tmp_path / f"it.{format}"
        assert export_client(run, 1, path, format).scaling == scaling.plain()
        with torch.no_grad():
            torch.testing.assert_close(load_model(path)(inputs), expected, atol=1e-5, rtol=1e-4)
        torch.testing.assert_close(predict(path, inputs)[1], expected.softmax(1), atol=1e-5, rtol=1e-4)
        main(["predict", str(path), str(tmp_path / "new.csv"), "--out", str(tmp_path / f"{format}.csv")])
        with (tmp_path / f"{format}.csv").open() as file:
            told = [int(row["predicted"]) for row in csv.DictReader(file)]
        assert told == expected.argmax(1).tolist()
    program = torch.export.load(tmp_path / "it.pt2").module()  # without Coterie too
    torch.testing.assert_close(program(inputs), expected, atol=1e-5, rtol=1e-4)


def test_a_method_with_a_model_beside_its_own_is_exported_with_the_scale(tmp_path: Path) -> None:
    data = table()
    result = Experiment("fedrod", data, Iid(clients=3), scale="range", **SETTINGS).run(tmp_path / "run")
    export_client(open_run(tmp_path / "run"), 2, tmp_path / "it.safetensors")
    with torch.no_grad():
        found = load_model(tmp_path / "it.safetensors")(data.inputs[:9])
    torch.testing.assert_close(found, result.scores(2, data.inputs[:9]))


def test_a_run_that_goes_on_has_the_same_numbers(tmp_path: Path) -> None:
    data = table()
    part = divided(data)

    def experiment() -> Experiment:
        return Experiment("fedper", data, part, scale="standard", **{**SETTINGS, "rounds": 3})

    whole = experiment().run(tmp_path / "whole")
    experiment().run(tmp_path / "run", listeners=[StopAfter(1)])
    again = resume(tmp_path / "run", experiment=experiment())
    assert again.about.data.scaling == whole.about.data.scaling
    assert torch.equal(again.rows(2)["model"], whole.rows(2)["model"])
    assert again.summary["newcomers"] == whole.summary["newcomers"]


def test_runs_of_other_scales_are_other_runs() -> None:
    def identity(scale: str) -> object:
        prepared = Experiment("fedavg", table(), Iid(clients=3), scale=scale, **SETTINGS).prepare()
        return prepared.identity

    assert identity("standard") == identity("standard")
    assert identity("standard") != identity("range")


def test_data_of_a_plug_in_whose_samples_have_owners(tmp_path: Path) -> None:
    """Natural clients come by the same way."""
    (tmp_path / "mine.py").write_text(
        "import numpy as np, coterie as ct\n"
        "def raw():\n"
        "    x = np.arange(60.0).reshape(30, 2) * [1, 1e5]\n"
        "    return ct.from_arrays(x, np.arange(30) % 2, owners=np.arange(30) % 3)\n"
    )
    found = Experiment("fedavg", f"{tmp_path}/mine.py:raw", scale="standard", **SETTINGS).prepare()
    assert found.scaling is not None
    assert found.partition.clients == 3


def test_what_is_no_table_is_refused() -> None:
    words = replace(table(), inputs=torch.ones(90, 3, dtype=torch.int64))
    for data, shape in (("digits", r"\(1, 8, 8\)"), (words, r"\(3,\) of whole numbers")):
        with pytest.raises(CoterieError, match=rf"scale = standard: is for columns of numbers, .*{shape}.*leave it"):
            Experiment("fedavg", data, scale="standard", **SETTINGS).prepare()
    with pytest.raises(CoterieError, match="scale = log: must be none, standard, range or published"):
        Experiment(scale="log")
    with pytest.raises(CoterieError, match="not accounted for where privacy is promised"):
        Experiment(scale="standard", privacy="client")


def test_ranges_are_warned_of_unless_somebody_chose(caplog: pytest.LogCaptureFixture) -> None:
    for scale, said in (("", 1), ("none", 0), ("standard", 0)):
        caplog.clear()
        Experiment("fedavg", table(), Iid(clients=3), scale=scale, **SETTINGS).prepare()
        assert len([one for one in caplog.messages if "scale = standard brings all to about -1" in one]) == said


def test_a_file_with_another_scaling_is_refused(tmp_path: Path) -> None:
    Experiment("fedavg", table(), Iid(clients=3), scale="standard", **SETTINGS).run(tmp_path / "run")
    export_client(open_run(tmp_path / "run"), 0, tmp_path / "it.safetensors")
    content = (tmp_path / "it.safetensors").read_bytes()
    size = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + size])
    for wrong in ({"shift": [0.0], "divisor": [1.0]}, {"shift": [0.0] * 3, "divisor": [1.0, 0.0, 1.0]}, {}):
        told = json.loads(header["__metadata__"]["coterie"]) | {"scaling": wrong}
        header["__metadata__"]["coterie"] = json.dumps(told)
        new = json.dumps(header).encode()
        (tmp_path / "odd.safetensors").write_bytes(len(new).to_bytes(8, "little") + new + content[8 + size :])
        with pytest.raises(CoterieError, match=r"its description is not that of a model \(scaling: "):
            load_model(tmp_path / "odd.safetensors")
