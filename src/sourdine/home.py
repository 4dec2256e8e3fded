"""Where keys live: a folder of the user's own, apart from everything that is handed on."""

from __future__ import annotations

import os
from pathlib import Path


def home() -> Path:
    """The user's config folder: $SOURDINE_HOME, or `sourdine` in $XDG_CONFIG_HOME or in ~/.config."""
    if own := os.environ.get("SOURDINE_HOME"):
        return Path(own).expanduser()
    shared = os.environ.get("XDG_CONFIG_HOME", "")
    # The XDG standard says to ignore a relative path.
    return (Path(shared) if Path(shared).is_absolute() else Path("~/.config").expanduser()) / "sourdine"
