"""Tasks that no honest server sends: a site refuses them, says so with a number, and sends nothing that is personal."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from coterie.deployment.messages import RefusedError, read_text
from coterie.deployment.wire import Parcel, pack, unpack
from coterie.testing.together import Together, agreed

MALFORMED: dict[str, Any] = {
    "round": ["2", -1, 99, True, None, 10**30],
    "since": ["0", -1, 3],
    "rounds_taken": [-1, 1.5],
    "client": ["a"],
    "test": [1],
    "slots": [
        [],
        {"model": 3},
        {"model": [[0]]},
        {"model": [[5, 1]]},
        {"model": [["a", "b"]]},
        {"model": [[0, 10**9]]},
    ],
    "values": [{}, [["x"]], [{}], ["nothing of that name"]],
    "uploads": [[], {"model": 5}, {"model": ["all"]}],
    "measures": [{}, [7], [["x"]]],
    "peers": [{}, ["a"], [-1], [3], [1.5]],
    "fingerprint": [1, "another"],
}


def task_of(together: Together) -> Parcel:
    together.admit()
    return together.server.open_round(list(together.agreement.sites))["site-a"]


@pytest.mark.parametrize(("field", "value"), [(field, value) for field in MALFORMED for value in MALFORMED[field]])
def test_a_malformed_task_is_refused_whatever_is_wrong_with_it(field: str, value: object, tmp_path: Path) -> None:
    together = Together(agreed("fedper"), tmp_path)
    task = task_of(together)
    with pytest.raises(RefusedError):
        together.answer("site-a", Parcel(task.tensors, {**task.note, field: value}))


def test_a_server_that_asks_for_what_is_personal_gets_nothing(tmp_path: Path) -> None:
    """FedPer's classifier never leaves a site, whoever holds the server."""
    together = Together(agreed("fedper"), tmp_path)
    task, site = task_of(together), together.sites["site-a"]
    for greedy in ({"model": "all"}, {"model": "classifier"}, {"model": "extractor", "other": "all"}, {}):
        packed = pack(Parcel(task.tensors, {**task.note, "uploads": greedy}))
        with pytest.raises(RefusedError, match=r"what the method sends is \{'model': 'extractor'\}"):
            site.work(unpack(packed, site.expected(read_text(packed.text)["note"])))
    answer = together.answer("site-a", task)
    extractor = site.federation.layout.columns("extractor").size
    assert answer.bytes == 4 * extractor


def test_a_server_that_writes_what_is_personal_is_refused(tmp_path: Path) -> None:
    """FedPer's classifier is the site's own, whatever a server would have it begin from."""
    together = Together(agreed("fedper"), tmp_path)
    task, site = task_of(together), together.sites["site-a"]
    layout = site.federation.layout
    for group in ("classifier", "all"):
        columns = layout.columns(group)
        note = {**task.note, "slots": {"model": [list(span) for span in columns.spans]}}
        with pytest.raises(RefusedError, match="columns of slot 'model' are offered that this site alone has"):
            together.answer("site-a", Parcel({"slot.model": torch.zeros(columns.size)}, note))
    shared = layout.columns("extractor")
    note = {**task.note, "slots": {"model": [list(span) for span in shared.spans]}}
    assert together.answer("site-a", Parcel({"slot.model": torch.zeros(shared.size)}, note)).buffers


# Of each method that keeps more than a model at sites: a slot, or a value, that no server may write.
PERSONAL = {
    "ditto": ("slot.personal", "value.none"),
    "apfl": ("slot.local", "value.alpha"),
    "apple": ("slot.personal", "value.relations"),
    "fedala": ("slot.blend", "value.none"),
    "fedrod": ("slot.personal_head", "value.log_counts"),
    "feddyn": ("slot.dual", "value.none"),
    "pfedme": ("slot.personal", "value.none"),
    "fedem": ("slot.none", "value.model_shares"),
}


@pytest.mark.parametrize("method", PERSONAL)
def test_nothing_that_a_site_keeps_beside_its_model_is_ever_written_by_a_server(method: str, tmp_path: Path) -> None:
    together = Together(agreed(method), tmp_path)
    together.admit()
    together.round()
    task, site = together.server.open_round(list(together.agreement.sites))["site-a"], together.sites["site-a"]
    for name in PERSONAL[method]:
        kind, _, what = name.partition(".")
        if what == "none":
            continue
        note, tensors = dict(task.note), dict(task.tensors)
        if kind == "slot":
            columns = site.federation[what].own_columns
            note["slots"] = {**note["slots"], what: [list(span) for span in columns.spans]}
            tensors[name] = torch.zeros(columns.size)
        else:
            note["values"] = [*note["values"], what]
            tensors[name] = torch.zeros_like(site.federation.value_of(what, site.client))
        with pytest.raises(RefusedError, match=f"'{what}' (is|are) offered,? (that|which) this site alone has"):
            together.answer("site-a", Parcel(tensors, note))
    assert together.answer("site-a", task), "what an honest server sends is taken"


def test_who_has_not_taken_part_yet_may_be_given_a_model_to_begin_from(tmp_path: Path) -> None:
    """pFedMe gives newcomers the mean of the others as their personal model, once."""
    together = Together(agreed("pfedme"), tmp_path)
    together.admit()
    together.round("site-a", "site-b")
    task = together.server.open_round(list(together.agreement.sites))["site-c"]
    assert "slot.personal" in task.tensors
    assert together.answer("site-c", task)
