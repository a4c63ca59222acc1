"""How alike clients are: distances and similarities of rows, vectorised over clients, in float64 where it matters.

They are computed where the rows are; the result, a small matrix, is on the processor.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from coterie.core.applying import block_width
from coterie.core.columns import Columns
from coterie.core.federation import Federation
from coterie.errors import require


def require_weight_matrix(federation: Federation, method: str) -> None:
    """An error unless the classifier has a weight matrix to compare."""
    require(
        bool(federation.layout.classifier_weights),
        f"{method}: the classifier '{federation.layout.classifier}' has no weight matrix to compare clients by",
    )


def mirrored(matrix: Tensor) -> Tensor:
    """The upper triangle of `[m, m]`, diagonal included, and its mirror image below: symmetric bit for bit.

    A product `A @ A.T` is not, on every processor: its tiles may sum the two halves in different orders. Clients
    would then disagree on how alike they are. What is symmetric already stays as it is.

    >>> mirrored(torch.tensor([[1, 2], [3, 4]]))
    tensor([[1, 2],
            [2, 4]])
    """
    below = torch.ones_like(matrix, dtype=torch.bool).tril(-1)
    return torch.where(below, matrix.T, matrix)


def squared_distances(rows: Tensor) -> Tensor:
    """‖row_i − row_j‖² for every pair of `rows [m, n]`: `[m, m]`, symmetric, 0 on the diagonal, float64.

    Rows are centred first: late in training they are nearly equal, and the expanded square would cancel.

    >>> squared_distances(torch.tensor([[0.0, 0.0], [3.0, 4.0]]))
    tensor([[ 0., 25.],
            [25.,  0.]], dtype=torch.float64)
    """
    gram = torch.zeros(len(rows), len(rows), dtype=torch.float64, device=rows.device)
    for columns in Columns.of((0, rows.shape[1])).blocks(block_width(len(rows))):
        block = columns.take(rows).double()
        block = block - block.mean(0)
        gram += block @ block.T
    gram = mirrored(gram.cpu())
    squares = gram.diagonal()
    distances = (squares[:, None] + squares[None] - 2 * gram).clamp(min=0)
    return distances.fill_diagonal_(0)


def row_normalised(distances: Tensor) -> Tensor:
    """Every row divided by its maximum; rows of zeros stay zero: `[m, m]`.

    >>> row_normalised(torch.tensor([[0.0, 2.0, 4.0], [0.0, 0.0, 0.0], [4.0, 1.0, 0.0]]))[0]
    tensor([0.0000, 0.5000, 1.0000])
    """
    largest = distances.max(1, keepdim=True).values
    return torch.where(largest > 0, distances / largest.clamp(min=1e-300), torch.zeros_like(distances))


def class_cosines(weights: Tensor) -> Iterator[Tensor]:
    """Class by class, the cosines between clients' classifier rows `[m, C, d]`: C symmetric `[m, m]`, float64."""
    for rows in weights.double().unbind(1):
        norms = rows.norm(dim=1)
        yield (mirrored(rows @ rows.T) / (norms[:, None] * norms[None] + 1e-8)).cpu()


def cosines(rows: Tensor) -> Tensor:
    """The cosine of every pair of `rows [m, n]`: `[m, m]`, symmetric, exactly 1 on the diagonal.

    >>> cosines(torch.tensor([[1.0, 0.0], [0.0, 2.0]]))
    tensor([[1., 0.],
            [0., 1.]], dtype=torch.float64)
    """
    unit = torch.nn.functional.normalize(rows.double(), dim=1)
    return mirrored((unit @ unit.T).cpu()).clamp(-1, 1).fill_diagonal_(1.0)


def overlaps(masks: Tensor) -> Tensor:
    """How far masks `[m, n]` (bool) agree: 1 − ‖M_i − M_j‖₁ / (2‖M_i‖₁), `[m, m]`; 1 if equal, 0 if disjoint.

    For masks of one size this is the share of i's elements that j holds too. An empty mask overlaps with nothing.

    >>> overlaps(torch.tensor([[True, True, False, False], [True, False, True, False]]))
    tensor([[1.0000, 0.5000],
            [0.5000, 1.0000]], dtype=torch.float64)
    """
    common = torch.zeros(len(masks), len(masks), dtype=torch.float64)
    for block in Columns.of((0, masks.shape[1])).blocks(block_width(len(masks))):
        part = block.take(masks).float()  # whole numbers, whose sums are exact in any order
        common += (part @ part.T).double()
    sizes = common.diagonal()
    differing = sizes[:, None] + sizes[None] - 2 * common
    both = (sizes[:, None] > 0) & (sizes[None] > 0)
    return torch.where(both, 1 - differing / (2 * sizes[:, None]).clamp(min=1), torch.zeros_like(common))
