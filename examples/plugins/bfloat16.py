"""A stage of uploads: numbers travel as bfloat16, in half of the bytes, with two to three digits that hold.

$ coterie run fedavg --stages ./examples/plugins/bfloat16.py:BFloat16
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from coterie.rounds.stages import Coding


@dataclass(frozen=True)
class BFloat16(Coding):
    """The upper half of each number's bits, rounded. Messages carry them as whole numbers of 16 bits."""

    def packed(self, values: Tensor) -> Tensor:
        """`[n]`, int16."""
        return values.bfloat16().view(torch.int16)

    def unpacked(self, values: Tensor) -> Tensor:
        """`[n]`, float32."""
        return values.view(torch.bfloat16).float()
