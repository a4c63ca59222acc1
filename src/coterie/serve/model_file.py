"""The file of one site's model: tensors by their names in the module, and a description as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from torch import Tensor

from coterie.core.layout import Layout
from coterie.data.scaling import AgreedScale
from coterie.deployment.agreement import Agreement
from coterie.errors import CoterieError, require
from coterie.methods.base import Method, extends_classifier
from coterie.runs.tensors import load_tensors, save_tensors
from coterie.setup.config import method_name
from coterie.version import VERSION

KEY = "coterie"
FORMAT = 1


@dataclass(frozen=True)
class About:
    """What is known about a site's model.

    `classifier` is a module's path, `set` the method's options. `finished` says whether the federation came to its
    end at the site; if not, `note` says what that means for the model. `trained_on` is the site's `OwnData`, by which
    its held-out samples are known again. `feature_names` are those of the inputs, in their order, if they have any.
    `plain` says that the method predicts what its model puts out, so that nobody needs the method for it. `scaling` is
    the shift and the divisor of each column, where a scale was agreed on: whoever loads the model applies them, and a
    program does so itself.
    """

    model: str
    shape: tuple[int, ...]
    classes: int
    class_names: tuple[str, ...]
    classifier: str
    stats: str
    method: str
    set: dict[str, Any]
    federation: str
    site: str
    round: int
    rounds: int
    finished: bool = True
    note: str = ""
    trained_on: dict[str, Any] | None = None
    task: str = "classification"
    feature_names: tuple[str, ...] = ()
    norm: str | None = None
    plain: bool = False
    scaling: dict[str, list[float]] | None = None
    version: str = VERSION
    format: int = FORMAT

    @classmethod
    def of(cls, agreement: Agreement, layout: Layout, site: str, round: int, finished: bool, note: str = "") -> About:
        """The description of a site's model after a round."""
        return cls(
            model=agreement.model,
            shape=agreement.shape,
            classes=agreement.classes,
            class_names=agreement.class_names,
            classifier=layout.classifier,
            stats=layout.stats,
            method=method_name(agreement.kind),
            set=dict(agreement.plain()["set"]),
            federation=agreement.name,
            site=site,
            round=round,
            rounds=agreement.rounds,
            finished=finished,
            note=note,
            norm=agreement.norm,
            plain=is_plain(agreement.kind),
        )

    def agreement(self) -> Agreement:
        """An agreement of this site alone, with what prediction depends on; it names nobody else."""
        same = ("model", "shape", "classes", "class_names", "classifier", "stats", "norm", "rounds")
        names = same if self.plain else (*same, "method", "set")
        values = {name: value for name in names if (value := getattr(self, name)) is not None}
        # Of names nothing depends; clients of a run may have any.
        return Agreement.parse(values | {"name": "prediction", "sites": ["site"], "least_sites": 1})

    def class_name(self, number: int) -> str:
        """What a class is called: its name, or its number."""
        return self.class_names[number] if self.class_names else str(number)


def is_plain(method: Method) -> bool:
    """Whether the method predicts what its tested module puts out, which is the model as others know it."""
    return type(method).predict is Method.predict and not extends_classifier(method)


def require_exportable(method: Method) -> None:
    """An error if a model's file would have to hold the client's samples."""
    require(
        not method.predicts_with_samples,
        f"method = {method_name(method)}: a client predicts with its own training samples, which no file of a model "
        "holds; predict in a run (open_run(...).predict)",
    )


def write_model(path: Path, tensors: Mapping[str, Tensor], about: About) -> None:
    """Write a model's file, whole or not at all."""
    save_tensors(path, tensors, {"format": "pt", KEY: json.dumps(asdict(about))})


def read_model(path: Path) -> tuple[dict[str, Tensor], About]:
    """A model's tensors and its description."""
    tensors, metadata = read_tensors(path)
    require(KEY in metadata, f"'{path}' is no model that Coterie exported ('coterie federation model' writes one)")
    try:
        values = json.loads(metadata[KEY])
    except (ValueError, RecursionError) as error:
        raise _not_a_description(path, error) from None
    about = about_from(values, path)
    try:
        about.agreement()
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise _not_a_description(path, error) from None
    return tensors, about


def about_from(values: Any, path: Path) -> About:
    """The description that plain values from a file give; an error in one line if they give none."""
    try:
        known = {item.name for item in fields(About)}
        require(values["format"] <= FORMAT, f"it was written by a newer version of Coterie ({values['version']})")
        told = {name: value for name, value in values.items() if name in known}
        told.setdefault("feature_names", ())
        for name, kind in (("shape", int), ("class_names", str), ("feature_names", str)):
            told[name] = tuple(told[name])
            require(all(isinstance(one, kind) for one in told[name]), f"{name} = {told[name]}: cannot be")
        columns = told["feature_names"]
        require(
            not columns or told["shape"] == (len(columns),), f"feature_names = {columns}: there must be one an input"
        )
        if told.get("scaling") is not None:
            shift = AgreedScale.parse(told["scaling"]).shift
            require(told["shape"] == tuple(shift.shape), "scaling: there must be one for each input")
        return About(**told)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise _not_a_description(path, error) from None


def _not_a_description(path: Path, error: Exception) -> CoterieError:
    return CoterieError(f"'{path}': its description is not that of a model ({' '.join(str(error).split())})")


def read_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors and texts of a safetensors file; an error in one line if it is none."""
    try:
        return load_tensors(path)
    except (SafetensorError, OSError) as error:
        raise CoterieError(f"cannot read '{path}': it is no safetensors file, or damaged ({error})") from None
