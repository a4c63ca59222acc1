"""What the files of a run hold, as types. Whatever is read is decoded into them, and decoding is the check.

The line of a round is open: what parts of a round add to it (who did not answer, who is in quarantine, what privacy
costs, whatever comes) stands under `parts`, a note each by the part's name, and nothing here need know of it.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Self, TypeVar, cast

import msgspec
from msgspec import Meta, Struct

from coterie.errors import CoterieError, require

Number = float | None
"""A number as JSON knows it: none for what is not finite."""
Count = Annotated[int, Meta(ge=0, lt=2**53)]
"""A whole number as everybody's JSON holds it: a client, samples, bytes."""
ByClient = dict[str, list[Number]]
"""Every metric of every client, by the metric's name."""
MomentName = Literal["received", "trained", "stored"]

PRESENCE, QUARANTINE, PRIVACY = "presence", "quarantine", "privacy"
"""Parts of a round whose notes the summary reads."""


class Seconds(Struct, frozen=True):
    """How long a round took, by activity."""

    train: float
    exchange: float
    evaluate: float

    @property
    def total(self) -> float:
        """All of it."""
        return self.train + self.exchange + self.evaluate


class Travelled(Struct, frozen=True):
    """The bytes of a round."""

    up: Count
    down: Count

    @property
    def total(self) -> int:
        """Both ways together."""
        return self.up + self.down


class Scores(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """One moment of one round: what the task is judged by, summed up, and every metric of every client.

    Where a sample was tested, `clients` says whose the values are, and the errors are the means' standard errors.
    """

    mean: Number
    weighted: Number
    std: Number
    worst_decile: Number
    values: ByClient
    clients: list[Count] | None = None
    error: Number = None
    weighted_error: Number = None

    def __post_init__(self) -> None:
        lengths = {len(column) for column in self.values.values()}
        if self.clients is not None:
            lengths.add(len(self.clients))
        _refuse(len(lengths) > 1, "not a number for each of the clients")


class _ByMoment:
    """What was tested in a round, by moment: of which moments there are scores, and of whom."""

    __slots__ = ()

    received: Scores | None
    trained: Scores | None
    stored: Scores | None
    cohort_trained: ByClient | None
    everybody: dict[MomentName, Scores]

    def at(self, moment: MomentName) -> Scores | None:
        """What there is of a moment: of everybody, if there is that. Where everybody trained, that is what they store.

        >>> trained = Scores(mean=0.5, weighted=0.5, std=0.0, worst_decile=0.5, values={})
        >>> Tests(trained=trained).at("stored").mean, Tests(trained=trained).at("received")
        (0.5, None)
        """
        scores = self.told(moment)
        sampled = self.trained is not None and self.trained.clients is not None
        if scores is None and moment == "stored" and not (self.cohort_trained is not None and sampled):
            scores = self.trained
        return scores

    def told(self, moment: MomentName) -> Scores | None:
        """What is told of a moment itself, of everybody if there is that."""
        scores: Scores | None = self.everybody.get(moment) or getattr(self, moment)
        return scores

    def values(self, moment: MomentName, metric: str) -> list[Number]:
        """A metric of every client at a moment; nothing if nobody was tested then."""
        scores = self.told(moment)
        return [] if scores is None else scores.values[metric]

    def without(self, moments: bool) -> Self:
        """The same without what was told of everybody in the end and, if wished, of the moments."""
        left_out: dict[str, Any] = dict.fromkeys(("received", "trained", "stored")) if moments else {}
        without: Self = msgspec.structs.replace(cast(Any, self), everybody={}, **left_out)
        return without


class Tests(_ByMoment, Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Who was tested in a round, and how: by moment, of the cohort alone, and in the end of everybody."""

    received: Scores | None = None
    trained: Scores | None = None
    stored: Scores | None = None
    cohort_trained: ByClient | None = None
    everybody: dict[MomentName, Scores] = {}


class Tuning(Struct, frozen=True):
    """How many gradients clients computed to tune before their tests, and in how many tests."""

    gradients: Count
    tests: Count


class PresenceNote(Struct, frozen=True):
    """The note of who was asked and did not answer in time."""

    missing: list[Count]


class QuarantineNote(Struct, frozen=True):
    """The note of whose uploads were set aside."""

    clients: list[Count]


class PrivacyNote(Struct, frozen=True):
    """The note of privacy: the largest ε of all clients so far, and those of who was asked (none: infinite)."""

    epsilon: Number
    clients: list[Number]


NOTES: Mapping[str, type[Struct]] = {PRESENCE: PresenceNote, QUARANTINE: QuarantineNote, PRIVACY: PrivacyNote}
"""The notes that are read here; those of other parts are kept as they are."""


class Line(_ByMoment, Struct, frozen=True, omit_defaults=True, kw_only=True):
    """What a round leaves: a line of the file of rounds.

    Scores are of test samples, those under `validation` of validation samples, `training` of the samples that the
    cohort trained on, while it did. `effort` is what each client of the cohort computed: gradients by what they train,
    samples forward.
    """

    round: Annotated[int, Meta(ge=1)]
    cohort: list[Count]
    seconds: Seconds
    bytes: Travelled
    diverged: list[Count] = []
    tuning_diverged: list[Count] = []
    parts: dict[str, dict[str, Any]] = {}
    effort: dict[str, list[Count]] = {}
    tuning: Tuning | None = None
    training: ByClient | None = None
    received: Scores | None = None
    trained: Scores | None = None
    stored: Scores | None = None
    cohort_trained: ByClient | None = None
    everybody: dict[MomentName, Scores] = {}
    validation: Tests | None = None

    def __post_init__(self) -> None:
        for name in ("effort", "training", "cohort_trained"):
            columns: Mapping[str, Sequence[object]] = getattr(self, name) or {}
            if any(len(column) != len(self.cohort) for column in columns.values()):
                raise ValueError(f"{name}: not a number for each of the {len(self.cohort)} clients of the round")
        for name in self.parts.keys() & NOTES.keys():
            with_place(f"parts.{name}", self.parts[name], NOTES[name])

    @property
    def missing(self) -> list[int]:
        """Who was asked and did not answer in time."""
        return list(self.parts.get(PRESENCE, {}).get("missing", ()))

    @property
    def quarantined(self) -> list[int]:
        """Whose uploads were set aside."""
        return list(self.parts.get(QUARANTINE, {}).get("clients", ()))

    def fault_among(self, clients: int, judged: str) -> str:
        """What of it is not of so many clients, or is not judged by that; empty if all is.

        >>> line = Line(round=1, cohort=[3], seconds=Seconds(1, 0, 0), bytes=Travelled(8, 8))
        >>> line.fault_among(2, "accuracy"), line.fault_among(4, "accuracy")
        ('cohort: not a list of clients', '')
        """
        for name in ("cohort", "diverged", "tuning_diverged", "missing", "quarantined"):
            if any(client >= clients for client in getattr(self, name)):
                return f"{name}: not a list of clients"
        for name, scores in self._scores():
            whose = range(clients) if scores.clients is None else scores.clients
            if len(scores.values.get(judged, ())) != len(whose):
                return f"{name}: not a number for each of the {clients} clients"
            if any(client >= clients for client in whose):
                return f"{name}: not a list of clients"
        return ""

    def _scores(self) -> Iterator[tuple[str, Scores]]:
        moments: tuple[MomentName, ...] = ("received", "trained", "stored")
        for moment in moments:
            for scores in (getattr(self, moment), self.everybody.get(moment)):
                if scores is not None:
                    yield moment, scores


def untested(line: Line, evaluate_every: int) -> Line:
    """A line as that of any round but the last: without scores if it is not its turn to be tested, or not everybody's.

    A last round is tested though it would not be its turn. More rounds may be planned later; it is then like others.
    """
    turn = line.round % evaluate_every == 0
    if turn and not line.everybody:
        return line
    validation = None if line.validation is None else line.validation.without(moments=not turn)
    return msgspec.structs.replace(
        line.without(moments=not turn), validation=None if validation == Tests() else validation
    )


class LinesDigest:
    """A text that differs if any line does, whatever the time that a round took, or whether it was the last.

    >>> line = Line(round=1, cohort=[0], seconds=Seconds(1, 0, 0), bytes=Travelled(8, 8))
    >>> slower = msgspec.structs.replace(line, seconds=Seconds(2, 0, 0))
    >>> other = msgspec.structs.replace(line, cohort=[1])
    >>> [LinesDigest(1, [line]).text == LinesDigest(1, [changed]).text for changed in (slower, other)]
    [True, False]
    """

    def __init__(self, evaluate_every: int, lines: Iterable[Line] = ()) -> None:
        self._every, self._digest = evaluate_every, hashlib.sha256()
        for line in lines:
            self.add(line)

    def add(self, line: Line) -> None:
        """Go on with the line of the next round."""
        counted = msgspec.structs.replace(untested(line, self._every), seconds=Seconds(0, 0, 0))
        self._digest.update(msgspec.json.encode(counted, order="deterministic") + b"\n")

    @property
    def text(self) -> str:
        """The digest of all lines so far."""
        return self._digest.hexdigest()


class TaskAbout(Struct, frozen=True):
    """The task of a run: its name, the metric that it is judged by, and what is known of every metric."""

    name: str
    judged_by: str
    metrics: dict[str, dict[str, bool]]

    def __post_init__(self) -> None:
        _refuse(self.judged_by not in self.metrics, "judged_by: is none of the metrics")


class DataAbout(Struct, frozen=True):
    """The data set of a run, as far as models and pictures depend on it."""

    name: str
    samples: Count
    shape: list[Count]
    whole_numbers: bool
    task: TaskAbout
    outputs: Count
    class_names: list[str]
    fingerprint: dict[str, str] | None
    feature_names: list[str] = []
    scaling: dict[str, list[float]] | None = None  # shift and divisor of each column, where a scale was agreed on


class ModelAbout(Struct, frozen=True):
    """The model of a run, as far as readers of its rows depend on it."""

    classifier: str
    parameters: Count
    feature_width: Count
    skip_single_samples: bool


class ClientAbout(Struct, frozen=True, omit_defaults=True):
    """A client: its name, whether it takes part, its samples, those to train with by class (none: not known).

    `parts` are facts that stages of a round add, such as whether it is hostile.
    """

    name: str
    takes_part: bool
    train: Count
    validation: Count
    test: Count
    classes: list[Count | None]
    parts: dict[str, Any] = {}


class Session(Struct, frozen=True):
    """A process that worked on a run: since when, after which round, with which versions, on what."""

    begun: str
    after_round: Count
    coterie: str
    torch: str
    python: str
    processor: str
    capability: str
    cores: Count
    threads: Count


class RunAbout(Struct, frozen=True, omit_defaults=True):
    """What describes a run as a whole, for readers who have neither its data nor its machine.

    `config` is what stood in the configuration when the run was begun, or was last planned to have more rounds;
    `former_rounds` how many were planned before, until somebody works on it with the new plan. `settings` are the
    values that all settings came to, `identity` is what makes it the same as another run.
    """

    protocol: str | None
    data: DataAbout
    model: ModelAbout
    clients: list[ClientAbout]
    config: dict[str, Any]
    settings: dict[str, Any]
    sessions: list[Session]
    identity: dict[str, Any] = {}
    former_rounds: Count | None = None

    @property
    def participants(self) -> list[ClientAbout]:
        """The clients that take part, in the order in which rounds number them."""
        return [client for client in self.clients if client.takes_part]


T = TypeVar("T")

KINDS = {
    "int": "a whole number",
    "float": "a number",
    "str": "a text",
    "bool": "true or false",
    "array": "a list",
    "object": "a table",
    "null": "nothing",
}
MISSING = re.compile(r"Object missing required field `(\w+)`")
EXPECTED = re.compile(r"Expected (.*), got (.*)")
UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


def decoded(content: bytes, kind: type[T], where: str) -> T:
    """What JSON says, as a type; an error names the place and says what is wrong.

    >>> decoded(b'{"up": 1, "down": "x"}', Travelled, "bytes.json is damaged")
    Traceback (most recent call last):
    ...
    coterie.errors.CoterieError: bytes.json is damaged (down is a text, not a whole number)
    """
    try:
        return msgspec.json.decode(content, type=kind)
    except UNREADABLE as error:
        raise CoterieError(f"{where} ({fault_of(error)})") from None


def converted(values: object, kind: type[T], where: str) -> T:
    """Plain values as a type; an error names the place and says what is wrong."""
    try:
        return msgspec.convert(values, kind)
    except msgspec.ValidationError as error:
        raise CoterieError(f"{where} ({fault_of(error)})") from None


def with_place(place: str, values: object, kind: type[T]) -> T:
    """Plain values as a type; what is wrong is said of the place, for whoever decodes what it is part of."""
    try:
        return msgspec.convert(values, kind)
    except msgspec.ValidationError as error:
        raise ValueError(f"{place}: {fault_of(error)}") from None


def fault_of(error: Exception) -> str:
    """Why something could not be decoded, in words.

    >>> for text in ('{"up": 1}', '{"up": -1, "down": 0}', '{"up"'):
    ...     try:
    ...         msgspec.json.decode(text, type=Travelled)
    ...     except msgspec.DecodeError as error:
    ...         print(fault_of(error))
    it lacks down
    up must be a whole number >= 0
    it is no JSON: Input data was truncated
    """
    if not isinstance(error, msgspec.ValidationError):
        return f"it is no JSON: {error}"
    said, _, path = str(error).partition(" - at `")
    place = path.rstrip("`").removeprefix("$").removeprefix(".").replace("[...]", "[…]") or "it"
    if lacking := MISSING.fullmatch(said):
        return f"{place} lacks {lacking[1]}"
    if other := EXPECTED.fullmatch(said):
        if other[2].startswith("`"):
            return f"{place} is {_kinds(other[2])}, not {_kinds(other[1])}"
        return f"{place} must be {_kinds(other[1])}, not {other[2]}"
    if said.startswith("Expected "):
        return f"{place} must be {_kinds(said.removeprefix('Expected '))}"
    return f"{place}: {said}" if place != "it" else said


def _kinds(said: str) -> str:
    """Types in words.

    >>> _kinds("`int | null`")
    'a whole number or nothing'
    """
    return re.sub(
        r"`([^`]*)`", lambda types: " or ".join(KINDS.get(kind, kind) for kind in types[1].split(" | ")), said
    )


def _refuse(wrong: bool, why: str) -> None:
    """What is wrong with what is decoded, in the words that `fault_of` passes on."""
    if wrong:
        raise ValueError(why)


@dataclass(frozen=True)
class Skipped:
    """A line that cannot be read, and why; `cut_off` if it is the last one and is not whole."""

    number: int
    why: str
    cut_off: bool


def read_lines(content: bytes) -> Iterator[tuple[int, Line | Skipped]]:
    """The lines of a file of rounds with their numbers, those too that cannot be read."""
    decoder = msgspec.json.Decoder(Line)
    texts = [(number, text) for number, text in enumerate(content.split(b"\n"), 1) if text.strip()]
    for number, text in texts:
        try:
            yield number, decoder.decode(text)
        except UNREADABLE as error:
            # Whoever was killed while a line was written left a part of it: no JSON, and without the end of a line.
            last = number == texts[-1][0] and not content.endswith(b"\n")
            part = last and not isinstance(error, msgspec.ValidationError)
            yield number, Skipped(number, fault_of(error), cut_off=part)


def lines_in_order(content: bytes, where: str) -> list[Line]:
    """The lines of a file of rounds, where each must tell of the round after the one before, from 1.

    A run that is killed while it writes leaves half a line at the end; anything else is damage.
    """
    lines: list[Line] = []
    for number, line in read_lines(content):
        if isinstance(line, Skipped):
            require(line.cut_off, f"{where} is damaged (line {number}: {line.why})")
            break
        fault = f"line {number} tells of round {line.round}; none may be missing, twice or moved"
        require(line.round == len(lines) + 1, f"{where} is damaged ({fault})")
        lines.append(line)
    return lines


def as_text(line: Line) -> bytes:
    """A line as it stands in the file."""
    return msgspec.json.encode(line) + b"\n"


def plain(values: object) -> Any:
    """What is typed, as plain values."""
    return json.loads(msgspec.json.encode(values))
