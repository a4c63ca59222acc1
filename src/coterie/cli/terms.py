"""The options of `federation init`: all that a federation agrees on. What was not given stays `None`.

Nothing heavy is imported here: `coterie --help` must answer at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Annotated, Any, get_args, get_type_hints

from cyclopts import Group, Parameter, Token

from coterie.cli.settings import TRAINING, GivenSettings, option
from coterie.options import coerced

SITES = Group("Sites and their data", sort_key=1)
WAITING = Group("How long the server waits", sort_key=5)

_SETTINGS = get_type_hints(GivenSettings, include_extras=True)


def _same(name: str) -> Parameter:
    """The option of `run` of that name."""
    found = get_args(_SETTINGS[name])[1]
    assert isinstance(found, Parameter)
    return found


def read_texts(_: Any, tokens: Sequence[Token]) -> list[str]:
    """Values separated by commas, or given one by one."""
    parts = [part.strip() for token in tokens for part in token.value.split(",")]
    return [part for part in parts if part]


def read_numbers(wanted: Any, tokens: Sequence[Token]) -> list[int]:
    """The same for whole numbers."""
    keyword = (tokens[0].keyword or "value").lstrip("-")
    return [coerced(keyword, part, int) for part in read_texts(wanted, tokens)]


def _several(help: str, default: str, group: Group, *names: str, numbers: bool = False) -> Parameter:
    converter = read_numbers if numbers else read_texts
    return Parameter(
        name=names or None, help=help, show_default=default, group=group, converter=converter, negative=(), n_tokens=1
    )


@Parameter(name="*")
@dataclass(frozen=True)
class Terms:
    """Every term of an agreement but its method, each `None` unless it was given."""

    name: Annotated[str | None, option("The federation's name.", "the folder's", SITES)] = None
    sites: Annotated[
        list[str] | None, _several("The sites' names, separated by commas.", "none", SITES, "--sites", "--site")
    ] = None
    shape: Annotated[
        list[int] | None,
        _several("The shape of one input, such as 3,32,32 (or 12 for 12 columns).", "none", SITES, numbers=True),
    ] = None
    classes: Annotated[int | None, option("How many classes are told apart.", "as many as names", SITES)] = None
    class_names: Annotated[
        list[str] | None,
        _several("Their names, separated by commas; sites' labels are matched with them.", "none", SITES),
    ] = None
    test: Annotated[float | None, option("The share of its data that a site sets aside for tests.", 0.25, SITES)] = None
    validation: Annotated[
        float | None, option("The share of the rest that it sets aside to judge models.", 0.0, SITES)
    ] = None

    model: Annotated[str | None, _same("model")] = None
    classifier: Annotated[str | None, _same("classifier")] = None
    stats: Annotated[str | None, _same("stats")] = None

    rounds: Annotated[int | None, _same("rounds")] = None
    join: Annotated[float | None, option("The share of sites that take part in a round.", 1.0, TRAINING)] = None
    epochs: Annotated[int | None, _same("epochs")] = None
    batch: Annotated[int | None, _same("batch")] = None
    lr: Annotated[float | None, _same("lr")] = None
    optimizer: Annotated[str | None, _same("optimizer")] = None
    momentum: Annotated[float | None, _same("momentum")] = None
    weight_decay: Annotated[float | None, _same("weight_decay")] = None
    clip: Annotated[float | None, _same("clip")] = None
    schedule: Annotated[str | None, _same("schedule")] = None
    decay: Annotated[float | None, _same("decay")] = None
    seed: Annotated[int | None, option("The seed of everything random.", 0, TRAINING)] = None

    gather: Annotated[float | None, option("Seconds that the first round waits for all sites.", 60.0, WAITING)] = None
    least_sites: Annotated[int | None, option("A round needs the answers of so many sites.", 1, WAITING)] = None
    deadline: Annotated[
        float | None, option("Seconds after which a round goes on without the sites that are late.", 600.0, WAITING)
    ] = None
    patience: Annotated[
        float | None, option("Seconds that the server waits for enough sites before it gives up.", 3600.0, WAITING)
    ] = None

    def given(self) -> dict[str, Any]:
        """The terms that were given."""
        values = {item.name: getattr(self, item.name) for item in fields(self)}
        return {name: value for name, value in values.items() if value is not None}
