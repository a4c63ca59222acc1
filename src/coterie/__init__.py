"""Coterie: personalised federated learning. A client's model is a row; a round trains rows, then mixes them.

>>> import coterie as ct
>>> ct.FedProx(mu=0.1)
FedProx(mu=0.1)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from coterie.version import VERSION

if TYPE_CHECKING:  # the public names: each is loaded when it is first used, so that `import coterie` costs nothing
    from coterie.client.recipe import Keep as Keep
    from coterie.client.recipe import Measure as Measure
    from coterie.client.recipe import Phase as Phase
    from coterie.compare.table import Comparison as Comparison
    from coterie.compare.table import compare as compare
    from coterie.core.exchange import Drop as Drop
    from coterie.core.exchange import Mix as Mix
    from coterie.core.exchange import Peers as Peers
    from coterie.core.exchange import Put as Put
    from coterie.core.exchange import Uploads as Uploads
    from coterie.core.federation import Federation as Federation
    from coterie.core.numbers import Scale as Scale
    from coterie.core.task import Classification as Classification
    from coterie.core.task import Loss as Loss
    from coterie.core.task import Metric as Metric
    from coterie.core.task import Regression as Regression
    from coterie.data.arrays import from_arrays as from_arrays
    from coterie.data.by_index import from_dataset as from_dataset
    from coterie.data.dataset import Dataset as Dataset
    from coterie.data.frames import from_frame as from_frame
    from coterie.data.loading import load as load
    from coterie.data.loading import load_own as load_own
    from coterie.errors import CoterieError as CoterieError
    from coterie.methods import *  # noqa: F403 (all that it lists)
    from coterie.methods.base import Method as Method
    from coterie.partition import *  # noqa: F403 (all that it lists)
    from coterie.partition.from_file import FromFile as FromFile
    from coterie.partition.partition import Partition as Partition
    from coterie.rounds.listeners import Listener as Listener
    from coterie.runs.experiment import Experiment as Experiment
    from coterie.runs.protocols import protocol as protocol
    from coterie.runs.resume import resume as resume
    from coterie.runs.run import Run as Run
    from coterie.runs.run import open_run as open_run
    from coterie.serve.model import load_model as load_model

__version__ = VERSION


def _public() -> list[str]:
    from coterie.registry import deferred

    return sorted(deferred(__file__))


def __dir__() -> list[str]:
    """The public names, those that are not loaded yet among them."""
    return sorted({*_public(), *(name for name in globals() if name.startswith("__") and name.endswith("__"))})


if not TYPE_CHECKING:  # who would find no misspelt name otherwise

    def __getattr__(name: str) -> Any:
        from coterie.registry import on_first_use

        return _public() if name == "__all__" else on_first_use(__name__, __file__)(name)
