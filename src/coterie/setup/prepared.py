"""Data, partition and model in place: everything before the first round."""

from __future__ import annotations

import copy
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import torch
from torch import Tensor, nn

from coterie.client.model import check_split, single_samples_fail, tried
from coterie.client.problem import Problem
from coterie.client.recipe import Recipe, phases
from coterie.client.rehearsal import SAMPLES, rehearse
from coterie.core.federation import Federation
from coterie.core.inventory import copied, held_tensors
from coterie.core.layout import Layout, last_classifier, paths_of, require_classifier
from coterie.core.pixels import as_memory
from coterie.core.training import MemoryFormat, epoch_batches
from coterie.data import Dataset, load
from coterie.data.dataset import fingerprint, part_of, rescaled, warn_of_ranges
from coterie.data.scaling import AGREED_SCALES, AgreedScale, require_columns, scaled
from coterie.devices import PROCESSOR, free_bytes, has_float64
from coterie.engines import ENGINES, Engine, EngineOptions, make_engine
from coterie.errors import require
from coterie.methods import Method
from coterie.methods.base import extends_classifier
from coterie.models import MODELS, ModelSpec, build
from coterie.models.layers import with_group_norm
from coterie.models.registry import is_built_in
from coterie.partition import FromFile, Partition, Rule, Split
from coterie.partition.partition import Indices
from coterie.rng import stream_seed
from coterie.rounds.listeners import Listener
from coterie.rounds.round import Rounds
from coterie.rounds.sampler import Sampler
from coterie.rounds.stages import Clients, Stage, require_enough
from coterie.setup.identity import Identity, identity_of
from coterie.setup.parts import judge_of, sampler_of, stages_of
from coterie.setup.settings import Settings
from coterie.typed import shown

log = logging.getLogger("coterie")

# What rows may take of a device's free memory: samples, and what training needs, go there too.
ROWS_SHARE = 0.5


@dataclass(frozen=True)
class Prepared:
    """An experiment with its data, partition and model in place."""

    experiment: Settings
    method: Method
    data: Dataset
    partition: Partition
    problem_base: Problem
    feature_width: int
    class_counts: Indices  # [K, C] training samples of all the partition's clients
    notes: tuple[str, ...] = ()  # what the run's log should say
    stands_in: bool = False  # its data only stand in for those of the run: nobody trains on them
    forecast: tuple[str, float] | None = None  # the workload and the seconds that a round should take, if measured
    loaded: Mapping[str, str] | None = None  # the fingerprint of the data as they were loaded, if they are others now
    resolved: Mapping[str, int | float] = field(default_factory=dict)  # what the method makes of the run's settings
    epochs: float = 0  # those of a client's first round
    scaling: AgreedScale | None = None  # what was done to the inputs as they were loaded, if that was agreed

    @cached_property
    def fingerprint(self) -> dict[str, str]:
        """The digests of the data that clients hold."""
        return fingerprint(self.data)

    @cached_property
    def identity(self) -> Identity:
        """What makes the run the same as another. Whoever asks first does so before anything is trained."""
        loaded = self.fingerprint if self.loaded is None else self.loaded
        base = self.problem_base
        return identity_of(self.experiment, loaded, self.partition, base.module, base.task)

    @property
    def participants(self) -> list[int]:
        """The clients that take part in training, in the partition's order."""
        held_out = set(self.partition.held_out)
        return [k for k in range(self.partition.clients) if k not in held_out]

    def problem(self, clients: list[int] | None = None) -> Problem:
        """The problem of some of the partition's clients (those that take part, by default)."""
        chosen = self.participants if clients is None else clients
        part = self.partition
        problem = replace(
            self.problem_base,
            train=tuple(torch.from_numpy(part.train[k]) for k in chosen),
            validation=tuple(torch.from_numpy(part.validation[k]) for k in chosen),
            test=tuple(torch.from_numpy(part.test[k]) for k in chosen),
        )
        if clients is None and not self.stands_in:
            for stage in self.stages:
                problem = stage.problem(problem)
        return problem

    @cached_property
    def clients(self) -> Clients:
        """Those that take part."""
        keys = torch.from_numpy(self.partition.keys)[self.participants]
        return Clients(keys, tuple(self.partition.names[k] for k in self.participants))

    @cached_property
    def sampler(self) -> Sampler:
        """Who of them takes part in a round."""
        return sampler_of(self.experiment, self.clients)

    @cached_property
    def stages(self) -> tuple[Stage, ...]:
        """What uploads go through."""
        return stages_of(self.experiment, self.clients)

    def _stages_for(self, clients: list[int] | None) -> list[Stage]:
        """Those that have a place where some of the partition's clients are looked at (none: those that take part)."""
        return [stage for stage in self.stages if clients is None or not stage.of_certain_clients]

    def rounds(
        self,
        engine: Engine,
        federation: Federation | None = None,
        listeners: Sequence[Listener] = (),
        validated: bool = False,
    ) -> Rounds:
        """The rounds of the experiment on an engine, which may score validation samples too (`validated`)."""
        federation = federation or self.federation()
        judge = judge_of(self.experiment, self.method, federation, engine, validated)
        return Rounds(self.method, federation, engine, self.sampler, judge, self.stages, listeners)

    def epochs_of(self, recipe: Recipe) -> float:
        """The epochs of all phases of a recipe, about; those that do not say have the run's, or its steps."""
        run, sizes = self.experiment, [int(self.partition.sizes[client]) for client in self.participants]
        batches = sum(epoch_batches(size, run.batch) for size in sizes) / len(sizes)
        usual = run.steps / batches if run.steps else run.epochs
        return sum(usual if phase.epochs is None else phase.epochs for phase in phases(recipe))

    def engine(self, problem: Problem) -> Engine:
        """The experiment's engine for a problem; the plain one for the device where none was chosen yet."""
        run = self.experiment
        plain = "serial" if run.device == "cpu" else "stacked"
        name = plain if run.engine == "auto" else run.engine
        about = EngineOptions(run.workers, run.device, run.ray_address, run.ray_gpus)
        return make_engine(name, problem, self.method, run.seed, about)

    def _place_rows(self, federation: Federation) -> None:
        """Bring rows to the run's device, if they are to be mixed there: they fit, and server steps can be done."""
        run = self.experiment
        if run.device == PROCESSOR or run.engine == "auto" or not ENGINES.find(run.engine).rows_on_device:
            return
        # Stages look at rows one by one and draw noise: work for the processor.
        plain = not self.stages
        free = free_bytes(run.device)
        # Rows in a file are more than the processor's own memory takes.
        mapped = any(slot.mapped is not None for slot in federation.slots.values())
        fits = not mapped and (free is None or federation.row_bytes <= ROWS_SHARE * free)
        if plain and fits and has_float64(run.device):
            federation.put_rows_on(run.device)

    def problem_in_memory(self, memory: MemoryFormat) -> Problem:
        """What `problem` begins with, in another memory format."""
        base, layout = self.problem_base, self.problem_base.layout
        if layout.memory == memory:
            return base
        other = Layout(base.module, layout.classifier, layout.stats, memory)
        return replace(base, layout=other, inputs=as_memory(self.data.inputs, memory))

    def with_rounds(self, rounds: int) -> Prepared:
        """The same run with another number of rounds, from which methods may conclude something else."""
        longer = replace(self, experiment=replace(self.experiment, rounds=rounds))
        return replace(longer, resolved=_resolved(self.method, longer.bare_federation()))

    def federation(self, clients: list[int] | None = None) -> Federation:
        """A federation of some of the partition's clients before its first round."""
        federation = self.empty_federation(clients)
        self.method.init(federation)
        for stage in self._stages_for(clients):
            stage.begin(federation)
        self._place_rows(federation)
        return federation

    def empty_federation(self, clients: list[int] | None = None) -> Federation:
        """The same as the method finds it: with a model, and nothing else yet."""
        federation = self.bare_federation(clients)
        federation.add_slot("model", federation.layout.everything, shared=self.method.shared)
        return federation

    def outline(self) -> Federation:
        """The same to be looked at alone: many clients' rows would take long to make."""
        federation = self.bare_federation()
        federation.outline = True
        federation.add_slot("model", federation.layout.everything, shared=self.method.shared)
        return federation

    def bare_federation(self, clients: list[int] | None = None) -> Federation:
        """The same without any rows: clients, rounds and settings."""
        chosen = self.participants if clients is None else clients
        layout, module = self.problem_base.layout, self.problem_base.module
        federation = Federation(
            layout=layout,
            initial=layout.row(module),
            sizes=torch.from_numpy(self.partition.sizes)[chosen],
            class_counts=torch.from_numpy(self.class_counts)[chosen],
            keys=torch.from_numpy(self.partition.keys)[chosen],
            rounds=self.experiment.rounds,
            seed=self.experiment.seed,
            feature_width=self.feature_width,
            head=require_classifier(module, layout.classifier),
            task=self.problem_base.task,
            training=self.experiment.training,
            validation_sizes=torch.tensor([len(self.partition.validation[k]) for k in chosen]),
            skip_single_samples=self.problem_base.skip_single_samples,
        )
        stages = self._stages_for(clients)
        for stage in stages:
            stage.attach(federation)
        for stage in stages:
            stage.simulate(federation)
        return federation


def prepare(experiment: Settings) -> Prepared:
    """Load the data, draw the partition, build and check the model: everything before round 1."""
    method = experiment.method
    assert isinstance(method, Method)
    data = experiment.data
    if isinstance(data, str):
        data = load(data, label=experiment.label, client=experiment.client_column, task=experiment.task)
    assert isinstance(data, Dataset)
    loaded = None if experiment.share == 1 and not experiment.scale else fingerprint(data)
    data = rescaled(data.with_task(experiment.task), experiment.scale)
    if not experiment.scale:
        warn_of_ranges(data)
    elif experiment.scale in AGREED_SCALES:
        require_columns(data.inputs, experiment.scale, f"data '{data.name}'")
    experiment.training.check_inputs(data.shape)
    if experiment.share < 1:
        require(
            not isinstance(experiment.partition, FromFile),
            f"share = {experiment.share:g}: a partition from a file counts through all samples; leave share out",
        )
        data = part_of(data, experiment.share, _partition_seed(experiment))
    partition = _partition(experiment, data)
    scaling = None
    if experiment.scale in AGREED_SCALES:  # newcomers come later, and take the numbers as they are
        held_out = set(partition.held_out)
        trained_on = [own for client, own in enumerate(partition.train) if client not in held_out]
        data, scaling = scaled(data, experiment.scale, trained_on)
    module, layout = make_model(experiment, data, method)
    feature_width = check_split(module, layout, data.inputs[:2])
    if not is_built_in(experiment.model):  # tests have seen to those
        rehearse(module, layout, data.inputs[:SAMPLES])
    with torch.no_grad():
        data.of_task.check_outputs(copy.deepcopy(module).eval()(data.inputs[:2]).shape[-1])
    problem = Problem(
        module=module,
        layout=layout,
        inputs=as_memory(data.inputs, layout.memory),
        labels=data.labels,
        train=(),
        validation=(),
        test=(),
        training=experiment.training,
        task=data.of_task,
        skip_single_samples=single_samples_fail(module, data.inputs[:1]),
    )
    counts = partition.class_counts(data)
    prepared = Prepared(
        experiment, method, data, partition, problem, feature_width, counts, loaded=loaded, scaling=scaling
    )
    told = f"{type(method).__name__}: shared = {shown(method.shared)}: must name groups of the model, such as 'all'"
    require(isinstance(method.shared, str), told)
    begun = prepared.outline()
    method.check(begun)
    taking_part = prepared.sampler.count(len(prepared.participants))
    require_enough(prepared.stages, taking_part, "let more clients take part in a round")
    resolved = _resolved(method, begun)
    method.init(begun)  # what cannot be set up shows before the first round
    for stage in prepared.stages:
        stage.check(method, begun)
    prepared.sampler.there(begun, round=1)  # a trace may name strangers
    begun.round = 1
    return replace(prepared, resolved=resolved, epochs=prepared.epochs_of(method.recipe(begun)))


def _resolved(method: Method, federation: Federation) -> Mapping[str, int | float]:
    """What a method makes of the run's settings; phases that are left to a run of so many steps have no epochs."""
    found = method.resolved(federation)
    if not federation.training.steps:
        return found
    left = {name for name in found if name.endswith("epochs") and getattr(method, name, 0) is None}
    return {name: value for name, value in found.items() if name not in left}


def _partition_seed(experiment: Settings) -> int:
    return experiment.seed if experiment.partition_seed is None else experiment.partition_seed


def _partition(experiment: Settings, data: Dataset) -> Partition:
    seed = _partition_seed(experiment)
    if isinstance(experiment.partition, Partition):
        for option in ("test", "validation"):
            value = getattr(experiment, option)
            require(value is None, f"{option} = {value}: a given partition is split already; leave {option} out")
        partition = experiment.partition
        partition.check(data)
    else:
        assert isinstance(experiment.partition, Rule)
        default = experiment.partition.default_split
        split = Split(
            test=default.test if experiment.test is None else experiment.test,
            validation=default.validation if experiment.validation is None else experiment.validation,
        )
        partition = experiment.partition(data, seed, split)
    untested = next((name for name, own in zip(partition.names, partition.test, strict=True) if not len(own)), None)
    require(untested is None, f"client '{untested}' has no test samples; give it more samples or leave it out")
    if experiment.held_out:
        partition = partition.with_held_out(experiment.held_out, seed)
    return partition


def make_model(experiment: Settings, data: Dataset, method: Method) -> tuple[nn.Module, Layout]:
    """The experiment's model with its first weights, and how its tensors become a row."""
    seed = experiment.seed if experiment.model_seed is None else experiment.model_seed
    if isinstance(experiment.model, nn.Module):
        require(
            experiment.model_seed is None,
            f"model_seed = {seed}: the model is given with its weights; give its class, or leave model_seed out",
        )
        held_tensors(experiment.model)  # a copy no longer shows which of them have memory in common
        module = copied(experiment.model)
        classifier = _own_classifier(experiment.classifier, module, data.of_task.outputs)
        log.warning(
            "model = %s: its first weights are those it was given with, not the seed's; give the class to have them "
            "drawn from the seed",
            type(module).__name__,
        )
    else:
        assert isinstance(experiment.model, str | ModelSpec)
        module, classifier = initial_model(
            experiment.model, experiment.classifier, data.shape, data.of_task.outputs, seed
        )
    if experiment.norm == "group":
        module = with_group_norm(module)
    extend_classifier(module, classifier, method, data.inputs[:2], data.of_task.outputs, seed)
    memory = "contiguous" if experiment.memory == "auto" else experiment.memory
    return module, Layout(module, classifier, experiment.stats or method.stats, memory)


def initial_model(
    model: str | ModelSpec, classifier: str, shape: tuple[int, ...], classes: int, seed: int
) -> tuple[nn.Module, str]:
    """A model by name or specification with the weights that the seed gives it, and the path of its classifier.

    >>> initial_model("mlp", "last", (1, 8, 8), 10, seed=0)[1]
    'classifier'
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(stream_seed(seed, "model"))
        module = build(model, shape, classes)
    known = (MODELS.find(model) if isinstance(model, str) else model).classifiers
    return module, known[classifier] if classifier in known else _own_classifier(classifier, module, classes)


def extend_classifier(
    module: nn.Module, classifier: str, method: Method, sample: Tensor, outputs: int, seed: int
) -> None:
    """Put the classifier that a method has in the place of the model's own, whose weights stay.

    >>> from coterie.methods import FedAvg
    >>> net = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2))
    >>> extend_classifier(net, "1", FedAvg(), torch.zeros(2, 4), 2, seed=0)
    >>> net[1]
    Linear(in_features=3, out_features=2, bias=True)
    """
    if not extends_classifier(method):
        return
    own = require_classifier(module, classifier)
    seen: list[Tensor] = []
    watch = own.register_forward_pre_hook(lambda _, given: seen.append(given[0]))
    tried(module, sample)
    watch.remove()
    require(
        bool(seen), f"classifier '{classifier}': the model does not use it; name the last module of its forward pass"
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(stream_seed(seed, "beside the model"))
        extended = method.classifier(own, int(seen[0].shape[1]), outputs)
    for path in paths_of(module, own):
        parent, _, name = path.rpartition(".")
        setattr(module.get_submodule(parent), name, extended)


def _own_classifier(path: str, module: nn.Module, outputs: int) -> str:
    """The path of the classifier of somebody's own model."""
    require(path != "all", f"classifier = '{path}': name the module of your model that is its classifier")
    if path != "last":
        return path
    found = last_classifier(module, outputs)
    log.warning(
        "classifier = '%s': it is the only fully connected layer of %s with %d outputs; name it to be sure",
        found,
        type(module).__name__,
        outputs,
    )
    return found
