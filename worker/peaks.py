"""Keeps the measured ceilings of a device in the home folder, one file per environment."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path

from warpwatch.contract.codec import from_json, to_json


@dataclass(frozen=True, slots=True)
class MeasuredPeaks:
    """values: the ceilings by name, see CeilingsReply. at_rest: whether nothing else of ours ran meanwhile."""

    values: dict[str, float]
    at_rest: bool


def read_peaks(home: Path, environment_key: str) -> MeasuredPeaks | None:
    """None where they were not measured yet, or their file cannot be used."""
    try:
        return from_json(MeasuredPeaks, json.loads(_path(home, environment_key).read_text()))
    except (OSError, ValueError):
        return None


def store_peaks(home: Path, environment_key: str, peaks: MeasuredPeaks) -> None:
    path = _path(home, environment_key)
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(f".{os.getpid()}")
    partial.write_text(json.dumps(to_json(peaks)))
    partial.replace(path)


def _path(home: Path, environment_key: str) -> Path:
    return home / "peaks" / f"{environment_key}.json"
