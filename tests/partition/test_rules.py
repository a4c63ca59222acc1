"""What every partition rule promises."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.data.dataset import Dataset
from coterie.errors import CoterieError
from coterie.partition import (
    PARTITIONS,
    ByClient,
    ByDomain,
    Dirichlet,
    DirichletPerClient,
    Dominant,
    ExtendedDirichlet,
    Iid,
    Partition,
    Pathological,
    Quantity,
    Rule,
    Split,
    TwoClass,
)


def toy(
    samples: int = 3000,
    classes: int = 10,
    train_size: int = -1,
    owners: list[int] | None = None,
    owner_names: tuple[str, ...] = (),
) -> Dataset:
    labels = torch.as_tensor(np.random.default_rng(0).permutation(np.arange(samples) % classes))
    owned = None if owners is None else torch.tensor(owners)
    return Dataset("toy", torch.zeros(samples, 1), labels, classes, train_size, owned, owner_names)


OWNED = toy(3000, owners=[k % 6 for k in range(3000)], owner_names=tuple("abcdef"))
EVERY_RULE: list[Rule] = [
    Iid(7),
    Quantity(10, 0.3),
    Quantity(10, 0.02),
    ExtendedDirichlet(10, 2, 0.3),
    ExtendedDirichlet(10, 3, 0.02),
    Pathological(10, 2),
    Pathological(10, 3, variant="random"),
    Dirichlet(10, 0.3),
    Dirichlet(10, 0.02),
    DirichletPerClient(8, 50, 10),
    TwoClass(8, 50, 10),
    Dominant(10, samples=100),
    ByDomain(2),
    ByClient(),
]
DISJOINT = [rule for rule in EVERY_RULE if not isinstance(rule, (DirichletPerClient, TwoClass))]


def labels_of(rule: Rule) -> str:
    return f"{rule.name}-{getattr(rule, 'variant', '')}"


def all_indices(partition: Partition) -> np.ndarray:
    return np.concatenate([*partition.train, *partition.validation, *partition.test])


def test_the_registry_holds_every_rule_under_its_name_with_a_one_line_summary() -> None:
    assert set(PARTITIONS) == {
        "iid",
        "quantity",
        "pathological",
        "dirichlet",
        "extended_dirichlet",
        "dirichlet_per_client",
        "two_class",
        "dominant",
        "quantile",
        "by_domain",
        "by_client",
    }
    for name, rule in PARTITIONS.items():
        assert rule.name == name
        assert dataclasses.is_dataclass(rule)
        assert str(rule.__doc__).splitlines()[0].endswith(".")
        assert not str(rule.__doc__).startswith(rule.__name__ + "(")


@pytest.mark.parametrize("rule", EVERY_RULE, ids=labels_of)
def test_same_seed_same_partition_and_another_seed_another(rule: Rule) -> None:
    split = Split(0.25, validation=0.1)
    first, again, other = rule(OWNED, 3, split), rule(OWNED, 3, split), rule(OWNED, 4, split)
    assert first.hash == again.hash
    assert first == again
    assert any(not np.array_equal(a, b) for a, b in zip(first.train, other.train, strict=True))
    assert first.hash != other.hash


@pytest.mark.parametrize("rule", EVERY_RULE, ids=labels_of)
def test_every_rule_checks_out_and_records_all_that_repeats_it(rule: Rule) -> None:
    partition = rule(OWNED, 5, Split(0.3, validation=0.2))
    partition.check(OWNED)
    assert partition.rule == rule.name
    assert partition.parameters["seed"] == 5
    assert partition.parameters["validation"] == 0.2
    assert partition.parameters["data_size"] == len(OWNED)
    given: Any = rule
    options = {field.name: partition.parameters[field.name] for field in dataclasses.fields(given)}
    assert type(rule)(**options)(OWNED, 5, Split(0.3, validation=0.2)).train[0].tolist() == partition.train[0].tolist()
    assert all(len(part) for part in partition.validation)
    assert partition.parameters["clients"] == partition.clients == len(partition.names)


@pytest.mark.parametrize("rule", DISJOINT, ids=labels_of)
def test_disjoint_rules_give_each_sample_to_one_part_of_one_client(rule: Rule) -> None:
    indices = all_indices(rule(OWNED, 1, Split(0.25, validation=0.2)))
    assert len(np.unique(indices)) == len(indices)


@pytest.mark.parametrize("rule", [r for r in DISJOINT if not isinstance(r, Dominant)], ids=labels_of)
def test_rules_over_all_data_lose_no_sample(rule: Rule) -> None:
    partition = rule(OWNED, 3)
    if isinstance(rule, Pathological) and rule.variant == "random" and partition.notes:
        pytest.fail(f"choose another seed: {partition.notes}")
    assert len(all_indices(partition)) == len(OWNED)


def test_default_splits_follow_the_protocols() -> None:
    assert [len(p) for p in Iid(10)(toy(1000), 0).test] == [25] * 10
    dominant = Dominant(20, samples=600)(toy(30_000), 0)
    assert dominant.sizes.tolist() == [480] * 20
    assert [len(p) for p in dominant.test] == [120] * 20
    assert Dominant(20, samples=100)(toy(30_000), 0).sizes.tolist() == [80] * 20


@given(samples=st.integers(1, 300), clients=st.integers(1, 40), seed=st.integers(0, 5))
@settings(max_examples=40, deadline=None)
def test_iid_sizes_differ_by_at_most_one(samples: int, clients: int, seed: int) -> None:
    data = toy(samples, 2)
    if clients > samples:
        with pytest.raises(CoterieError, match=f"clients = {clients}: must be at most {samples}"):
            Iid(clients)(data, seed)
        return
    partition = Iid(clients)(data, seed)
    sizes = [len(a) + len(b) for a, b in zip(partition.train, partition.test, strict=True)]
    assert max(sizes) - min(sizes) <= 1
    assert sorted(all_indices(partition).tolist()) == list(range(samples))


def test_by_client_gives_each_owner_its_own_samples() -> None:
    partition = ByClient()(OWNED, 0)
    assert partition.names == tuple("abcdef")
    assert OWNED.owners is not None
    for owner in range(6):
        held = np.concatenate([partition.train[owner], partition.test[owner]])
        assert set(OWNED.owners[held].tolist()) == {owner}
        assert len(held) == 500
    few = ByClient(clients=2)(OWNED, 0)
    assert few.clients == 2
    assert set(few.names) < set("abcdef")
    assert ByClient(clients=2)(OWNED, 0).names == few.names


def test_by_domain_shares_each_domain_evenly_among_its_clients() -> None:
    partition = ByDomain(clients_per_domain=3)(OWNED, 0)
    assert partition.names[:4] == ("a-0", "a-1", "a-2", "b-0")
    assert OWNED.owners is not None
    for client in range(18):
        held = np.concatenate([partition.train[client], partition.test[client]])
        assert set(OWNED.owners[held].tolist()) == {client // 3}
        assert len(held) in (166, 167)


def test_owners_without_names_are_numbered_and_an_owner_without_samples_is_named() -> None:
    assert ByClient()(toy(6, 2, owners=[0, 0, 0, 1, 1, 1]), 0).names == ("0", "1")
    with pytest.raises(CoterieError, match="client 'lonely' has no samples"):
        ByClient()(toy(4, 2, owners=[0, 0, 2, 2], owner_names=("a", "lonely", "c")), 0)
    with pytest.raises(CoterieError, match=r"owners lie in 0..2 but have 2 names"):
        ByClient()(toy(4, 2, owners=[0, 0, 2, 2], owner_names=("a", "b")), 0)
    with pytest.raises(CoterieError, match="clients_per_domain = 3: must be at most 2"):
        ByDomain(3)(toy(4, 2, owners=[0, 0, 1, 1]), 0)
    with pytest.raises(CoterieError, match="clients = 3: must be at most 2"):
        ByClient(3)(toy(4, 2, owners=[0, 0, 1, 1]), 0)


@pytest.mark.parametrize("rule", [ByDomain(), ByClient()], ids=labels_of)
def test_natural_rules_ask_for_owners(rule: Rule) -> None:
    with pytest.raises(CoterieError, match=f"partition = {rule.name}: data 'toy' does not say whose"):
        rule(toy(), 0)


@pytest.mark.parametrize("name", sorted(set(PARTITIONS) - {"by_domain"}))
@pytest.mark.parametrize("clients", [0, -3, 2.5, True])
def test_clients_must_be_a_whole_positive_number(name: str, clients: int) -> None:
    rule: Any = PARTITIONS[name]
    with pytest.raises(CoterieError, match=f"clients = {clients}: must be a whole number"):
        rule(clients=clients)


@pytest.mark.parametrize("rule", [Dirichlet, DirichletPerClient, Quantity, ExtendedDirichlet])
@pytest.mark.parametrize("alpha", [0, -1])
def test_alpha_must_be_positive(rule: type[Dirichlet], alpha: float) -> None:
    with pytest.raises(CoterieError, match=f"alpha = {alpha}: must be greater than 0"):
        rule(alpha=alpha)


@pytest.mark.parametrize("rule", [Dirichlet, DirichletPerClient, Quantity, ExtendedDirichlet])
@pytest.mark.parametrize("alpha", [float("nan"), float("inf")])
def test_alpha_must_be_finite(rule: type[Dirichlet], alpha: float) -> None:
    with pytest.raises(CoterieError, match=f"alpha = {alpha}: must be a number, finite"):
        rule(alpha=alpha)


@pytest.mark.parametrize(
    "rule", [Iid(11), Pathological(11, 1), Dirichlet(11), Quantity(11), ExtendedDirichlet(11)], ids=labels_of
)
def test_more_clients_than_samples_is_an_error(rule: Rule) -> None:
    with pytest.raises(CoterieError, match="clients = 11: must be at most 10"):
        rule(toy(10, 2), 0)


def test_other_mistakes_name_the_option() -> None:
    with pytest.raises(CoterieError, match="unknown variant 'ordr'; did you mean 'order'"):
        Pathological(variant="ordr")
    with pytest.raises(CoterieError, match="classes_per_client = 0"):
        Pathological(classes_per_client=0)
    with pytest.raises(CoterieError, match="classes_per_client = 11: must be from 1 to 10"):
        Pathological(classes_per_client=11)(toy(), 0)
    with pytest.raises(CoterieError, match="least = 151: must be at most 150"):
        Dirichlet(20, least=151)(toy(3000), 0)
    with pytest.raises(CoterieError, match="least = 0"):
        Dirichlet(least=0)
    with pytest.raises(CoterieError, match=r"iid = 1.5: must be from 0 to 1"):
        Dominant(iid=1.5)
    with pytest.raises(CoterieError, match="seed = -1"):
        Iid(2)(toy(), -1)
