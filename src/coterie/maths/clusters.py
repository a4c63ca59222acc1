"""Groups of clients: splitting one in two, centres that follow their members, and other starts for these."""

from __future__ import annotations

import torch
from torch import Tensor

from coterie.core.federation import Federation
from coterie.core.mixing import among
from coterie.rng import torch_stream


def two_halves(similarity: Tensor, method: str = "single") -> Tensor:
    """Two groups by linkage on `similarity [m, m]`, m ≥ 2: `[m]` bool, True in the smaller group.

    Of groups that are equally large, it is True in the one that the first row is not in.

    `single` makes the largest similarity across the two as small as can be; `complete` joins groups whose least
    similar members are most similar.

    >>> two_halves(torch.tensor([[1.0, 0.9, -0.5], [0.9, 1.0, -0.6], [-0.5, -0.6, 1.0]]))
    tensor([False, False,  True])
    """
    distances = (1 - similarity.double()).fill_diagonal_(0)
    from scipy.cluster.hierarchy import cut_tree, linkage  # slow to import, seldom needed
    from scipy.spatial.distance import squareform

    condensed = squareform(distances.numpy(), checks=False)
    second = torch.from_numpy(cut_tree(linkage(condensed, method=method), n_clusters=2)[:, 0] == 1)
    return second if int(second.sum()) * 2 <= len(second) else ~second


def lloyd(points: Tensor, centres: Tensor, steps: int) -> tuple[Tensor, Tensor]:
    """Lloyd's iteration on `points [m, n]` from `centres [q, n]`: each point's nearest centre `[m]`, and the centres.

    A centre without members moves to the point that is farthest from its own centre, as long as there is one
    that is not a centre already; so equal first centres spread out from the first step on.

    >>> lloyd(torch.tensor([[0.0], [1.0], [9.0]]), torch.zeros(2, 1), steps=5)
    (tensor([0, 0, 1]), tensor([[0.5000],
            [9.0000]], dtype=torch.float64))
    """
    points, centres = points.double(), centres.double().clone()
    nearest = _assigned(points, centres)
    for _ in range(steps):
        before = centres.clone()
        for group in range(len(centres)):
            members = nearest == group
            if bool(members.any()):
                centres[group] = points[members].mean(0)
        nearest = _assigned(points, centres)
        if torch.equal(before, centres):
            break
    return nearest, centres


def _assigned(points: Tensor, centres: Tensor) -> Tensor:
    """The nearest centre of each point `[m]`; centres without members are moved first, in place."""
    for _ in range(len(centres)):
        away, nearest = _squared_distances(points, centres).min(1)
        empty = torch.bincount(nearest, minlength=len(centres)) == 0
        if not bool(empty.any()) or float(away.max()) == 0:
            break
        centres[int(empty.nonzero()[0])] = points[int(away.argmax())]
    return _squared_distances(points, centres).argmin(1)


def _squared_distances(points: Tensor, centres: Tensor) -> Tensor:
    """‖point − centre‖² for every pair: `[m, q]`; a centre that equals a point is at distance 0 exactly."""
    return torch.stack([(points - centre).square().sum(1) for centre in centres], 1)


def within_groups(groups: Tensor, sources: Tensor) -> Tensor:
    """Everybody learns equally from the `sources [K]` (bool) of its own group; from itself if there are none.

    `groups [K]` says who belongs together: the result is `[K, K]`.

    >>> within_groups(torch.tensor([0, 0, 1]), torch.tensor([True, False, False]))
    tensor([[1., 0., 0.],
            [1., 0., 0.],
            [0., 0., 1.]], dtype=torch.float64)
    """
    members = (groups[:, None] == groups[None]) & sources[None]
    alone = ~members.any(1)
    members[alone, alone.nonzero()[:, 0]] = True
    return among(members, torch.ones(len(groups)))


def other_start(federation: Federation, number: int) -> Tensor:
    """The initial row with the elements of every parameter in another order: `[P]`.

    Where a layer's elements are drawn independently of each other, as all of PyTorch's are, that is as good as another
    draw; constants such as zeros stay what they are. Running statistics keep their places. The order follows from the
    run's seed and `number`, so that everybody knows it without being told.

    >>> from coterie.runs.experiment import Experiment
    >>> federation = Experiment("fedavg").prepare().federation()
    >>> row = other_start(federation, 1)
    >>> bool((row != federation.initial).any()), bool(torch.isclose(row.sum(), federation.initial.sum()))
    (True, True)
    """
    row = federation.initial.clone()
    stream = torch_stream(federation.seed, "other start", number, 0)
    for entry in federation.layout.entries:
        if not entry.is_buffer:
            order = torch.randperm(entry.columns.size, generator=stream).to(row.device)
            entry.columns.put(row, entry.columns.take(row)[order])
    return row
