"""What a method says in `exchange` and `deliver`: yielded or returned; all else is named with its file and line."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from coterie.core.exchange import Mix, Put, Uploads
from coterie.core.mixing import by_size
from coterie.errors import CoterieError
from coterie.methods import FedAvg
from coterie.methods.base import Method
from coterie.testing.together import Together, agreed
from support import final_rows, tiny


@dataclass(frozen=True)
class Says(Method):
    """Its server step is given."""

    what: str = "list"

    def exchange(self, uploads: Uploads) -> Any:
        return SAYS[self.what](uploads)


@dataclass(frozen=True)
class Delivers(FedAvg):
    """What it makes at download is given."""

    what: Callable[[], Any] = list

    def deliver(self, federation: Any, clients: Tensor) -> Any:
        return self.what()


def a_list(uploads: Uploads) -> list[Mix]:
    return [Mix(by_size(uploads))]


def yields_a_list(uploads: Uploads) -> Iterable[Any]:
    yield a_list(uploads)


NO_TENSOR: dict[type, Any] = {list: [[1.0]], float: 3.0}
WRONG: dict[str, tuple[Callable[[Uploads], Any], str]] = {
    "forgets": (lambda uploads: None, "returns None; let it yield each Mix, Put or Drop"),
    "one": (lambda uploads: Mix(by_size(uploads)), "returns a Mix by itself; let it yield each Mix, Put or Drop"),
    "a list": (yields_a_list, "yields a list; let it yield each Mix, Put or Drop by itself"),
    "weights": (lambda uploads: by_size(uploads), "yields a Tensor; let it yield each Mix, Put or Drop by itself"),
    "the class": (lambda uploads: [Mix], "yields a type; let it yield each Mix, Put or Drop by itself"),
    "nested lists": (
        lambda uploads: [Mix(NO_TENSOR[list])],
        r"gives a Mix a list as weights; make it a tensor with torch.tensor\(...\)",
    ),
    "a number": (lambda uploads: [Put("x", NO_TENSOR[float])], "gives a Put a float as value; make it a tensor"),
}
SAYS = {"list": a_list, **{name: what for name, (what, _) in WRONG.items()}}
HERE = rf"^Says.exchange \({Path(__file__)}, line \d+\) "


@pytest.mark.parametrize("wrong", WRONG)
def test_what_is_no_action_is_named_with_file_and_line(wrong: str) -> None:
    with pytest.raises(CoterieError, match=HERE + WRONG[wrong][1]) as caught:
        tiny(Says(wrong), rounds=1).run()
    assert "\n" not in str(caught.value)


def test_a_list_may_be_returned() -> None:
    assert torch.equal(final_rows(tiny(Says()).run()), final_rows(tiny("fedavg").run()))


def test_so_it_is_where_sites_answer(tmp_path: Path) -> None:
    together = Together(agreed(Says("forgets")), tmp_path)
    together.admit()
    with pytest.raises(CoterieError, match=HERE + WRONG["forgets"][1]):
        together.round()


@pytest.mark.parametrize("said", [None, [Put("generator", torch.ones(1))]])
def test_so_is_what_is_made_at_download(said: Any) -> None:
    with pytest.raises(CoterieError, match=r"^Delivers.deliver \(.*, line \d+\) .*; let it yield each Mix or Peers"):
        tiny(Delivers(lambda: said), rounds=1).run()


def test_the_line_is_that_of_the_authors_file(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(
        '"""Mine."""\n\nfrom coterie import Method, Mix\n\n\nclass Forgets(Method):\n    """Mine."""\n\n'
        "    def exchange(self, uploads):\n        Mix((uploads.sizes / uploads.sizes.sum())[None])\n"
    )
    with pytest.raises(CoterieError, match=rf"^Forgets.exchange \({path}, line 9\) returns None"):
        tiny(f"{path}:Forgets", rounds=1).run()
