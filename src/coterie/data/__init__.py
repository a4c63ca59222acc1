"""Data: sets known by name, your own files, and what both become: resident tensors addressed by index.

>>> from coterie.data import load
>>> len(load("digits"))
1797
"""

from typing import TYPE_CHECKING

from coterie.data.catalogue import DATASETS as DATASETS
from coterie.data.catalogue import KnownDataset as KnownDataset
from coterie.data.dataset import Dataset as Dataset
from coterie.data.loading import load as load
from coterie.data.loading import load_own as load_own
from coterie.registry import on_first_use

if TYPE_CHECKING:
    from coterie.data.arrays import from_arrays as from_arrays
    from coterie.data.by_index import from_dataset as from_dataset
    from coterie.data.frames import from_frame as from_frame

__getattr__ = on_first_use(__name__, __file__)
