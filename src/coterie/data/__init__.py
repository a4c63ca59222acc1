"""Data: sets known by name, your own files, and what both become: resident tensors addressed by index.

>>> from coterie.data import load
>>> len(load("digits"))
1797
"""

from coterie.data.arrays import from_arrays
from coterie.data.dataset import Dataset
from coterie.data.load import load
from coterie.data.own import load_own
from coterie.data.registry import DATASETS, KnownDataset

__all__ = ["DATASETS", "Dataset", "KnownDataset", "from_arrays", "load", "load_own"]
