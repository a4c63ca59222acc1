"""What a run promises about privacy: settings of a run and of a federation alike. Free of PyTorch.

Two kinds of differential privacy, both with noise that is added where the data are, before anything leaves:

* `client`: a client's whole upload is one vector, the change of everything that it sends against what the server knows
  already. It is clipped to a norm C, and noise N(0, (zC)²) is added to each number. Whatever data the client holds, its
  upload moves by at most 2C.
* `example`: local training is DP-SGD. Each step draws every example with the same probability (Poisson batches), clips
  each example's gradient to C, and adds noise N(0, (zC)²) to their sum, which one example moves by at most C.

C is `privacy_clip`, z `privacy_noise`. What else would tell something of the data is not sent: see `coterie.privacy.
stage`. How noise becomes an ε is the business of `coterie.privacy.account`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Literal

from coterie.errors import require
from coterie.options import setting
from coterie.typed import TypedOptions

PrivacyUnit = Literal["client", "example"]

ADVERSARY = "the server and all whom it sends to, who see every upload and who took part in which round"


@dataclass(frozen=True, kw_only=True)
class Privacy(metaclass=TypedOptions):
    """How much of the data may show in what clients send; nothing is promised unless asked for.

    >>> Privacy(privacy="client", privacy_noise=4.0).multiplier
    2.0
    >>> Privacy(privacy_noise=4.0)
    Traceback (most recent call last):
    ...
    coterie.errors.CoterieError: privacy_noise = 4.0: is for privacy = client or example; name one of them
    """

    privacy: PrivacyUnit | None = setting(
        None, "Differential privacy of a 'client' (noisy uploads) or of an 'example' (DP-SGD).", "privacy", shown="none"
    )
    privacy_noise: float = setting(
        1.0, "Noise: the standard deviation, as a multiple of privacy_clip (0: none, and no promise).", "privacy"
    )
    privacy_clip: float = setting(
        1.0, "Norm to which an upload's change, or an example's gradient, is clipped (0: never).", "privacy"
    )
    size_noise: float = setting(
        10.0, "privacy = example: standard deviation of the noise on a client's number of examples.", "privacy"
    )
    epsilon: float | None = setting(
        None, "The budget: a run that would spend more is refused before it begins.", "privacy", shown="none"
    )
    delta: float = setting(1e-5, "The δ of every ε.", "privacy")

    def __post_init__(self) -> None:
        if self.privacy is None:
            for item in fields(Privacy):
                value = getattr(self, item.name)
                require(
                    value == item.default,
                    f"{item.name} = {value}: is for privacy = client or example; name one of them",
                )
            return
        for option in ("privacy_noise", "privacy_clip", "size_noise"):
            value = getattr(self, option)
            require(value >= 0, f"{option} = {value}: must not be negative")
        require(
            self.privacy_noise == 0 or self.privacy_clip > 0,
            f"privacy_noise = {self.privacy_noise:g}: noise is a multiple of privacy_clip, which must be above 0",
        )
        require(0 < self.delta < 1, f"delta = {self.delta}: must lie between 0 and 1 (1e-5 is usual)")
        require(self.epsilon is None or self.epsilon > 0, f"epsilon = {self.epsilon}: must be above 0")
        quarantine = getattr(self, "quarantine", 0)
        require(
            not quarantine,
            f"quarantine = {quarantine:g}: it needs clients' losses, which are not told where privacy is promised; "
            "leave one of the two out",
        )

        scale = getattr(self, "scale", "")
        require(
            scale not in ("standard", "range"),
            f"scale = {scale}: what clients tell of their inputs for it is not accounted for where privacy is "
            "promised; bring inputs to about -1 .. 1 by numbers that are known beforehand, and leave scale out",
        )
        for option, value in (("epochs", getattr(self, "epochs", 1)), ("steps", getattr(self, "steps", 0))):
            require(
                not self.of_examples or (value == int(value) if option == "epochs" else not value),
                f"{option} = {value:g}: privacy = example is accounted for by whole epochs; give those",
            )

    def asked_for(self) -> Iterator[str]:
        """The stages that are asked for, by their places."""
        if self.privacy is not None:
            yield "coterie.privacy.stage:Private"

    @property
    def of_clients(self) -> bool:
        """Whether uploads are clipped and noisy."""
        return self.privacy == "client"

    @property
    def of_examples(self) -> bool:
        """Whether local training is DP-SGD."""
        return self.privacy == "example"

    @property
    def multiplier(self) -> float:
        """The noise's standard deviation, as a multiple of what one unit can change."""
        return self.privacy_noise / 2 if self.of_clients else self.privacy_noise

    @property
    def deviation(self) -> float:
        """The noise's standard deviation."""
        return self.privacy_noise * self.privacy_clip

    @property
    def promise(self) -> Privacy:
        """These settings alone, without what a class that extends them adds."""
        return Privacy(**{item.name: getattr(self, item.name) for item in fields(Privacy)})

    @property
    def in_words(self) -> str:
        """What whoever holds data is promised; nothing without noise.

        >>> Privacy(privacy="client", privacy_noise=4.0, privacy_clip=0.5, epsilon=8.0).in_words
        'noise here for each client, 4 times the clip of 0.5; a budget of ε = 8 (δ = 1e-05)'
        """
        if self.privacy is None or self.privacy_noise == 0:
            return ""
        budget = "no budget" if self.epsilon is None else f"a budget of ε = {self.epsilon:g}"
        noise = f"{self.privacy_noise:g} times the clip of {self.privacy_clip:g}"
        return f"noise here for each {self.privacy}, {noise}; {budget} (δ = {self.delta:g})"

    def described(self) -> dict[str, str]:
        """What an ε is about, in words: the unit, which data count as neighbours, and against whom.

        >>> Privacy(privacy="example").described()["unit"]
        'one training example of a client'
        """
        if self.of_clients:
            unit, neighbours = "a client with all of its data", "all data of one client replaced by any other data"
        else:
            unit, neighbours = "one training example of a client", "one example of a client added or taken away"
        return {"unit": unit, "neighbours": neighbours, "adversary": ADVERSARY}
