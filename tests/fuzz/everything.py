"""All fuzz targets, by name."""

from __future__ import annotations

from tests.fuzz.targets import (
    data,
    directories,
    ended,
    files,
    messages,
    models,
    plugin_files,
    python_calls,
    settings,
)
from tests.fuzz.trial import Target

TARGETS: dict[str, Target] = {
    target.name: target
    for module in (settings, data, files, messages, directories, models, python_calls, plugin_files, ended)
    for target in module.TARGETS
}
