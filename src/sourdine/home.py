"""Where keys live: a folder of the user's own, apart from everything that is handed on."""

from __future__ import annotations

import os
import secrets
import tempfile
from pathlib import Path


def home() -> Path:
    """The user's config folder: $SOURDINE_HOME, or `sourdine` in $XDG_CONFIG_HOME or in ~/.config."""
    if own := os.environ.get("SOURDINE_HOME"):
        return Path(own).expanduser()
    shared = os.environ.get("XDG_CONFIG_HOME", "")
    # The XDG standard says to ignore a relative path.
    return (Path(shared) if Path(shared).is_absolute() else Path("~/.config").expanduser()) / "sourdine"


def make_key(path: Path, size: int) -> None:
    """Puts so many random bytes at `path`, for its owner only, unless another process was first."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    # mkstemp gives mode 0600. A link appears whole or not at all, and never replaces a file.
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    draft = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(secrets.token_bytes(size))
            file.flush()
            os.fsync(file.fileno())
        path.hardlink_to(draft)
    except FileExistsError:
        pass
    finally:
        draft.unlink()
