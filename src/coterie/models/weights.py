"""Start a model from weights on disk, for instance from a pretrained extractor."""

from __future__ import annotations

from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from coterie.errors import CoterieError, require


def load_weights(module: nn.Module, path: str | Path, *, classifier: str | None = None) -> tuple[str, ...]:
    """Copy the tensors of a safetensors file into `module`, by name; give back the names left as they were.

    Names and shapes must agree. The one exception is the submodule at the dotted path `classifier`, where
    given: if the file lacks any of its tensors or holds them for another number of classes, the whole
    classifier keeps its initial weights. Nothing is written unless everything fits.

    >>> import tempfile
    >>> from safetensors.torch import save_file
    >>> ten, two = nn.Linear(4, 10), nn.Linear(4, 2)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save_file(nn.Sequential(nn.Linear(8, 4), ten).state_dict(), f"{folder}/ten.safetensors")
    ...     load_weights(nn.Sequential(nn.Linear(8, 4), two), f"{folder}/ten.safetensors", classifier="1")
    ('1.weight', '1.bias')
    """
    stored = _read(Path(path))
    expected: dict[str, Tensor] = module.state_dict()
    # Older checkpoints lack batch norm's step counters, which nothing but a cumulative average reads.
    left = [name for name in expected if name.endswith("num_batches_tracked") and name not in stored]
    if classifier is not None:
        prefix = classifier + "."
        of_classifier = [name for name in expected if name.startswith(prefix) and name not in left]
        require(bool(of_classifier), f"classifier = '{classifier}': the model has no tensors at that path")
        if any(name not in stored or stored[name].shape != expected[name].shape for name in of_classifier):
            left += of_classifier
            stored = {name: tensor for name, tensor in stored.items() if not name.startswith(prefix)}

    problems = [f"tensor '{name}' is missing" for name in expected if name not in stored and name not in left]
    for name, tensor in stored.items():
        if name not in expected:
            problems.append(f"the model has no tensor '{name}'")
        elif tensor.shape != expected[name].shape:
            shapes = f"{tuple(tensor.shape)}, the model needs {tuple(expected[name].shape)}"
            problems.append(f"tensor '{name}' has shape {shapes}")
        elif tensor.is_complex():
            problems.append(f"tensor '{name}' holds complex numbers")
        elif not _finite_as(tensor, expected[name]):
            problems.append(f"tensor '{name}' holds NaN or infinite values")
    if problems:
        others = f" (and {len(problems) - 1} more problems)" if len(problems) > 1 else ""
        raise CoterieError(f"weights '{path}': {problems[0]}{others}")
    module.load_state_dict(stored, strict=False)
    return tuple(left)


def _finite_as(tensor: Tensor, initial: Tensor) -> bool:
    """Whether a tensor is finite where the model's own is: constants such as causal masks may not be."""
    # What float32 cannot hold becomes infinite.
    return bool((tensor.to(initial.dtype).isfinite() | ~initial.isfinite()).all())


def _read(path: Path) -> dict[str, Tensor]:
    require(path.is_file(), f"weights '{path}': there is no such file; give the path of a .safetensors file")
    try:
        return load_file(path)
    except SafetensorError as error:
        raise CoterieError(
            f"weights '{path}': not a safetensors file ({error}); convert it with safetensors.torch.save_file"
        ) from None
