"""What clients measure and send besides parameters."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal, Protocol

from torch import Tensor

if TYPE_CHECKING:
    from coterie.local import Worker


class Probe(Protocol):
    """A measurement at one client: the same shape at every client, sent with the upload.

    `moment` says when it is taken: on the model as `received`, or once it is `trained`.
    """

    name: ClassVar[str]
    moment: ClassVar[Literal["received", "trained"]]

    def __call__(self, worker: Worker) -> Tensor:
        """Measure at the client that `worker` stands for just now."""
        ...
