"""What a federation's server and sites agree on: one TOML file, the same at all of them."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import torch
from torch import nn

from coterie import options
from coterie.client.model import check_split, single_samples_fail
from coterie.client.rehearsal import SAMPLES, rehearse
from coterie.core.federation import Federation
from coterie.core.layout import Layout, require_classifier
from coterie.core.task import Classification, Task
from coterie.deployment.agreement_terms import CHANGEABLE, LINEAGE, FederationTerms
from coterie.deployment.bounds import Screen
from coterie.errors import require, unknown
from coterie.methods import METHODS, Method
from coterie.models import MODELS
from coterie.models.layers import with_group_norm
from coterie.models.registry import is_built_in
from coterie.partition.rule import Split
from coterie.registry import Registry, is_reference, named, reference_to
from coterie.rounds.sampler import SAMPLERS, Sampler
from coterie.rounds.stages import STAGES, Clients, Stage, require_enough
from coterie.setup.config import method_name, read_toml, to_toml
from coterie.setup.features import LISTS, JointTraining
from coterie.setup.parts import sampler_of, stages_of
from coterie.setup.prepared import extend_classifier, initial_model
from coterie.setup.settings import PARTS, make_method

SCALING = "inputs.scaling"
"""The value that says what is done to each column at all sites: shift and divisor `[2, n]`, zeros until it is fixed."""
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")


@dataclass(frozen=True, kw_only=True)
class Agreement(FederationTerms):
    """A federation of named sites: its method, model and training, and how long the server waits for whom.

    `shape` is that of one input, `class_names` (or `classes`, their number) what is told apart. `test` is the share
    of its own data that a site sets aside for testing, `validation` that of the rest for judging models. A round goes
    on without the sites that have not answered within `deadline` seconds, or sooner where they are known to be quicker,
    as long as `least_sites` (a majority, and at least 2, unless told otherwise) have. At the start the server waits up
    to `gather` seconds for everybody; later it waits up to `patience` seconds for `least_sites` and then gives up.

    >>> two = Agreement(name="trial", sites=("a", "b"), shape=(1, 8, 8), classes=10, method="fedper")
    >>> two.federation().clients, Agreement.parse(two.plain()) == two
    (2, True)
    """

    method: Method | str = FederationTerms.method
    model: str = FederationTerms.model

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.method, str):
            self._require_installed("method", self.method)
            object.__setattr__(self, "method", make_method(self.method, {}))
        self._require_installed("method", reference_to(type(self.method)) or "")
        self._require_installed("model", self.model)
        for option in PARTS & options.option_fields(type(self)).keys():
            for reference in options.references_in(getattr(self, option)):
                self._require_installed(option, reference)
        for item in ("sites", "shape", "class_names", "former", "numbers"):
            object.__setattr__(self, item, tuple(getattr(self, item)))
        object.__setattr__(self, "classes", self.classes or len(self.class_names))
        for name in (self.name, *self.sites):
            allowed = "letters, digits, '.', '_' and '-', at most 63 of them"
            require(bool(NAME.fullmatch(name)), f"name '{name}': must be made of {allowed}")
        require(len(self.sites) >= 1, "sites: name at least one site")
        require(len(set(self.sites)) == len(self.sites), f"sites = {', '.join(self.sites)}: must all be different")
        numbered = len(set(self.numbers)) == len(self.numbers) and all(type(n) is int and n >= 0 for n in self.numbers)
        require(
            numbered and len(self.numbers) in (0, len(self.sites)),
            f"numbers = {list(self.numbers)}: must be a number of its own for each of the {len(self.sites)} sites",
        )
        sides = all(type(side) is int and side >= 1 for side in self.shape) and 1 <= len(self.shape) <= 4
        require(sides, f"shape = {list(self.shape)}: must be the lengths of one input, such as [3, 32, 32]")
        self.check_inputs(self.shape)
        require(self.classes >= 2, f"classes = {self.classes}: at least 2 are needed (or name them: class_names)")
        named = len(self.class_names)
        require(named in (0, self.classes), f"class_names: {named} names for {self.classes} classes")
        require(len(set(self.class_names)) == named, "class_names: must all be different")
        MODELS.find(self.model)
        require(
            not self.scale or len(self.shape) == 1,
            f"scale = {self.scale}: is for columns of numbers, and shape = {list(self.shape)}; leave it out",
        )
        most = len(self.sites)
        if not self.least_sites:
            usual = range(min(most, max(2, most // 2 + 1)), most + 1)
            enough = (count for count in usual if not any(part.lacks(self._contributors(count)) for part in self.parts))
            object.__setattr__(self, "least_sites", next(enough, most))
        require(1 <= self.least_sites <= most, f"least_sites = {self.least_sites}: must lie in 1..{most}, the sites")
        _ = self.split
        require(
            self.validation == 0 or not any(part.hides_results for part in self.parts),
            f"validation = {self.validation:g}: validation scores are not told where privacy is promised; leave one of "
            "the two out",
        )
        fewest, way_out = self._contributors(self.least_sites), f"raise least_sites (it is {self.least_sites}) or join"
        require_enough(self.parts, fewest, way_out)

    def _contributors(self, present: int) -> int:
        """How many sites a mix may have at the least if no fewer than these are there."""
        return min(present, self.drawing.count(present))

    @classmethod
    def parse(cls, values: Mapping[str, Any]) -> Agreement:
        """The agreement that plain values describe, each checked."""
        given = dict(values)
        named = str(given.pop("method", "fedavg"))
        cls._require_installed("method", named)  # before anything of it is loaded
        method_set = given.pop("set", {})
        require(isinstance(method_set, Mapping), f"set = {method_set!r}: must be a table of the method's options")
        method = make_method(named, dict(method_set))
        hints = options.field_types(cls)
        known = {item.name for item in fields(cls)}
        for key in given:
            if key not in known:
                raise unknown("option", key, known | {"set"})
        for key in ("name", "sites", "shape"):
            require(key in given, f"{key}: is missing from the federation's file")
        plain: dict[str, Any] = {
            key: tuple(value) if isinstance(value, (list, tuple)) else options.coerced(key, value, hints[key])
            for key, value in given.items()
        }
        return cls(method=method, **plain)

    @classmethod
    def read(cls, path: Path) -> Agreement:
        """The agreement in a TOML file."""
        return cls.parse(read_toml(path))

    def plain(self) -> dict[str, Any]:
        """Everything as plain values, for TOML."""
        method = self.kind
        training = {item.name for item in fields(JointTraining)}
        names = sorted((item.name for item in fields(self)), key=lambda name: name in training)  # who, then how
        values = {name: getattr(self, name) for name in names} | {"method": method_name(method)}
        values = {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}
        if self.version == 1:
            values = {name: value for name, value in values.items() if name not in LINEAGE}
        method_options = {name: getattr(method, name) for name in options.option_fields(type(method))}
        values["set"] = {name: value for name, value in method_options.items() if value is not None}
        return {name: value for name, value in values.items() if value is not None}

    def toml(self) -> str:
        """The agreement as a TOML file."""
        return to_toml(self.plain())

    @property
    def fingerprint(self) -> str:
        """The hash of an agreement in short."""
        return self.digest[:16]

    @property
    def digest(self) -> str:
        """A hash that differs where anything differs on which results depend, plug-ins included."""
        values = {name: value for name, value in self.plain().items() if name not in CHANGEABLE}
        origins = {"method": METHODS.origin(values["method"]), "model": MODELS.origin(self.model)}
        origins |= {part: registry.origin(part.partition(":")[0]) for part, registry in self._named_parts()}
        plugins = {name: asdict(origin) for name, origin in origins.items() if origin is not None}
        if plugins:
            values["plugins"] = plugins
        return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()

    def _named_parts(self) -> Iterator[tuple[str, Registry[Any]]]:
        """The parts of a round that texts name, each with the list that it stands in."""
        lists: dict[str, Registry[Any]] = {"sampler": SAMPLERS, "stages": STAGES}
        lists |= {option: named(text) for option, text in LISTS.items() if getattr(self, option, "")}
        for option, registry in lists.items():
            yield from ((part, registry) for part in getattr(self, option).split("+") if part)

    @property
    def clients(self) -> Clients:
        """Who takes part."""
        return Clients(torch.tensor(self.keys), self.sites)

    @property
    def parts(self) -> tuple[Stage, ...]:
        """What uploads go through."""
        screen = (Screen(self.norm_limit),) if self.norm_limit else ()  # first at a site, so last at the server
        return (*screen, *stages_of(self, self.clients))

    @property
    def drawing(self) -> Sampler:
        """Who of those that are there is asked in a round."""
        return sampler_of(self, self.clients)

    @property
    def keys(self) -> tuple[int, ...]:
        """Who each site is to the random streams, whatever its place among the others."""
        return self.numbers or tuple(range(len(self.sites)))

    @property
    def kind(self) -> Method:
        """The method itself."""
        assert isinstance(self.method, Method)
        return self.method

    @property
    def task(self) -> Task:
        """What the sites learn: to tell classes apart."""
        return Classification(self.classes)

    @property
    def split(self) -> Split:
        """How a site divides its own data."""
        return Split(self.test, self.validation)

    @staticmethod
    def _require_installed(option: str, text: str) -> None:
        """An error if something is named by a path: sites cannot agree on what stands in somebody's file."""
        require(
            not is_reference(text),
            f"{option} = '{text}': a federation takes installed plug-ins only, never a path; make it a package with an "
            "entry point (docs/plugins.md) that all sites install",
        )

    def build(self) -> Blueprint:
        """The model with its first weights, and what follows from it."""
        module, classifier = initial_model(self.model, self.classifier, self.shape, self.task.outputs, self.seed)
        if self.norm == "group":
            module = with_group_norm(module)
        sample = torch.zeros(2, *self.shape)
        extend_classifier(module, classifier, self.kind, sample, self.task.outputs, self.seed)
        layout = Layout(module, classifier, self.stats or self.kind.stats)
        width = check_split(module, layout, sample)
        if not is_built_in(self.model):
            rehearse(
                module, layout, torch.rand(SAMPLES, *self.shape, generator=torch.Generator().manual_seed(self.seed))
            )
        return Blueprint(module, layout, width, single_samples_fail(module, sample[:1]))

    def federation(self, blueprint: Blueprint | None = None, make: type[Federation] = Federation) -> Federation:
        """A federation of all sites before the first round; what data they hold is not known yet."""
        blueprint = blueprint or self.build()
        count = len(self.sites)
        federation = make(
            layout=blueprint.layout,
            initial=blueprint.layout.row(blueprint.module),
            sizes=torch.zeros(count, dtype=torch.int64),
            class_counts=torch.zeros(count, self.classes, dtype=torch.int64),
            keys=torch.tensor(self.keys),
            rounds=self.rounds,
            seed=self.seed,
            feature_width=blueprint.feature_width,
            head=require_classifier(blueprint.module, blueprint.layout.classifier),
            task=self.task,
            training=self.training,
            validation_sizes=torch.zeros(count, dtype=torch.int64),
            skip_single_samples=blueprint.skip_single_samples,
        )
        for stage in self.parts:
            stage.attach(federation)
        if self.scale:
            federation.add_value(SCALING, torch.zeros(2, *self.shape))
        federation.add_slot("model", blueprint.layout.everything, shared=self.kind.shared)
        return federation


@dataclass(frozen=True)
class Blueprint:
    """A model and what was found out about it."""

    module: nn.Module
    layout: Layout
    feature_width: int
    skip_single_samples: bool

    @property
    def fingerprint(self) -> str:
        """A short text that differs if the first weights do: the seed gives others with another PyTorch."""
        return hashlib.sha256(self.layout.row(self.module).numpy().tobytes()).hexdigest()[:16]
