"""All fuzz targets, by name."""

from __future__ import annotations

from tests.fuzz.targets import data, directories, files, messages, settings
from tests.fuzz.trial import Target

TARGETS: dict[str, Target] = {
    target.name: target for module in (settings, data, files, messages, directories) for target in module.TARGETS
}
