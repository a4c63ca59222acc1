"""The tables of the capacity page, computed; `python tests/docs/test_capacity.py` prints them."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch

from coterie.client.recipe import measures
from coterie.core.downloads import tensor_bytes
from coterie.deployment.agreement import Agreement
from coterie.deployment.disclosure import answer_with_noise
from coterie.deployment.server import Server
from coterie.methods import METHODS
from coterie.rounds.delivery import bytes_down, bytes_up

PAGE = Path(__file__).parents[2] / "docs" / "capacity.md"
MODELS = ("cnn", "lenet5", "resnet8")
SHAPE, CLASSES = (3, 32, 32), 10
CHOSEN = ("fedavg", "pfedcs", "fedrema", "fedcac", "pfedsim", "fedtc")
COUNTS = (10, 100, 1000)
ROUNDS = 8
TRAFFIC = "| model | method | up, a site | down, a site | both, 10 sites | 100 sites | 1,000 sites |"
MEMORY = "| model | method | 10 sites | 100 sites | 1,000 sites |"
LINKS = "| model | 10 sites | 100 sites | 1,000 sites |"
SECONDS = 60  # a round's time for traffic in the table of links


def spoken(count: float) -> str:
    """Bytes in a unit of a sensible size.

    >>> spoken(2_345_678), spoken(950), spoken(12_345_678_901)
    ('2.3 MB', '950 B', '12 GB')
    """
    for unit in ("B", "kB", "MB", "GB"):
        if count < 999.5 or unit == "GB":
            break
        count /= 1000
    return f"{count:.1f} {unit}" if count < 9.95 and unit != "B" else f"{count:,.0f} {unit}"


def agreement(model: str, method: str, sites: int) -> Agreement:
    names = tuple(f"site-{number}" for number in range(sites))
    training = {"shape": SHAPE, "classes": CLASSES, "method": method, "model": model, "rounds": ROUNDS}
    return Agreement(name="capacity", sites=names, quarantine=0.0, **training)  # which remembers 344 bytes of a site


def admitted(model: str, method: str, sites: int) -> Server:
    """A server whose sites are all there."""
    agreed = agreement(model, method, sites)
    server = Server(agreed)
    facts = {"columns": "", "classes": [0, CLASSES - 1], "magnitudes": [0.0]}
    hello = {"fingerprint": agreed.fingerprint, "first_weights": agreed.build().fingerprint, "snapshots": []}
    for name in agreed.sites:
        server.admit(hello | {"site": name, "samples": 10, "validation": 0, "test": 3, "facts": facts})
    return server


@cache
def traffic(model: str, method: str) -> tuple[int, int]:
    """What a site sends and receives in the round with the most traffic, by the ledger."""
    server = admitted(model, method, sites=2)
    federation, kind = server.federation, server.agreement.kind
    federation.taken_part[:] = True
    federation.values.get("has_teacher", torch.zeros(1)).fill_(1.0)  # as after a round in which all took part
    found = []
    while not server.finished:
        tasks = server.open_round(list(server.agreement.sites))
        up = bytes_up(federation, kind.uploads(federation), {})
        sent = [measure.name for measure in measures(kind.recipe(federation)) if not measure.keep]
        if sent:
            # The critical mask of FedCAC, the only measurement among these methods: a bit for each parameter.
            assert sent == ["critical"]
            up += -(-federation.layout.columns("all").size // 8)
        found.append((up, bytes_down(federation, torch.tensor([0]), {}, {})))
        answer_with_noise(server, tasks)
    return max(found, key=sum)


def state_bytes(model: str, method: str, counts: tuple[int, ...] = COUNTS) -> list[int]:
    """What the server holds between two rounds: at most quadratic in the number of sites, so three of them tell."""
    few = (2, 3, 4)
    held = []
    for count in few:
        federation = agreement(model, method, count).federation()
        METHODS[method]().init(federation)
        held.append(sum(tensor_bytes(tensor) for _, tensor in federation.state()))
    second = (held[2] - 2 * held[1] + held[0]) / 2
    first = held[1] - held[0] - second * (few[0] + few[1])
    constant = held[0] - first * few[0] - second * few[0] ** 2
    return [int(constant + first * count + second * count**2) for count in counts]


def traffic_table() -> list[str]:
    lines = [TRAFFIC, "|---|---|---|---|---|---|---|"]
    for model in MODELS:
        for method in CHOSEN:
            up, down = traffic(model, method)
            totals = (spoken((up + down) * count) for count in COUNTS)
            lines.append(f"| {' | '.join([f'`{model}`', f'`{method}`', spoken(up), spoken(down), *totals])} |")
    return lines


def memory_table() -> list[str]:
    lines = [MEMORY, "|---|---|---|---|---|"]
    for model in MODELS:
        for method in CHOSEN:
            held = map(spoken, state_bytes(model, method))
            lines.append(f"| {' | '.join([f'`{model}`', f'`{method}`', *held])} |")
    return lines


def link_table() -> list[str]:
    """The rate in each direction with which FedAvg's traffic of a round takes `SECONDS`."""
    lines = [LINKS, "|---|---|---|---|"]
    for model in MODELS:
        up, _ = traffic(model, "fedavg")
        rates = (8 * up * count / SECONDS / 1e6 for count in COUNTS)
        lines.append(f"| {' | '.join([f'`{model}`', *(f'{rate:,.1f} Mbit/s' for rate in rates)])} |")
    return lines


TABLES = {"traffic": traffic_table, "memory": memory_table, "links": link_table}


@pytest.mark.thorough
@pytest.mark.parametrize("name", TABLES)
def test_a_table_is_the_one_that_is_computed(name: str) -> None:
    table = TABLES[name]()
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    begin = lines.index(table[0])
    assert lines[begin : begin + len(table)] == table, "print it anew: python tests/docs/test_capacity.py"


@pytest.mark.thorough
@pytest.mark.parametrize("method", ["fedcac", "pfedsim"])
def test_what_is_computed_is_what_a_server_of_six_sites_holds_and_moves(method: str) -> None:
    server = admitted("lenet5", method, sites=6)
    held = sum(tensor_bytes(tensor) for _, tensor in server.federation.state())
    assert state_bytes("lenet5", method, (6,)) == [held]
    bits = {True: 1 / 8, False: 4}
    moved = []
    while not server.finished:
        tasks = server.open_round(list(server.agreement.sites))
        (down,) = {task.bytes for task in tasks.values()}
        answer = server.expected_answer().values()
        up = sum(int(np.ceil(np.prod(one.shape) * bits["bool" in str(one.dtype)])) for one in answer)
        moved.append((up, down))
        answer_with_noise(server, tasks)
    assert moved[0][1] == 0
    assert max(moved, key=sum) == traffic("lenet5", method)


if __name__ == "__main__":
    for make in TABLES.values():
        print("\n".join(make()), end="\n\n")
