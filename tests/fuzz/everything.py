"""All fuzz targets, by name."""

from __future__ import annotations

from tests.fuzz.targets import data, directories, files, messages, models, settings
from tests.fuzz.trial import Target

TARGETS: dict[str, Target] = {
    target.name: target
    for module in (settings, data, files, messages, directories, models)
    for target in module.TARGETS
}
