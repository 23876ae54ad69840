"""Keeps the measured ceilings of a device in the home folder, one file per environment."""

from __future__ import annotations

import json
import os
from pathlib import Path


def read_peaks(home: Path, environment_key: str) -> dict[str, float] | None:
    """The ceilings by name; None where they were not measured yet, or their file cannot be used."""
    try:
        return {str(name): float(value) for name, value in json.loads(_path(home, environment_key).read_text()).items()}
    except (OSError, ValueError, AttributeError):
        return None


def store_peaks(home: Path, environment_key: str, peaks: dict[str, float]) -> None:
    path = _path(home, environment_key)
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(f".{os.getpid()}")
    partial.write_text(json.dumps(peaks))
    partial.replace(path)


def _path(home: Path, environment_key: str) -> Path:
    return home / "peaks" / f"{environment_key}.json"
