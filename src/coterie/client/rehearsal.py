"""A rehearsal before the first round: a client's model must be all in its row, and train there as it would by itself.

The model takes a few passes mounted on a row, each with a row and samples of its own, and every time must do just what
a fresh copy of the module does with the same. What one pass leaves behind outside the row (counters, whole-number
buffers, kept outputs, be they the module's own, its class's or global) would otherwise go from each client to the next,
unseen, and be lost when a run is resumed (`coterie.client.belongings`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from coterie.client.belongings import BUFFER, DRAWS, VARIABLE, Belongings, belongings, changed, close
from coterie.client.model import MountedModel, outputs_of
from coterie.core.inventory import copied
from coterie.core.layout import Layout
from coterie.errors import CoterieError, described, require

SAMPLES = 4
"""How many samples a rehearsal takes, half of them a pass."""
# Relative: rounding differs with where tensors lie in memory. Batch norm of few samples may magnify it a thousand
# times; what is kept outside the row, be it a temperature that falls by little, is compared as it is.
CLOSE, SAME = 2e-2, 1e-5
SEED = 0


@dataclass(frozen=True)
class Pass:
    """What a step without an update, and a test after it, came to."""

    trained: Tensor  # [B, C], in training mode
    tested: Tensor  # [B, C]
    gradient: Tensor  # [P]
    row: Tensor  # [P], with the buffers that training moved
    beside: Belongings = field(default_factory=dict)


def rehearse(module: nn.Module, layout: Layout, samples: Tensor) -> None:
    """An error in a line if the model cannot be trained as a row `[P]`, with some `samples [n, ...]` of the data.

    >>> net = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
    >>> rehearse(net, Layout(net, classifier="2"), torch.rand(8, 4))
    """
    require(bool(layout.trainable), "model: none of its parameters is trained (requires_grad); leave some unfrozen")
    samples = samples.repeat(SAMPLES, *[1] * (samples.ndim - 1))[: max(SAMPLES, len(samples))]
    half = len(samples) // 2
    inputs = samples[:half], samples[half : 2 * half]
    with torch.random.fork_rng(devices=[]), torch.enable_grad():
        row = layout.row(module)
        rows = (row, _another(row, layout))
        plain = [_by_itself(copied(module), layout, row, x) for row, x in zip(rows, inputs, strict=True)]
        seats = MountedModel(module, layout), MountedModel(module, layout)
        # Each seat has one client first, and then the other: there is nothing that both orders would hide.
        fresh = [_mounted(seat, row, x) for seat, row, x in zip(seats, rows, inputs, strict=True)]
        later = [_mounted(seat, row, x) for seat, row, x in zip(reversed(seats), rows, inputs, strict=True)]
        again = _mounted(seats[0], rows[1], inputs[1])
        for first, second, alone in zip(fresh, later, plain, strict=True):
            if (change := changed(first.beside, second.beside, SAME)) is not None:
                raise CoterieError(_carried(*change))
            _compare(first, alone, layout)
            _compare(second, alone, layout)
        # The same client in the same seat: not even rounding may differ.
        _compare(again, later[1], layout, SAME)


def _another(row: Tensor, layout: Layout) -> Tensor:
    """A row with parameters that differ a little, as another client's do."""
    stream = torch.Generator().manual_seed(SEED)
    shift = torch.rand(len(row), generator=stream)
    other, trained = row.clone(), layout.trainable
    trained.put(other, trained.take(row * (1 + 0.01 * shift) + 0.001 * shift))
    return other


def _by_itself(plain: nn.Module, layout: Layout, row: Tensor, x: Tensor) -> Pass:
    """A pass of a module that nobody has cut or mounted."""
    layout.load(plain, row).train()
    trained = _step(lambda: plain(x))
    parameters = dict(plain.named_parameters())
    gradient = torch.zeros_like(row)
    for entry in layout.entries:
        own_gradient = None if entry.is_buffer else parameters[entry.name].grad
        if own_gradient is not None:
            require(
                not own_gradient.is_sparse,
                f"parameter '{entry.name}' has sparse gradients; leave out sparse=True: rows are dense",
            )
            gradient[entry.start : entry.stop] = entry.flat(own_gradient)
    moved = layout.row(plain)
    plain.eval()
    tested = _test(lambda: plain(x), lambda: plain(x[:1]))
    _require_untouched(layout, moved, layout.row(plain))
    return Pass(trained, tested, gradient, moved)


def _mounted(model: MountedModel, row: Tensor, x: Tensor) -> Pass:
    """A pass as a client in its seat takes it."""
    layout = model.layout
    model.row.copy_(row)
    model.grad.zero_()
    model.train_only(layout.trainable)
    model.mode(True)
    trained = _step(lambda: model.head(model.trunk(x)))
    _require_in_place(model)
    moved = model.row.clone()
    model.mode(False)
    tested = _test(lambda: model.head(model.trunk(x)), lambda: model.head(model.trunk(x[:1])))
    _require_in_place(model)
    beside = belongings({"": model.trunk, layout.classifier: model.head}, layout)
    return Pass(trained, tested, model.grad.clone(), moved, beside)


def _step(run: Callable[[], object]) -> Tensor:
    """The outputs of a pass in training, whose gradients are where they belong then."""
    torch.manual_seed(SEED)
    try:
        outputs = outputs_of(run())
        # Weights that differ: of outputs that always sum to one, a plain sum has no gradient.
        (outputs * torch.linspace(0.5, 1.5, outputs.numel()).view_as(outputs)).sum().backward()
    except CoterieError:
        raise
    except Exception as error:  # whatever a user's model may raise
        raise CoterieError(f"model: a training step on samples of the data fails ({described(error)})") from error
    return outputs.detach()


def _test(run: Callable[[], object], run_on_one: Callable[[], object]) -> Tensor:
    """The outputs of a pass in evaluation, which a single sample must have too."""
    try:
        with torch.no_grad():
            outputs, alone = run(), run_on_one()
    except Exception as error:
        raise CoterieError(f"model: a test on samples of the data fails ({described(error)})") from error
    outputs = outputs_of(outputs)
    require(
        isinstance(alone, Tensor) and alone.shape == (1, outputs.shape[1]),
        f"model: puts out {tuple(getattr(alone, 'shape', ()))} for a single sample in place of "
        f"(1, {outputs.shape[1]}); squeeze() without a dimension drops that of the batch",
    )
    return outputs


def _require_untouched(layout: Layout, before: Tensor, after: Tensor) -> None:
    for entry in layout.entries:
        require(
            torch.equal(before[entry.start : entry.stop], after[entry.start : entry.stop]),
            f"tensor '{entry.name}': a test changes it; let forward and train() change tensors in training mode only",
        )


def _require_in_place(model: MountedModel) -> None:
    """Refuse a model whose tensors are not the row's any more: it put others in their places."""
    views = model.layout.views(model.row)
    for part, names in ((model.trunk, model.layout.trunk_names), (model.head, model.layout.head_names)):
        here = dict(part.named_parameters(remove_duplicate=False)) | dict(part.named_buffers(remove_duplicate=False))
        for name, local in names.items():
            require(
                local in here and here[local].data_ptr() == views[name].data_ptr(),
                f"tensor '{name}' is replaced in forward, and the row left behind; change it in place (copy_, mul_)",
            )


def _compare(mounted: Pass, plain: Pass, layout: Layout, share: float = CLOSE) -> None:
    """Refuse a model that does something else when mounted, for what an earlier pass left or for how it is made."""
    pairs = [
        ("its outputs in training", mounted.trained, plain.trained),
        ("its outputs in tests", mounted.tested, plain.tested),
        *_by_entry("the gradient of", layout, mounted.gradient, plain.gradient),
        *_by_entry("what training makes of", layout, mounted.row, plain.row),
    ]
    steepest = float(plain.gradient.nan_to_num(0.0, 0.0, 0.0).abs().max())
    for what, ours, theirs in pairs:
        floor = share * steepest if what.startswith("the gradient") else 0.0
        require(
            close(ours, theirs, share, floor),
            f"model: {what} differ with what happened before; keep everything that forward reads in parameters and "
            "floating-point buffers, draw random numbers from PyTorch alone, and nothing after the classifier",
        )


def _by_entry(what: str, layout: Layout, ours: Tensor, theirs: Tensor) -> Iterator[tuple[str, Tensor, Tensor]]:
    for entry in layout.entries:
        place = slice(entry.start, entry.stop)
        yield f"{what} '{entry.name}'", ours[place], theirs[place]


def _carried(kind: str, name: str) -> str:
    if name.rpartition(".")[2] == "num_batches_tracked":
        return (
            f"buffer '{name}' counts batches outside the row, and the layer's own forward may read it; set it to None "
            "in the layer's __init__"
        )
    if kind == BUFFER:
        return (
            f"buffer '{name}' changes in training, but is no part of a row: it would go from client to client; start "
            "it as a finite floating-point tensor, such as torch.tensor(0.0)"
        )
    if kind == VARIABLE:
        return (
            f"'{name}', which the model's code keeps for everybody, changes in training: it would go from client to "
            "client; keep it as a buffer, such as self.register_buffer('steps', torch.tensor(0.0))"
        )
    if kind == DRAWS:
        return (
            f"model: draws from '{name}', where another client goes on, and no seed of the run has a say; draw random "
            "numbers from PyTorch alone (torch.rand, dropout)"
        )
    return (
        f"attribute '{name}' changes in training: it would go from client to client, and be lost when a run is "
        "resumed; keep it as a buffer, such as self.register_buffer('steps', torch.tensor(0.0))"
    )
