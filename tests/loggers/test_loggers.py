"""Loggers: what they write is read back by those that it is for; resumed runs have no point twice."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from PIL import Image

import coterie as ct
from coterie.cli import main
from coterie.loggers.contents import as_image, client_order, matrices, scalars
from coterie.loggers.tensorboard import TensorBoard
from coterie.loggers.wandb import WandB
from coterie.report.html import light_colours
from coterie.report.learning import learning_matrix
from coterie.rounds.listeners import Listener, Outcome, RoundReport, Start
from coterie.runs.run import Run
from listening import EachRound, power_cut
from support import eventually, tiny


def events(folder: Path) -> Any:
    """A run's events, as TensorBoard itself reads them."""
    reading = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    found = reading.EventAccumulator(str(folder), size_guidance=dict.fromkeys(reading.DEFAULT_SIZE_GUIDANCE, 0))
    found.Reload()
    return found


def steps(folder: Path, name: str = "received/accuracy") -> list[int]:
    return [point.step for point in events(folder).Scalars(name)]


def fedrema(**options: Any) -> ct.Experiment:
    return tiny(ct.FedReMa(delta=0), **options)


def scores(result: Run, moment: str = "received") -> list[float]:
    return [line.told(moment).mean for line in result.lines]


def test_tensorboard_reads_what_a_run_wrote(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    result = fedrema(validation=None).run(tmp_path / "run", ["tensorboard"])
    found = events(tmp_path / "run" / "tensorboard")
    for moment in ("received", "trained"):
        points = found.Scalars(f"{moment}/accuracy")
        assert [point.step for point in points] == [1, 2, 3]
        assert [point.value for point in points] == pytest.approx(scores(result, moment))
        clients = found.Histograms(f"{moment}/accuracy_of_clients")[-1].histogram_value
        newest = result.numbers.newest("received" if moment == "received" else "trained")
        assert newest is not None
        assert (clients.num, clients.min, clients.max) == (4, newest.judged.min(), newest.judged.max())
    assert [point.value for point in found.Scalars("bytes/up")] == [line.bytes.up for line in result.lines]
    assert {"received/loss", "received/accuracy_worst_decile", "seconds/train"} <= {*found.Tags()["scalars"]}
    (image,) = found.Images("mixing/classifier_into_model")  # of the last round alone: there are fewer than ten
    pixels = np.asarray(Image.open(io.BytesIO(image.encoded_image_string)))
    assert pixels.shape == (240, 240, 3)
    wanted = learning_matrix([mix for mix in result.mixes(3) if mix.group == "classifier"], clients=4)
    assert np.array_equal(pixels, as_image(wanted, client_order(start_of(result))))


def start_of(result: Run) -> Start:
    names = result.prepared.partition.names
    return Start("fedrema", names, 3, 1, result.federation, result.prepared)


def test_a_resumed_run_has_no_point_twice_in_tensorboard(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    run, options = tmp_path / "run", {"rounds": 5, "checkpoint_every": 2}
    with power_cut(run, round=3) as kill:
        fedrema(**options).run(run, [TensorBoard(), *kill])
    assert steps(run / "tensorboard") == [1, 2, 3]  # the third is lost with the power, and comes again
    result = ct.resume(run, ["tensorboard"], experiment=fedrema(**options))
    assert steps(run / "tensorboard") == [1, 2, 3, 4, 5]
    values = [point.value for point in events(run / "tensorboard").Scalars("received/accuracy")]
    assert values == pytest.approx(scores(result))


def test_runs_without_a_directory_have_a_folder_each(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    for _ in range(2):
        tiny(rounds=1).run(listeners=[TensorBoard(tmp_path, images_every=0)])
    assert [steps(tmp_path / f"fedavg-{number}") for number in (1, 2)] == [[1], [1]]
    assert not events(tmp_path / "fedavg-1").Tags()["images"]
    with pytest.raises(ct.CoterieError, match=r"say where to write: TensorBoard\('folder'\), or run with out"):
        tiny().run(listeners=["tensorboard"])


@pytest.mark.parametrize(
    ("listener", "module", "way"),
    [(TensorBoard, "torch.utils.tensorboard", "coterie[tensorboard]"), (WandB, "wandb", "coterie[wandb]")],
)
def test_an_extra_that_is_missing_is_named(
    listener: type[Listener], module: str, way: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ct.CoterieError, match="not installed: pip install") as error:
        tiny().run(tmp_path / "run", [listener])
    assert way in str(error.value)
    assert not (tmp_path / "run").exists()


@pytest.mark.thorough
def test_comparisons_and_sweeps_log_every_run(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    few = ("--clients", "3", "--rounds", "2", "--epochs", "1", "--threads", "1", "--jobs", "1")
    listener = ("--listener", "tensorboard")
    assert main(["compare", "local", "fedavg", *few, "--seeds", "0", *listener, "--out", str(tmp_path / "cmp")]) == 0
    assert [steps(tmp_path / "cmp" / f"{name}-s0" / "tensorboard") for name in ("local", "fedavg")] == [[1, 2]] * 2
    sweep = ["sweep", "fedavg", "--grid", "lr=0.01,0.1", *few, *listener, "--out", str(tmp_path / "s")]
    assert main(sweep) == 0
    # One is given up after its first round; the other goes on where it was, and no point is there twice.
    found = [steps(folder / "tensorboard") for folder in (tmp_path / "s").iterdir() if folder.is_dir()]
    assert sorted(found) == [[1], [1, 2]]


@pytest.mark.slow
@pytest.mark.processes
def test_runs_in_workers_are_logged_too(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    few: dict[str, Any] = {"rounds": 2, "epochs": 1, "partition": ct.Iid(clients=3)}
    pair = {name: ct.Experiment(name, **few) for name in ("local", "fedavg")}
    ct.compare(pair, seeds=[0], out=tmp_path / "cmp", jobs=2, listeners=["tensorboard"])
    assert [steps(tmp_path / "cmp" / f"{name}-s0" / "tensorboard") for name in pair] == [[1, 2]] * 2


@pytest.mark.thorough
def test_resume_takes_listeners_on_the_command_line(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    run = tmp_path / "run"
    few: dict[str, Any] = {"rounds": 3, "epochs": 1, "partition": ct.Iid(clients=3), "threads": 1}
    stop = EachRound(lambda report: report.stop("later") if report.round == 2 else None)
    ct.Experiment("fedavg", **few).run(run, ["tensorboard", stop])
    assert main(["resume", str(run), "--listener", "tensorboard"]) == 0
    assert steps(run / "tensorboard") == [1, 2, 3]


class FakeWandb(SimpleNamespace):
    """Weights & Biases as far as the listener uses it: keeps what it is told."""

    def __init__(self) -> None:
        super().__init__(Histogram=list, Image=np.asarray, begun=[], told=[], ended=[])

    def init(self, **options: Any) -> Any:
        self.begun.append(options)
        name = options["id"] or f"run{len(self.begun)}"
        return SimpleNamespace(id=name, log=lambda what, step: self.told.append((name, step, what)), finish=self.finish)

    def finish(self, exit_code: int) -> None:
        self.ended.append(exit_code)


def test_wandb_is_told_every_round_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeWandb()
    monkeypatch.setitem(sys.modules, "wandb", fake)
    monkeypatch.delenv("WANDB_PROJECT", raising=False)
    run, options = tmp_path / "run", {"rounds": 5, "checkpoint_every": 2}
    with power_cut(run, round=3) as kill:
        fedrema(**options).run(run, [WandB(mode="offline"), *kill])
    result = ct.resume(run, ["wandb"], experiment=fedrema(**options))
    assert [(name, step) for name, step, _ in fake.told] == [("run1", step) for step in (1, 2, 3, 4, 5)]
    assert [what["received/accuracy"] for _, _, what in fake.told] == pytest.approx(scores(result))
    first, second = fake.begun
    assert (first["id"], first["resume"], first["mode"], first["project"]) == (None, None, "offline", "coterie")
    assert (second["id"], second["resume"], second["name"]) == ("run1", "allow", "run")
    assert first["config"]["set"]["delta"] == 0.0
    assert [name for name in fake.told[-1][2] if name.startswith("mixing/")] == [
        "mixing/extractor_into_model",
        "mixing/classifier_into_model",
    ]
    assert fake.ended == [1, 0]  # the power cut was an error
    # A note that is damaged begins anew.
    (run / "wandb.json").write_text("{", encoding="utf-8")
    ct.resume(run, [WandB("mine")], rounds=6, experiment=fedrema(**options))
    assert (fake.begun[2]["id"], fake.begun[2]["project"]) == (None, "mine")


def records(file: Path) -> list[Any]:
    """What stands in a file that Weights & Biases keeps of a run offline, as far as it is written."""
    from wandb.proto.wandb_internal_pb2 import Record
    from wandb.sdk.internal.datastore import DataStore

    found = []
    store = DataStore()
    try:
        store.open_for_scan(str(file))
        while (data := store.scan_data()) is not None:
            record = Record()
            record.ParseFromString(data)
            found.append(record)
    except AssertionError:  # its reader found half a record
        pass
    finally:
        store.close()
    return found


@pytest.mark.slow
@pytest.mark.processes
def test_wandb_keeps_a_run_offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_SILENT", "true")
    monkeypatch.setenv("WANDB_MODE", "offline")
    run = tmp_path / "run"
    stop = EachRound(lambda report: report.stop("later") if report.round == 2 else None)
    fedrema().run(run, ["wandb", stop])
    result = ct.resume(run, ["wandb"], experiment=fedrema())
    found: dict[int, float] = {}
    files = sorted(run.glob("wandb/offline-run-*/*.wandb"))
    names = {file.name for file in files}
    assert len(files) == 2
    for file in files:
        # A process of its own writes it, and is not waited for by whoever ends a run: "exit" is its last record.
        assert eventually(lambda file=file: any(record.HasField("exit") for record in records(file)))
        for record in records(file):
            if record.HasField("history"):
                items = {item.key or "/".join(item.nested_key): item.value_json for item in record.history.item}
                assert record.history.step.num not in found
                found[record.history.step.num] = json.loads(items["received/accuracy"])
    assert len(names) == 1  # both sessions have one id
    assert found == pytest.approx(dict(zip((1, 2, 3), scores(result), strict=True)))


def test_rounds_that_were_not_tested_have_costs_alone() -> None:
    report = RoundReport(1, cohort=[0], bytes={"up": 3, "down": 4}, seconds={"train": 0.5})
    assert scalars(report) == {"bytes/up": 3.0, "bytes/down": 4.0, "seconds/train": 0.5, "clients/diverged": 0.0}
    assert matrices(report, clients=3) == {}


def test_images_have_a_colour_for_who_took_no_part() -> None:
    image = as_image(np.full((3, 3), np.nan), [2, 1, 0])
    assert image.shape == (240, 240, 3)
    assert {tuple(pixel) for pixel in image.reshape(-1, 3).tolist()} == {
        tuple(bytes.fromhex(light_colours()["absent"][1:]))
    }
    many = as_image(np.eye(500), range(500))
    assert many.shape == (500, 500, 3)


def test_tasks_without_classes_are_logged(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    few: dict[str, Any] = {"rounds": 1, "epochs": 1, "partition": ct.Iid(clients=3), "threads": 1}
    ct.Experiment("fedavg", "diabetes", **few).run(tmp_path / "run", ["tensorboard"])
    assert steps(tmp_path / "run" / "tensorboard", "received/rmse") == [1]


def test_a_listener_that_never_began_can_end() -> None:
    pytest.importorskip("tensorboard")
    TensorBoard("nowhere").end(Outcome(0))
