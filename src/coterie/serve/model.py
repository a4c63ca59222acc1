"""What a site has in the end: its model as one file, and an ordinary module from that file."""

from __future__ import annotations

import copy
import json
import logging
import tomllib
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from coterie.client.batch import Batch
from coterie.client.problem import Problem
from coterie.client.scores import TEST_BATCH
from coterie.client.worker import Worker
from coterie.core.federation import Federation
from coterie.core.layout import Layout
from coterie.core.pixels import whole
from coterie.core.slots import Slot
from coterie.data import Dataset
from coterie.data.archives import progress_bar
from coterie.data.arrays import Array, require_unmasked, to_inputs
from coterie.data.scaling import AgreedScale, OnScale
from coterie.deployment.agreement import SCALING, Agreement, Blueprint
from coterie.deployment.site_data import fitted
from coterie.deployment.store import FINAL, Store, require_readable
from coterie.deployment.workplace import SiteFederation
from coterie.errors import CoterieError, require, unknown
from coterie.methods.base import Method
from coterie.models import build
from coterie.models.layers import with_group_norm
from coterie.runs.run import Run
from coterie.serve.model_file import About, is_plain, read_model, read_tensors, require_exportable, write_model
from coterie.serve.programs import read_onnx, read_pt2
from coterie.serve.samples import named_inputs
from coterie.setup.prepared import extend_classifier
from coterie.typed import typed

if TYPE_CHECKING:
    from pandas import DataFrame

log = logging.getLogger("coterie")


class _Reader(Worker):
    """A worker that notes which slots and values are asked for."""

    def __init__(self, problem: Problem, method: Method, seed: int) -> None:
        super().__init__(problem, method, seed)
        self.slots_read: set[str] = set()
        self.values_read: set[str] = set()

    def _slot(self, name: str) -> Slot:
        self.slots_read.add(name)
        return super()._slot(name)

    def value(self, name: str) -> Tensor:
        self.values_read.add(name)
        return super().value(name)


class SiteModel(nn.Module):
    """A model whose class scores are those of a method's own `predict`, for methods that need more than one network.

    It predicts; it is not meant to be trained on.
    """

    def __init__(self, agreement: Agreement, blueprint: Blueprint, federation: Federation) -> None:
        super().__init__()
        empty = torch.empty(0, dtype=torch.int64)
        problem = Problem(
            module=blueprint.module,
            layout=blueprint.layout,
            inputs=torch.zeros(1, *agreement.shape),
            labels=torch.zeros(1, dtype=agreement.task.label_dtype),
            train=(empty,),
            validation=(empty,),
            test=(empty,),
            training=agreement.training,
            task=agreement.task,
            skip_single_samples=blueprint.skip_single_samples,
        )
        self._method = agreement.kind
        self._worker = _Reader(problem, agreement.kind, agreement.seed)
        with torch.random.fork_rng(devices=[]):
            self._worker.seat(federation, 0)
        self(problem.inputs)
        networks = {name: self._worker.model(name) for name in sorted(self.slots_read)}
        self.networks = nn.ModuleDict(
            {name: nn.ModuleDict({"trunk": part.trunk, "head": part.head}) for name, part in networks.items()}
        )

    @property
    def slots_read(self) -> set[str]:
        """The slots that the prediction depends on."""
        return self._worker.slots_read

    @property
    def values_read(self) -> set[str]:
        """The server's values that the prediction depends on."""
        return self._worker.values_read

    def forward(self, inputs: Tensor) -> Tensor:
        """The method's class scores `[n, C]` for `inputs [n, ...]`."""
        labels = torch.zeros(len(inputs), dtype=torch.int64)
        self._worker.problem = replace(self._worker.problem, inputs=inputs, labels=labels)
        return self._method.predict(Batch(self._worker, self._method.tested, torch.arange(len(inputs))))


def export_model(site: Store | Path, out: Path) -> About:
    """Write the model that a site tests, from the site's folder, as one safetensors file; returns its description.

    The tensors have their names in the module (`classifier.weight`); what else the method predicts with stands under
    `slot.NAME.` and `value.NAME`. At a site at which the federation did not come to its end this is the model of
    its last round, not tuned where the method tunes, and a warning says so.
    """
    folder = site.path if isinstance(site, Store) else Path(site)
    tensors, metadata, finished = _newest(folder)
    require(bool(metadata.get("agreement")), f"'{folder}': the file of its last round lacks the agreement")
    agreement = Agreement.parse(tomllib.loads(metadata["agreement"]))
    round, note = int(metadata["round"]), ""
    if not finished:
        note = f"the federation did not come to its end here: this is the model of round {round} of {agreement.rounds}"
        log.warning("site %s: %s", metadata["site"], note)
    blueprint = agreement.build()
    about = About.of(agreement, blueprint.layout, metadata["site"], round, finished, note)
    if "trained_on" in metadata:
        about = replace(about, trained_on=json.loads(metadata["trained_on"]))
    if "feature_names" in metadata:
        about = replace(about, feature_names=tuple(json.loads(metadata["feature_names"])))
    if agreement.scale:
        shift, divisor = tensors[f"value.{SCALING}"]
        about = replace(about, scaling=AgreedScale(shift, divisor).plain())
    require_exportable(agreement.kind)
    alone = replace(about, plain=False).agreement()  # the method says which rows the site's file holds
    federation = _federation(alone, blueprint)
    _restore(federation, tensors)
    write_model(Path(out), _named(alone, blueprint, federation), about)
    return about


def client_tensors(about: About, result: Run, client: int) -> dict[str, Tensor]:
    """The tensors of the file of a client's model, from a run."""
    if about.plain:  # the method may be anybody's
        return {name: tensor.clone() for name, tensor in result.models.bare(client).state_dict().items()}
    agreement = about.agreement()
    blueprint = agreement.build()
    return _named(agreement, blueprint, _of_client(agreement, blueprint, result, client))


def _of_client(agreement: Agreement, blueprint: Blueprint, result: Run, client: int) -> Federation:
    """A federation of one client as it is tested at the end of a run."""
    federation, source = _federation(agreement, blueprint), result.federation
    for name, row in result.rows(client).items():
        _fill(federation[name], row)
    for name, kind in federation.kinds.items():
        value = source.value_of(name, client)
        federation.values[name] = value[None] if kind.per_client else value
    return federation


@typed
def load_model(path: str | Path) -> nn.Module:
    """A site's or client's model from its file, in evaluation mode: `load_model("a.safetensors")(inputs)` gives scores.

    It is the plain module of the registry; for methods that predict with more (FedRoD's second classifier, FedProto's
    prototypes) a module around it, whose scores are the method's own. A pandas table is taken too, its columns by name.

    >>> import tempfile
    >>> from coterie.serve.export import export_client
    >>> from coterie.runs.experiment import Experiment
    >>> from coterie.runs.run import open_run
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = Experiment("fedper", rounds=1, epochs=1, threads=1).run(f"{folder}/run")
    ...     _ = export_client(open_run(f"{folder}/run"), 3, Path(folder, "client-3.safetensors"))
    ...     load_model(f"{folder}/client-3.safetensors")(torch.zeros(2, 1, 8, 8)).shape
    torch.Size([2, 10])
    """
    module, about = loaded(Path(path))
    module.register_forward_pre_hook(partial(_frame_as_inputs, about.feature_names))
    return module


def _frame_as_inputs(features: tuple[str, ...], module: nn.Module, given: tuple[Any, ...]) -> tuple[Any, ...]:
    """What a model is called with: a pandas table as inputs `[n, features]`, all else as it is."""
    return tuple(_of_frame(one, features) if hasattr(one, "iloc") else one for one in given)


def _of_frame(frame: Any, features: tuple[str, ...]) -> Tensor:
    from coterie.data.frames import WHAT, table_of

    require(
        bool(features),
        f"{WHAT}: the model does not say what its inputs are called; hand over an array in the order of its training",
    )
    return torch.from_numpy(named_inputs(table_of(frame), features, WHAT))


def predict(
    model: str | Path | tuple[nn.Module, About],
    data: Dataset | Tensor | Array | DataFrame,
    batch: int = TEST_BATCH,
    *,
    progress: bool = False,
) -> tuple[Tensor, Tensor]:
    """The classes `[n]` that a site's model predicts for data `[n, ...]`, and the probability of each class `[n, C]`.

    The model is a file, or what `loaded` made of one. Arrays are taken as `coterie.from_arrays` takes them: uint8 is
    scaled to [−1, 1], everything else is float32. Of a pandas table the columns are taken by their names.
    """
    require(batch >= 1, f"batch = {batch}: must be at least 1")
    module, about = loaded(Path(model)) if isinstance(model, str | Path) else model
    inputs = fitted(_inputs(data, about), about.shape, getattr(data, "name", "given"), resized=False)
    kept = [torch.empty(0, about.classes)]
    with torch.no_grad(), progress_bar("predicting", len(inputs), progress) as advance:
        for part in inputs.split(batch):
            kept.append(module(part).softmax(1))
            advance(len(part))
    probabilities = torch.cat(kept)
    wrong = torch.nonzero(~probabilities.isfinite().all(1))
    require(not len(wrong), f"'{model}': what it says of sample {int(wrong[0]) if len(wrong) else 0} is no number")
    return probabilities.argmax(1), probabilities


def _inputs(data: Dataset | Tensor | Array | DataFrame, about: About) -> Tensor:
    if hasattr(data, "iloc"):
        return _of_frame(data, about.feature_names)
    given = whole(data.inputs) if isinstance(data, Dataset) else data
    if isinstance(given, Tensor):
        # What is in shape and made of floats is ready: nothing has to be guessed about its dimensions.
        if given.is_floating_point() and tuple(given.shape[1:]) == about.shape:
            return given.detach().float()
        given = given.detach().cpu().numpy()
    require_unmasked(given)
    return to_inputs(np.asarray(given), "given")


def _newest(folder: Path) -> tuple[dict[str, Tensor], dict[str, str], bool]:
    """What a site kept last, and whether that is the federation's end."""
    require(folder.is_dir(), f"'{folder}': there is no such folder")
    final, snapshots = folder / FINAL, sorted(folder.glob("round-*.safetensors"))
    require(final.is_file() or bool(snapshots), f"'{folder}': holds no model of a site yet; its first round makes one")
    if not final.is_file():
        return *_kept(snapshots[-1]), False
    kept, about = _kept(final)
    if snapshots:
        later, later_about = _kept(snapshots[-1])
        # Another federation of the same name has begun since.
        if later_about.get("fingerprint") != about.get("fingerprint"):
            return later, later_about, False
    return kept, about, True


def _kept(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    tensors, about = read_tensors(path)
    require_readable(path, about)
    return tensors, about


def _federation(agreement: Agreement, blueprint: Blueprint) -> Federation:
    federation = agreement.federation(blueprint, SiteFederation)
    agreement.kind.init(federation)
    return federation


def _restore(federation: Federation, kept: Mapping[str, Tensor]) -> None:
    """Put what a site kept into the slots and values; rows that were tuned before the test go before the others."""
    try:
        for name, slot in federation.slots.items():
            slot.shared.copy_(kept[f"slot.{name}.shared"])
            slot.own.copy_(kept[f"slot.{name}.own"])
            if f"tested.{name}" in kept:
                row = federation.initial.clone()
                slot.columns.put(row, kept[f"tested.{name}"])
                _fill(slot, row)
        for name, kind in federation.kinds.items():
            value = kept[f"value.{name}"]
            federation.values[name] = value[None] if kind.per_client else value
    except (KeyError, RuntimeError) as error:
        raise CoterieError(f"the site's file does not fit its agreement ({' '.join(str(error).split())})") from None


def _fill(slot: Slot, row: Tensor) -> None:
    """Write `row [P]` into a slot that holds one row."""
    slot.shared.copy_(slot.shared_columns.take(row)[None])
    slot.own.copy_(slot.own_columns.take(row)[None])


def _named(agreement: Agreement, blueprint: Blueprint, federation: Federation) -> dict[str, Tensor]:
    """The tensors of a model's file."""
    method, layout = agreement.kind, blueprint.layout
    row = federation.initial.clone()
    federation["model"].copy_row(0, row)
    federation[method.tested].copy_row(0, row)
    module = layout.load(copy.deepcopy(blueprint.module), row)
    tensors = {name: tensor.clone() for name, tensor in module.state_dict().items()}  # tied ones under each name
    if is_plain(method):
        return tensors
    model = SiteModel(agreement, blueprint, federation)
    for name in sorted(model.slots_read - {method.tested}):
        slot, row = federation[name], federation.initial.clone()
        slot.copy_row(0, row)
        views = layout.views(row)
        tensors |= {f"slot.{name}.{entry}": views[entry] for entry in _entries(layout, slot)}
    return tensors | {f"value.{name}": federation.value_of(name, 0) for name in sorted(model.values_read)}


def _entries(layout: Layout, slot: Slot) -> list[str]:
    """The module's tensors that a slot holds."""
    return [entry.name for entry in layout.entries if entry.columns <= slot.columns]


def loaded(path: Path) -> tuple[nn.Module, About]:
    """A model from its file, in evaluation mode, and its description; the file's ending says how it is read.

    It takes inputs as they are in the data: where a scale was agreed on, it applies that.
    """
    if path.suffix.lower() == ".onnx":
        module, about = read_onnx(path)  # its graph scales inputs by itself
        return module.eval(), about
    module, about = _loaded(path)
    return (module if about.scaling is None else OnScale(AgreedScale.parse(about.scaling), module).eval()), about


def _loaded(path: Path) -> tuple[nn.Module, About]:
    tensors, about = read_pt2(path) if path.suffix.lower() == ".pt2" else read_model(path)
    # Without weights of its own until the file's are known to fit: a description cannot ask for endless memory.
    with torch.device("meta"):
        module = _built(about)
    wanted = module.state_dict()
    held = {name: tensors.pop(name) for name in wanted if name in tensors}
    _require_fit(path, held, wanted)
    _require_finite(path, held, about)
    module.load_state_dict(held, assign=True)
    agreement = about.agreement()
    if about.plain or is_plain(agreement.kind):
        _require_fit(path, tensors, {})
        return module.eval(), about
    blueprint = agreement.build()
    federation = _federation(agreement, blueprint)
    _fill_in(federation, agreement.kind, module, tensors, path)
    model = SiteModel(agreement, blueprint, federation).eval()
    given = {name.split(".")[1] for name in tensors} | {agreement.kind.tested}
    missing = (model.slots_read | model.values_read) - given
    require(not missing, f"'{path}': lacks {', '.join(sorted(missing))}, which the method predicts with")
    return model, about


def _built(about: About) -> nn.Module:
    """The model that a description names, with any weights."""
    module = build(about.model, about.shape, about.classes)
    module = with_group_norm(module) if about.norm == "group" else module
    if not about.plain:
        sample = torch.zeros(2, *about.shape)
        extend_classifier(module, about.classifier, about.agreement().kind, sample, about.classes, seed=0)
    return module


def _fill_in(federation: Federation, method: Method, module: nn.Module, tensors: dict[str, Tensor], path: Path) -> None:
    """Put a file's tensors into slots and values."""
    layout = federation.layout
    tested = layout.row(module)
    wanted = {f"value.{name}": federation.value_of(name, 0) for name in federation.values}
    _fill(federation[method.tested], tested)
    for name, slot in federation.slots.items():
        row = federation.initial.clone()
        slot.copy_row(0, row)
        views = layout.views(row)
        held = {f"slot.{name}.{entry}": views[entry] for entry in _entries(layout, slot)}
        wanted |= held
        for key in held.keys() & tensors.keys():
            _require_fit(path, {key: tensors[key]}, {key: held[key]})
            require(bool(tensors[key].isfinite().all()), _not_finite(path, key))
            held[key].copy_(tensors[key])
        _fill(slot, row)
    _require_fit(path, tensors, {key: wanted[key] for key in tensors if key in wanted})
    for name, kind in federation.kinds.items():
        if f"value.{name}" in tensors:
            value = tensors[f"value.{name}"]
            federation.values[name] = value[None] if kind.per_client else value


def _require_fit(path: Path, found: Mapping[str, Tensor], wanted: Mapping[str, Tensor]) -> None:
    """An error unless the tensors have the names, shapes and kinds that the model needs."""
    for name in wanted:
        require(name in found, f"'{path}': tensor '{name}' is missing; it is not the model that it says it is")
    for name, tensor in found.items():
        if name not in wanted:
            raise unknown(f"tensor in '{path}'", name, wanted)
        here, asked = (f"{one.dtype} {tuple(one.shape)}" for one in (tensor, wanted[name]))
        require(here == asked, f"'{path}': tensor '{name}' is {here}; the model needs {asked}")


def _require_finite(path: Path, tensors: Mapping[str, Tensor], about: About) -> None:
    """An error if the module's tensors hold NaN or infinite values but for those that the model is made with (masks).

    Values may hold NaN for what nobody knows yet, such as the prototype of a class that nobody has.
    """
    odd = [name for name, tensor in tensors.items() if not bool(tensor.isfinite().all())]
    made = _built(about).state_dict() if odd else {}
    for name in odd:
        constant = torch.equal(tensors[name].nan_to_num(), made[name].nan_to_num())
        require(constant and not bool(made[name].isfinite().all()), _not_finite(path, name))


def _not_finite(path: Path, name: str) -> str:
    return f"'{path}': tensor '{name}' holds NaN or infinite values"
