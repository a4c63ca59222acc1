"""The version of this package, alone: everybody may import it."""

from __future__ import annotations

VERSION = "0.1.0"
