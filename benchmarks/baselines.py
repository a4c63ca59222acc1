"""What the dearer baselines cost against the bare work that they need, counted in passes."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import replace

import torch
from torch.nn.functional import cross_entropy

from benchmarks.bare import bare_epochs
from benchmarks.cases import prepared, rounds_of
from benchmarks.harness import Figure, in_turns, ratio
from coterie.client.problem import Problem
from coterie.methods import MOON, FedPAC, FedRep, Method, PerFedAvg

BAR = 1.1
LR = 0.01


def bare_features(problem: Problem, trunk: torch.nn.Module, client: int) -> torch.Tensor:
    with torch.no_grad():
        return torch.cat([trunk(problem.inputs[part]) for part in problem.train[client].split(512)])


def bare_head_then_body(problem: Problem, client: int, head_epochs: int, body_epochs: int, passes: int) -> None:
    """Features once, the head on them, then the body under the frozen head; `passes` more gradient-free passes."""
    module = copy.deepcopy(problem.module)
    features_part, classifier = module.get_submodule("features"), module.get_submodule("classifier")
    assert isinstance(classifier, torch.nn.Sequential)
    body, last = torch.nn.Sequential(features_part, classifier[:-1]), classifier[-1]
    own = problem.train[client]
    features = bare_features(problem, body, client)
    optimiser = torch.optim.SGD(last.parameters(), lr=LR)
    for _ in range(head_epochs):
        for part in torch.randperm(len(own)).split(problem.training.batch):
            optimiser.zero_grad()
            cross_entropy(last(features[part]), problem.labels[own[part]]).backward()
            optimiser.step()
    last.requires_grad_(False)
    optimiser = torch.optim.SGD(body.parameters(), lr=LR)
    for _ in range(body_epochs):
        for part in torch.randperm(len(own)).split(problem.training.batch):
            index = own[part]
            optimiser.zero_grad()
            cross_entropy(last(body(problem.inputs[index])), problem.labels[index]).backward()
            optimiser.step()
    for _ in range(passes):
        bare_features(problem, body, client)


def for_all(problem: Problem, work: Callable[[int], None]) -> Callable[[], None]:
    def run() -> None:
        for client in range(len(problem.train)):
            work(client)

    return run


def against_bare_work(repeats: int = 7, samples: int = 400, epochs: int = 5) -> Iterator[Figure]:
    """A round of each method (cnn, batch 100, 5 epochs) against a hand-written loop with the passes that it needs."""
    cases: list[tuple[Method, str, Callable[[Problem, int], None]]] = [
        (MOON(), "3 forwards, 1 backward a batch", lambda p, c: bare_epochs(p, copy.deepcopy(p.module), c, LR, 3)),
        (
            PerFedAvg(),
            "2 gradients of half a batch",
            lambda p, c: bare_epochs(_halved(p), copy.deepcopy(p.module), c, LR),
        ),
        (
            FedRep(head_epochs=5, body_epochs=epochs),
            "features once, head on them, body",
            lambda p, c: bare_head_then_body(p, c, 5, epochs, passes=0),
        ),
        (
            FedPAC(),
            "features once, head on them, body, features again",
            lambda p, c: bare_head_then_body(p, c, 1, epochs, passes=1),
        ),
    ]
    for method, words, bare in cases:
        case = prepared(method, "cnn", 100, epochs, 2, samples)
        ours, _ = rounds_of(case, at=2)
        problem = case.problem()
        hand = for_all(problem, lambda client, p=problem, work=bare: work(p, client))
        seconds = in_turns({"ours": ours, "bare": hand}, repeats)
        name = f"{type(method).__name__} round, cnn, batch 100 ({words})"
        yield ratio(name, seconds["ours"], seconds["bare"], ("round", "bare work"), BAR)


def _halved(problem: Problem) -> Problem:
    return replace(problem, training=replace(problem.training, batch=problem.training.batch // 2))
