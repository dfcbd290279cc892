"""The only module that reads environment variables; each chooses a default at the edge and nothing else.

| variable            | meaning                                                    | default            |
|---------------------|------------------------------------------------------------|--------------------|
| DEEPINFER_BACKEND   | backend specification used when none was chosen by code    | automatic choice   |
| DEEPINFER_CACHE_DIR | folder of compiled kernels                                 | ~/.cache/deepinfer |
| DEEPINFER_LOG_LEVEL | level of the "deepinfer" logger (DEBUG, INFO, WARNING ...) | WARNING            |

Values are read at the call, never cached, so tests and applications may change them at any time.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path

logger = logging.getLogger("deepinfer")


def default_backend() -> str | None:
    """Backend specification from the environment, or None for the automatic choice."""
    return os.environ.get("DEEPINFER_BACKEND") or None


def cache_dir() -> Path:
    """Folder for compiled kernels; not created here."""
    value = os.environ.get("DEEPINFER_CACHE_DIR")
    return Path(value) if value else Path.home() / ".cache" / "deepinfer"


def configure_logging() -> None:
    """Apply DEEPINFER_LOG_LEVEL to the library's logger; an unknown level is reported and ignored."""
    level = os.environ.get("DEEPINFER_LOG_LEVEL")
    if not level:
        return
    try:
        logger.setLevel(level.upper())
    except ValueError:
        logger.warning("DEEPINFER_LOG_LEVEL: got %r, must be a logging level such as INFO; ignored", level)
