"""A module's tensors under all their names: which of them rows hold, which stay as they are, which cannot be had.

Rows hold what training changes, in float32. Whole numbers, complex numbers, and buffers that are not finite from the
start (causal masks hold -inf) have no place there: they are constants, the same for everybody. That nothing changes
them is seen before a run (`coterie.client.rehearsal`).
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations

import torch
from torch import Tensor, nn

from coterie.errors import CoterieError, described, require


@dataclass(frozen=True)
class Held:
    """A tensor that rows hold, and the names that it has in the module: several where it is tied."""

    tensor: Tensor
    names: tuple[str, ...]
    is_buffer: bool


def held_tensors(module: nn.Module) -> list[Held]:
    """What a row holds of a module: first parameters, then buffers; an error names what it cannot hold.

    >>> [held.names for held in held_tensors(nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2, affine=False)))]
    [('0.weight',), ('0.bias',), ('1.running_mean',), ('1.running_var',)]
    """
    held = [
        Held(named[0][1], tuple(name for name, _ in named), is_buffer)
        for is_buffer in (False, True)
        for named in _by_tensor(module, is_buffer)
        if _belongs(module, *named[0], is_buffer)
    ]
    _require_apart(held)
    _require_no_aliases(module, held)
    return held


def _by_tensor(module: nn.Module, are_buffers: bool) -> Iterator[list[tuple[str, Tensor]]]:
    """Parameters or buffers with their names, those of the same tensor together."""
    by_identity: dict[int, list[tuple[str, Tensor]]] = {}
    named = module.named_buffers if are_buffers else module.named_parameters
    for name, tensor in named(remove_duplicate=False):
        by_identity.setdefault(id(tensor), []).append((name, tensor))
    yield from by_identity.values()


def _belongs(module: nn.Module, name: str, tensor: Tensor, is_buffer: bool) -> bool:
    """Whether rows hold a tensor, or it is a constant beside them."""
    if nn.parameter.is_lazy(tensor):
        layer = type(module.get_submodule(name.rpartition(".")[0])).__name__
        raise CoterieError(
            f"tensor '{name}' has no shape yet ({layer}); name the layer's sizes, or pass a sample through the model "
            "where it is made"
        )
    require(
        tensor.device.type == "cpu",
        f"tensor '{name}' is on device {tensor.device}; make the model on the processor: the option device says where "
        "it is trained",
    )
    require(tensor.layout == torch.strided, f"tensor '{name}' is sparse; rows hold dense numbers: call to_dense()")
    trains = not is_buffer and tensor.requires_grad
    finite = bool(tensor.isfinite().all())
    require(
        finite or not trains,
        f"parameter '{name}' holds NaN or infinite numbers before training; start it with finite ones, or make it a "
        "buffer if it is a constant",
    )
    if not trains and not (finite and tensor.is_floating_point()):
        return False
    require(
        not tensor.is_complex(),
        f"parameter '{name}' is complex; rows hold float32: keep real and imaginary parts (torch.view_as_real)",
    )
    require(
        not (tensor._backward_hooks or tensor._post_accumulate_grad_hooks),
        f"parameter '{name}' has a hook of its own (register_hook), which no row keeps; do the same to gradients in "
        "forward, or in a hook of its layer",
    )
    require(tensor.dtype == torch.float32, f"tensor '{name}' is {tensor.dtype}; rows hold float32: call module.float()")
    return True


def _require_apart(held: list[Held]) -> None:
    """Refuse different tensors with numbers in common: in a row each has numbers of its own, and they would part."""
    by_storage: dict[int, list[Held]] = {}
    for entry in held:
        if entry.tensor.numel():
            by_storage.setdefault(entry.tensor.untyped_storage().data_ptr(), []).append(entry)
        sides = zip(entry.tensor.shape, entry.tensor.stride(), strict=True)
        require(
            entry.is_buffer or all(size < 2 or step for size, step in sides),
            f"parameter '{entry.names[0]}' repeats the same numbers (expand); call contiguous() or clone() on it",
        )
    for together in by_storage.values():
        for entry, other in combinations(together, 2):
            require(
                not _overlap(entry.tensor, other.tensor),
                f"tensors '{entry.names[0]}' and '{other.names[0]}' are different ones with memory in common; tie them "
                "as one parameter (b.weight = a.weight), or give each its own (clone)",
            )


def _require_no_aliases(module: nn.Module, held: list[Held]) -> None:
    """Refuse plain attributes that look into a tensor of the row: they would go on looking at the old numbers."""
    names = {entry.tensor.untyped_storage().data_ptr(): entry.names[0] for entry in held if entry.tensor.numel()}
    for path, layer in module.named_modules():
        # Hooks such as the older spectral norm's write such an attribute anew before each pass.
        written = {getattr(hook, "name", None) for hook in layer._forward_pre_hooks.values()}
        for name, value in vars(layer).items():
            if isinstance(value, Tensor) and value.layout == torch.strided and name not in written:
                known = names.get(value.untyped_storage().data_ptr())
                require(
                    known is None,
                    f"attribute '{name}' of layer '{path}' ({type(layer).__name__}) has its memory in common with "
                    f"'{known}', which moves to a row; use the tensor itself in forward",
                )


def _overlap(tensor: Tensor, other: Tensor) -> bool:
    """Whether two tensors of a storage have a number in common."""
    first, second = _reach(tensor), _reach(other)
    if first.stop <= second.start or second.stop <= first.start:
        return False
    return bool(torch.isin(_places(tensor), _places(other)).any())


def _reach(tensor: Tensor) -> range:
    """From the first to the last place that a tensor takes in its storage."""
    start = tensor.storage_offset()
    return range(start, start + 1 + sum((n - 1) * step for n, step in zip(tensor.shape, tensor.stride(), strict=True)))


def _places(tensor: Tensor) -> Tensor:
    """The places in its storage that a tensor takes."""
    reach = _reach(tensor)
    return torch.arange(reach.start, reach.stop).as_strided(tensor.shape, tensor.stride(), 0).reshape(-1)


def copied(module: nn.Module) -> nn.Module:
    """A copy of a module, or an error that names what in it cannot be copied.

    >>> copied(nn.Linear(2, 1)).out_features
    1
    """
    try:
        return copy.deepcopy(module)
    except Exception as error:  # whatever copying the user's classes may raise
        for path, layer in module.named_modules():
            for name, value in vars(layer).items():
                require(
                    not isinstance(value, Tensor) or value.grad_fn is None,
                    f"layer '{path}' ({type(layer).__name__}) keeps a computed '{name}' that cannot be copied; use "
                    "torch.nn.utils.parametrizations (which has weight_norm too), or compute it in forward",
                )
        raise CoterieError(f"model: cannot be copied ({described(error)})") from error
