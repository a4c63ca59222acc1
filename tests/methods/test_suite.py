"""What every method must do, whatever it is: a method that is added to the registry is tested here at once."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from coterie.client.recipe import measures
from coterie.core.columns import Columns
from coterie.core.downloads import owed
from coterie.core.exchange import Action, Mix, Uploads
from coterie.core.federation import Federation
from coterie.core.mixing import uniform
from coterie.deployment.agreement import Agreement
from coterie.deployment.messages import Packed
from coterie.deployment.server import Report
from coterie.deployment.site import Site
from coterie.deployment.store import Store
from coterie.deployment.wire import Parcel, pack
from coterie.engines import Trained, Work
from coterie.errors import CoterieError
from coterie.methods import METHODS, FedPer, Method
from coterie.models import build
from coterie.partition import Partition
from coterie.rng import stream_seed
from coterie.rounds.delivery import as_delivered
from coterie.rounds.listeners import RoundReport
from coterie.rounds.round import Rounds
from coterie.runs.experiment import Experiment, experiment_from
from coterie.runs.run import Run
from coterie.runs.tensors import load_tensors
from coterie.setup.config import complete
from coterie.testing import METHOD_CHECKS
from coterie.testing.together import Together, agreed, simulated, site_data
from coterie.testing.toys import seeded, toy_data, toy_partition
from listening import EachRound
from support import MODELS as TOY_MODELS
from support import Recording, final_rows, rows_of, tiny

pytestmark = pytest.mark.thorough

NAMES = sorted(METHODS)
ROUNDS, CLIENTS = 3, 4


@cache
def mlp() -> torch.nn.Module:
    torch.manual_seed(stream_seed(0, "model"))
    return build("mlp", (6,), 3, hidden=[8])


def experiment(name: str, model: str = "mlp", **options: Any) -> Experiment:
    """Three rounds on toy data with validation samples for the methods that want some."""
    module = mlp() if model == "mlp" else seeded(TOY_MODELS[model])
    data = options.pop("data", None) or toy_data(180)
    partition = options.pop("partition", None) or with_validation(toy_partition(data, options.pop("clients", CLIENTS)))
    return tiny(METHODS[name](), module, data=data, partition=partition, **{"rounds": ROUNDS, "batch": 16, **options})


def with_validation(partition: Partition) -> Partition:
    """The last samples of each client's training part become its validation part."""
    cuts = [max(1, len(train) // 5) for train in partition.train]
    return Partition(
        train=tuple(train[:-cut] for train, cut in zip(partition.train, cuts, strict=True)),
        validation=tuple(train[-cut:] for train, cut in zip(partition.train, cuts, strict=True)),
        test=partition.test,
    )


class Watched:
    """A run with what happened in each round."""

    def __init__(self, one: Experiment, out: Path | None = None) -> None:
        self.reports: list[RoundReport] = []
        self.result: Run = one.run(out, [EachRound(self.reports.append)])


@cache
def standard(name: str, model: str, join: float, clients: int) -> Watched:
    return Watched(experiment(name, model, join=join, clients=clients))


# What authors check their methods with; the engines' agreement is tested engine by engine.
@pytest.mark.parametrize("check", [check for check in METHOD_CHECKS if check != "engines"])
@pytest.mark.parametrize("name", NAMES)
def test_a_method_keeps_what_all_methods_promise(name: str, check: str) -> None:
    METHOD_CHECKS[check](METHODS[name]())


@pytest.mark.parametrize("name", NAMES)
def test_training_improves_the_loss(name: str) -> None:
    """After more rounds the clients' own models are better than the one they started from."""
    one = experiment(name, "norm", rounds=4, epochs=2)
    ready = one.prepare()
    result = one.run()
    start = Watched(experiment("local", "norm", rounds=1, lr=1e-9)).reports[0].received
    assert start is not None
    assert ready.partition == result.prepared.partition
    losses = np.array(result.lines[-1].trained.values["loss"], float)
    assert np.mean(losses) < np.mean(start.loss)


@pytest.mark.parametrize("name", NAMES)
def test_saved_rows_load(name: str, tmp_path: Path) -> None:
    result = experiment(name, "norm", join=0.5).run(tmp_path / "run")
    saved, metadata = load_tensors(tmp_path / "run" / "rows.safetensors")
    assert json.loads(metadata["layout"])["round"] == ROUNDS
    federation = result.prepared.federation()
    federation.restore(saved)
    for slot in result.federation.slots:
        found, expected = rows_of(federation, slot), rows_of(result.federation, slot)
        assert torch.equal(found, expected)
    assert federation.values.keys() == result.federation.values.keys()


@pytest.mark.parametrize("model", ["mlp", "norm"])
@pytest.mark.parametrize("name", NAMES)
def test_a_clients_model_reproduces_its_recorded_accuracy(name: str, model: str) -> None:
    result = standard(name, model, 0.5, CLIENTS).result
    method = result.prepared.method
    if type(method).predict is not Method.predict or method.tune(result.federation):
        pytest.skip("predicts in a way of its own")
    problem = result.prepared.problem()
    for client, index in enumerate(problem.test):
        module = result.model(client)
        with torch.no_grad():
            right = module(problem.inputs[index]).argmax(1) == problem.labels[index]
        assert float(right.double().mean()) == pytest.approx(result.accuracy().received.by_client[client])


@pytest.mark.parametrize("name", NAMES)
def test_only_what_is_declared_is_read(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever lies outside the declared uploads may be anything: the server step must not depend on it."""
    kind = METHODS[name]
    original = kind.exchange

    def spoiling(self: Method, uploads: Uploads) -> Iterable[Action]:
        spoiled = {}
        for slot, rows in uploads.trained.items():
            held = uploads.federation[slot].columns
            hidden = held - uploads.declared.get(slot, Columns())
            copy = rows.clone()
            hidden.within(held).put(copy, torch.full((len(copy), hidden.size), torch.nan))
            spoiled[slot] = copy
        unseen = Uploads(uploads.federation, uploads.cohort, spoiled, uploads.declared, uploads.measured)
        return list(original(self, unseen))

    expected = standard(name, "norm", 0.5, CLIENTS).result
    monkeypatch.setattr(kind, "exchange", spoiling)
    found = experiment(name, "norm", join=0.5).run()
    assert torch.equal(final_rows(found), final_rows(expected))


class Declaring(Recording):
    """Keeps what the clients were to send and what they are sent, too."""

    def train(self, federation: Federation, work: Work, cohort: Tensor) -> Trained:
        self.uploads = dict(self.worker.method.uploads(federation))
        self.measured = [measure.name for measure in measures(work.recipe) if not measure.keep]
        self.received = [owed(federation, client) for client in cohort.tolist()]
        self.peers = sum(map(len, work.peers.values()))
        return super().train(federation, work, cohort)


def declaring(name: str) -> tuple[Rounds, Declaring]:
    one = experiment(name, "norm", join=0.5)
    ready = one.prepare()
    engine = Declaring(ready.problem(), ready.method, one.seed)
    return ready.rounds(engine), engine


@pytest.mark.parametrize("name", NAMES)
def test_bytes_are_those_of_what_travels(name: str) -> None:
    rounds, engine = declaring(name)
    federation = rounds.federation

    def size(slots: dict[str, Columns]) -> int:
        for slot, columns in slots.items():
            assert columns <= federation[slot].columns, f"more of '{slot}' travels than the slot holds"
        return sum(4 * columns.size for columns in slots.values())

    total = {"up": 0, "down": 0}
    mixed = False
    for _ in range(ROUNDS):
        report = rounds.run_round()
        up = {slot: federation.layout.columns(group) for slot, group in engine.uploads.items()}
        sent = sum(bytes_of(engine.trained.measured[key][0]) for key in engine.measured)
        assert report.bytes["up"] == len(report.cohort) * (size(up) + sent)
        models = engine.peers * 4 * up.get("model", Columns()).size
        told = sum(bytes_of(federation.value_of(key, 0)) for due in engine.received for key in due.values)
        assert report.bytes["down"] == models + told + sum(size(dict(due.slots)) for due in engine.received)
        total = {way: total[way] + report.bytes[way] for way in total}
        mixed = mixed or bool(report.mixes)
    if mixed:
        assert total["up"] > 0
        assert total["down"] > 0


def bytes_of(value: Tensor) -> int:
    return math.ceil(value.numel() / 8) if value.dtype == torch.bool else value.numel() * value.element_size()


FOUR = ("site-a", "site-b", "site-c", "site-d")
DATAS = {name: site_data(number, 17 + 6 * number) for number, name in enumerate(FOUR)}


class Carried(Together):
    """Four sites; what their tasks weigh as they travel, round by round."""

    def __init__(self, agreement: Agreement, folder: Path) -> None:
        super().__init__(agreement, folder)
        self.down: list[int] = []

    def site(self, name: str) -> Site:
        store = Store(self.folder, self.agreement.name, name, self.agreement.fingerprint)
        return Site(self.agreement, name, DATAS[name], store)

    def answer(self, name: str, task: Parcel) -> Packed:
        self.down[-1] += pack(task).bytes
        return super().answer(name, task)

    def round(self, *present: str, silent: tuple[str, ...] = ()) -> Report:
        self.down.append(0)
        return super().round(*present, silent=silent)


@pytest.mark.parametrize("name", NAMES)
def test_the_ledger_counts_what_packed_messages_carry(name: str, tmp_path: Path) -> None:
    """Sites hold nothing but what they kept and were sent, and end where the simulation ends: no byte was missing."""
    six = replace(agreed(METHODS[name](), rounds=6, epochs=1, join=0.5, validation=0.2), sites=FOUR)
    together = Carried(six, tmp_path)
    together.run()
    serial = simulated(six, list(DATAS.values())).run()
    lines = serial.lines
    assert [[FOUR.index(site) for site in report.asked] for report in together.reports] == [
        line.cohort for line in lines
    ]
    assert together.down == [line.bytes.down for line in lines]
    assert [report.bytes["up"] for report in together.reports] == [line.bytes.up for line in lines]
    late = {client for line in lines[1:] for client in line.cohort} - set(lines[0].cohort)
    assert late, "somebody comes for the first time after an exchange"
    everyone, tested = serial.federation.everyone, six.kind.tested
    with as_delivered(six.kind, serial.federation, everyone):
        for client, site in enumerate(FOUR):
            mine = together.sites[site].federation[tested].rows(everyone[client : client + 1])
            theirs = serial.federation[tested].rows(everyone[client : client + 1])
            torch.testing.assert_close(mine, theirs, atol=1e-6, rtol=0, msg=site)


@pytest.mark.parametrize("name", NAMES)
def test_what_everybody_knows_does_not_come_down_in_the_first_round(name: str) -> None:
    """Initial rows and values are common; what depends on others is told, and is all that comes."""
    one = experiment(name, "norm", rounds=1)
    federation = one.prepare().federation()
    told = [key for key, marks in federation.value_marks.items() if bool(marks.any())]
    (line,) = one.run().lines
    assert line.bytes.down == CLIENTS * sum(bytes_of(federation.value_of(key, 0)) for key in told)
    assert told == (["shares"] if name == "apple" else [])


@pytest.mark.parametrize("name", NAMES)
def test_clients_that_sit_out_keep_all_but_what_they_are_owed(name: str) -> None:
    """Whatever a client holds changes in a round in which it takes part, or comes to it by a download."""
    rounds, _ = declaring(name)
    federation = rounds.federation
    held = {key: slot for key, slot in federation.slots.items() if slot.held_by != "server"}
    values = [key for key, kind in federation.kinds.items() if kind.held_by != "server"]
    for _ in range(ROUNDS):
        before = {key: rows_of(federation, key) for key in held}
        known = {key: [federation.value_of(key, k).clone() for k in range(CLIENTS)] for key in values}
        report = rounds.run_round()
        for client in set(range(CLIENTS)) - set(report.cohort):
            due = owed(federation, client)
            for key, slot in held.items():
                kept = (slot.columns - due.slots.get(key, Columns())).within(slot.columns)
                assert torch.equal(kept.take(rows_of(federation, key)[client]), kept.take(before[key][client])), key
            for key in set(values) - set(due.values):
                now = federation.value_of(key, client)
                assert torch.equal(now.nan_to_num(), known[key][client].nan_to_num()), key


@pytest.mark.parametrize("name", NAMES)
def test_a_value_with_a_row_for_every_client_says_so(name: str) -> None:
    """Otherwise it would be handed to newcomers as it is. Nothing else here has thirteen rows."""
    federation = experiment(name, clients=13).prepare().federation()
    for key, value in federation.values.items():
        if value.shape[:1] == (13,):
            assert federation.kinds[key].per_client or federation.kinds[key].told, key


@dataclass(frozen=True)
class Eavesdropper(FedPer):
    """Uploads extractors; the server step wants classifiers all the same."""

    way: str = "mix"

    def init(self, federation: Federation) -> None:
        federation.add_slot("diary", "classifier", held_by="client")
        federation.add_value("secret", torch.zeros(federation.clients), per_client=True, held_by="client")

    def deliver(self, federation: Federation, clients: Tensor) -> Iterable[Mix]:
        if self.way == "deliver" and federation.round > 1:
            yield Mix(uniform(federation.clients), "classifier", source="model")

    def exchange(self, uploads: Uploads) -> Iterable[Action]:
        federation = uploads.federation
        yield from super().exchange(uploads)
        if self.way == "mix":
            yield Mix(uniform(federation.clients), "classifier", source="model", to="everyone")
        elif self.way == "upload":
            yield Mix(uniform(len(uploads.cohort)), "classifier")
        elif self.way == "rows":
            federation["model"].rows(federation.everyone, federation.layout.columns("classifier"))
        elif self.way == "slot":
            yield Mix(uniform(federation.clients), "classifier", source="diary", to="everyone")
        elif self.way == "value":
            federation.values["secret"].sum()
        elif self.way == "strangers":
            # Those who never trained hold what everybody began with.
            weights = (~federation.taken_part).double()[None]
            yield Mix(weights / weights.sum(), "classifier", source="model", to="everyone")


@pytest.mark.parametrize(
    ("way", "words"),
    [
        ("mix", "slot 'model' of client [0-3] is read on the server, but what the client trained of it is not among"),
        ("rows", "slot 'model' of client [0-3] is read on the server, but what the client trained of it is not among"),
        ("deliver", "slot 'model' of client [0-3] is read on the server, but what the client trained of it is not"),
        ("upload", "'.*' of slot 'model' was read on the server but is not among the uploads"),
        ("slot", "slot 'diary' is held by clients alone, but is read on the server; upload it"),
        ("value", "value 'secret' is held by clients alone, but is read on the server; measure and send it"),
    ],
)
def test_a_server_step_that_reads_what_never_travelled_is_refused(way: str, words: str) -> None:
    with pytest.raises(CoterieError, match=rf"\A[^\n]*{words}[^\n]*\Z"):
        tiny(Eavesdropper(way), join=0.5).run()


def test_rows_that_never_changed_may_be_read() -> None:
    result = tiny(Eavesdropper("strangers"), join=0.5, rounds=1).run()
    head = result.federation.layout.columns("classifier")
    assert torch.equal(head.take(final_rows(result)), head.take(result.federation.initial).expand(CLIENTS, -1))


@pytest.mark.parametrize("name", NAMES)
def test_a_method_is_a_value(name: str) -> None:
    """Its options are all there is to it: equal options, equal method, and a configuration that repeats it."""
    method = METHODS[name]()
    assert method == METHODS[name]()
    assert hash(method) == hash(METHODS[name]())
    assert experiment_from(complete(Experiment(method=method))).method == method
    assert (METHODS[name].__doc__ or "").strip()
    with pytest.raises(CoterieError, match="unknown option"):
        experiment_from({"method": name, "set": {"no_such_option": 1}})
