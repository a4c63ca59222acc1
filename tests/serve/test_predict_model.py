"""The file of a site's model predicts just what the site tested, for every method."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import nn

import coterie
from coterie.data import Dataset
from coterie.deployment.agreement import Agreement
from coterie.deployment.site import Site
from coterie.deployment.store import Store
from coterie.errors import CoterieError
from coterie.methods import METHODS, Ditto, FedBABU, FedBN, FedProto, FedRod, Method
from coterie.models import MODELS, build, own_model
from coterie.runs.tensors import load_tensors
from coterie.serve.model import SiteModel, export_model, load_model, predict
from coterie.serve.model_file import read_model
from coterie.testing.together import CLASSES, SITES, WIDTH, Together, agreed
from support import every_method

pytestmark = pytest.mark.thorough


class Pictures(Together):
    """Sites with small images, for models with batch norm."""

    def site(self, name: str) -> Site:
        number = self.agreement.sites.index(name)
        stream = torch.Generator().manual_seed(number)
        labels = torch.arange(20) % CLASSES
        inputs = torch.randn(20, *self.agreement.shape, generator=stream) + labels[:, None, None, None]
        store = Store(self.folder, self.agreement.name, name, self.agreement.fingerprint)
        return Site(self.agreement, name, Dataset(name, inputs, labels, CLASSES), store)


def assert_exports_are_what_was_tested(together: Together, folder: Path) -> None:
    found = together.run()
    for name, site in together.sites.items():
        file = folder / f"{name}.safetensors"
        about = export_model(site.store, file)
        assert (about.site, about.finished, about.round) == (name, True, together.agreement.rounds)
        test = site.problem.test[site.client]
        labels, probabilities = predict(file, site.problem.inputs[test])
        assert int((labels == site.problem.labels[test]).sum()) == found[name]["received"]["correct"]
        tested = site.worker.test(test, keep_scores=True)
        torch.testing.assert_close(probabilities, tested.kept, atol=1e-6, rtol=0)
        with torch.no_grad():
            scores = load_model(file)(site.problem.inputs[test])
        loss = float(nn.functional.cross_entropy(scores, site.problem.labels[test], reduction="sum"))
        assert loss == pytest.approx(found[name]["received"]["loss"], rel=1e-4)


class OddNet(nn.Module):
    """A constant that is not finite, and a classifier whose weight another layer has too."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.middle = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, CLASSES)
        self.classifier = nn.Linear(WIDTH, CLASSES)
        self.classifier.weight = self.middle.weight
        self.register_buffer("mask", torch.tensor([0.0] * (WIDTH - 1) + [-torch.inf]))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = (self.body(x.flatten(1)) + self.mask).softmax(1)
        out: torch.Tensor = self.classifier(torch.tanh(self.middle(hidden)) @ self.middle.weight)
        return out


def test_constants_and_tied_tensors_are_exported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(MODELS, "odd", own_model("odd", OddNet))
    options = {"model": "odd", "classifier": "classifier"}
    assert_exports_are_what_was_tested(Together(agreed("fedavg", **options), tmp_path), tmp_path)
    file = next(tmp_path.glob("*.safetensors"))
    tensors = load_tensors(file)[0]
    tensors["mask"][0] = -torch.inf
    with safe_open(file, "pt") as opened:
        save_file(tensors, file, opened.metadata())
    with pytest.raises(CoterieError, match="tensor 'mask' holds NaN or infinite values"):
        load_model(file)
    with pytest.raises(CoterieError, match=r"parts 'middle.weight' and 'classifier.weight'"):
        Together(agreed("fedper", **options), tmp_path / "fedper")


@pytest.mark.parametrize("name", every_method())
def test_every_methods_model_predicts_what_was_tested(name: str, tmp_path: Path) -> None:
    together = Together(agreed(METHODS[name](), validation=0.2), tmp_path)
    if METHODS[name].predicts_with_samples:
        together.run()
        with pytest.raises(
            CoterieError, match="predicts with its own training samples, which no file of a model holds"
        ):
            export_model(next(iter(together.sites.values())).store, tmp_path / "it.safetensors")
        return
    assert_exports_are_what_was_tested(together, tmp_path)


@pytest.mark.parametrize("method", [FedRod(head="personal"), FedRod(head="global"), FedProto(test_by="classifier")])
def test_options_of_prediction_are_kept(method: Method, tmp_path: Path) -> None:
    assert_exports_are_what_was_tested(Together(agreed(method), tmp_path), tmp_path)


@pytest.mark.parametrize(
    ("method", "stats"), [(FedBN(), "local"), (Ditto(), "local"), (FedRod(), "mean"), (FedBABU(tune_epochs=1), "mean")]
)
def test_batch_norm_statistics_are_those_of_the_tested_model(method: Method, stats: str, tmp_path: Path) -> None:
    agreement = Agreement.parse(
        agreed(method, rounds=1, epochs=1).plain() | {"model": "resnet8", "shape": [1, 8, 8], "stats": stats}
    )
    assert_exports_are_what_was_tested(Pictures(agreement, tmp_path), tmp_path)


def exported(method: Method | str, folder: Path, **options: object) -> tuple[Together, Path]:
    together = Together(agreed(method, **options), folder)
    together.run()
    export_model(folder / "trial" / SITES[0], folder / "a.safetensors")
    return together, folder / "a.safetensors"


def test_a_plain_model_is_an_ordinary_module_for_any_reader(tmp_path: Path) -> None:
    _, file = exported("fedper", tmp_path)
    module = coterie.load_model(file)
    assert type(module) is type(build("mlp", (WIDTH,), CLASSES))
    assert not module.training
    by_hand = build("mlp", (WIDTH,), CLASSES)
    by_hand.load_state_dict(load_file(file))
    inputs = torch.randn(5, WIDTH)
    assert torch.equal(by_hand.eval()(inputs), module(inputs))


def test_the_description_says_what_the_model_is_and_names_no_other_site(tmp_path: Path) -> None:
    _, file = exported(FedRod(balanced=False), tmp_path, class_names=("cat", "dog", "owl"), seed=3)
    _, metadata = load_tensors(file)
    told = json.loads(metadata["coterie"])
    trained_on = told.pop("trained_on")
    assert trained_on["samples"] > 0
    assert len(trained_on["mark"]) == 64  # by which the site's own data are known again
    assert told == {
        "task": "classification",
        "model": "mlp",
        "shape": [WIDTH],
        "classes": CLASSES,
        "class_names": ["cat", "dog", "owl"],
        "classifier": "classifier",
        "stats": "mean",
        "method": "fedrod",
        "set": {"balanced": False, "head": "sum"},
        "federation": "trial",
        "site": SITES[0],
        "round": 3,
        "rounds": 3,
        "finished": True,
        "note": "",
        "feature_names": [],
        "norm": None,
        "plain": False,
        "scaling": None,
        "version": coterie.__version__,
        "format": 1,
    }
    assert SITES[1] not in file.read_bytes().decode("latin1")


def test_only_what_predictions_need_is_in_the_file(tmp_path: Path) -> None:
    plain = set(build("mlp", (WIDTH,), CLASSES).state_dict())
    for number, (method, more) in enumerate(
        {
            "scaffold": set(),
            "fedala": set(),
            "fedproto": {"value.prototypes"},
            "fedrod": {"slot.personal_head.classifier.weight", "slot.personal_head.classifier.bias"},
        }.items()
    ):
        folder = tmp_path / str(number)
        assert set(load_file(exported(method, folder)[1])) == plain | more


def test_a_wrapped_model_leaves_random_numbers_alone_and_predicts_any_batch(tmp_path: Path) -> None:
    _, file = exported("fedrod", tmp_path)
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    model = load_model(file)
    assert isinstance(model, SiteModel)
    inputs = torch.randn(7, WIDTH, generator=torch.Generator().manual_seed(1))
    whole = model(inputs)
    assert torch.equal(torch.rand(3), expected)
    torch.testing.assert_close(torch.cat([model(part) for part in inputs.split(2)]), whole)
    assert torch.equal(predict(file, inputs, batch=3)[0], whole.argmax(1))


def test_without_an_end_the_newest_round_is_exported_and_said_to_be(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    together = Together(agreed("fedproto", rounds=5), tmp_path)
    together.admit()
    together.round()
    together.round()
    site = together.sites["site-b"]
    about = export_model(site.store, tmp_path / "b.safetensors")
    assert (about.round, about.finished) == (2, False)
    note = "the federation did not come to its end here: this is the model of round 2 of 5"
    assert about.note == read_model(tmp_path / "b.safetensors")[1].note == note
    assert note in caplog.text
    tensors = load_file(tmp_path / "b.safetensors")
    site.worker.seat(site.federation, site.client)
    row = site.worker.model("model").row
    for name, view in site.problem.layout.views(row).items():
        assert torch.equal(tensors[name], view)
    assert torch.equal(tensors["value.prototypes"], site.federation.values["prototypes"])
    assert tensors["value.prototypes"].isfinite().all()


def test_a_new_federation_of_the_same_name_counts_more_than_the_end_of_the_old_one(tmp_path: Path) -> None:
    exported("fedavg", tmp_path)
    later = Together(agreed("fedper", rounds=7), tmp_path)
    later.admit()
    later.round()
    about = export_model(tmp_path / "trial" / SITES[0], tmp_path / "a.safetensors")
    assert (about.method, about.round, about.finished) == ("fedper", 1, False)


def test_bytes_are_scaled_and_shapes_checked(tmp_path: Path) -> None:
    _, file = exported("fedavg", tmp_path)
    pixels = np.full((2, WIDTH), 255, np.uint8)
    assert torch.equal(predict(file, pixels)[1], predict(file, torch.ones(2, WIDTH))[1])
    labels, probabilities = predict(file, torch.empty(0, WIDTH))
    assert (labels.shape, probabilities.shape) == ((0,), (0, CLASSES))
    with pytest.raises(CoterieError, match=r"shape \(5,\), not \(6,\)"):
        predict(file, torch.zeros(2, 5))
    with pytest.raises(CoterieError, match="batch = 0: must be at least 1"):
        predict(file, torch.zeros(2, WIDTH), batch=0)


def refused(path: Path) -> str:
    with pytest.raises(CoterieError) as caught:
        load_model(path)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_foreign_and_damaged_files_are_refused(tmp_path: Path) -> None:
    _, file = exported("fedrod", tmp_path)
    tensors, metadata = load_tensors(file)
    other = tmp_path / "other.safetensors"

    assert refused(other) == f"'{other}': there is no such file"
    other.write_bytes(b"\x80\x04K\x01.")
    assert "it is no safetensors file, or damaged" in refused(other)
    other.write_bytes(file.read_bytes()[:-8])
    assert "it is no safetensors file, or damaged" in refused(other)
    save_file(tensors, other)
    assert "is no model that Coterie exported" in refused(other)
    assert "is no model that Coterie exported" in refused(tmp_path / "trial" / SITES[0] / "final.safetensors")

    def described(**changes: object) -> str:
        told = json.loads(metadata["coterie"]) | changes
        save_file(tensors, other, {"coterie": json.dumps(told)})
        return refused(other)

    assert "unknown model 'mlpp'; did you mean 'mlp'?" in described(model="mlpp")
    assert "unknown method 'x'" in described(method="x")
    assert "its description is not that of a model" in described(shape=5)
    assert "its description is not that of a model" in described(set=[1])
    assert "a newer version of Coterie" in described(format=99)
    assert "the model needs torch.float32 (64, 1000000000000)" in described(shape=[10**12])
    assert "unknown tensor" in described(method="fedavg", set={})
    save_file(tensors, other, {"coterie": "[["})
    assert "its description is not that of a model" in refused(other)

    def with_tensors(changed: dict[str, torch.Tensor]) -> str:
        save_file(changed, other, {"coterie": metadata["coterie"]})
        return refused(other)

    head = "slot.personal_head.classifier.weight"
    assert "personal_head" in with_tensors({name: one for name, one in tensors.items() if "slot." not in name})
    assert "'classifier.bias' is missing" in with_tensors(
        {name: one for name, one in tensors.items() if name != "classifier.bias"}
    )
    assert f"'{head}' is torch.float32 (2, 2)" in with_tensors(tensors | {head: torch.zeros(2, 2)})
    assert "unknown tensor" in with_tensors(tensors | {"slot.nothing.weight": torch.zeros(2)})
    for name in (head, "classifier.bias"):
        for value in (torch.nan, torch.inf):
            said = with_tensors(tensors | {name: torch.full_like(tensors[name], value)})
            assert f"tensor '{name}' holds NaN or infinite values" in said


def test_a_model_whose_scores_overflow_is_refused(tmp_path: Path) -> None:
    _, file = exported("fedper", tmp_path)
    tensors, metadata = load_tensors(file)
    large = {name: torch.full_like(tensor, 3e38) for name, tensor in tensors.items()}
    save_file(large, file, metadata)
    with pytest.raises(CoterieError, match="what it says of sample 0 is no number"):
        predict(file, torch.ones(2, 6))


def test_folders_without_a_model_are_refused(tmp_path: Path) -> None:
    with pytest.raises(CoterieError, match="there is no such folder"):
        export_model(tmp_path / "nobody", tmp_path / "a.safetensors")
    with pytest.raises(CoterieError, match="holds no model of a site yet"):
        export_model(tmp_path, tmp_path / "a.safetensors")
    _, file = exported("fedavg", tmp_path)
    tensors, metadata = load_tensors(tmp_path / "trial" / SITES[0] / "final.safetensors")
    smaller = replace(agreed("fedavg"), shape=(WIDTH - 1,))
    save_file(tensors, tmp_path / "trial" / SITES[0] / "final.safetensors", metadata | {"agreement": smaller.toml()})
    with pytest.raises(CoterieError, match="does not fit its agreement"):
        export_model(tmp_path / "trial" / SITES[0], file)
