"""Builds of packages are kept until they take too much room; the least recently used go first."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from warpwatch.worker.package_build import ENVIRONMENT, IN_USE_SECONDS, TREE, trim_builds


def build(builds: Path, name: str, days: float, size: int = 1000) -> Path:
    folder = builds / name
    for part in (TREE, ENVIRONMENT):
        (folder / part / "package").mkdir(parents=True)
        (folder / part / "package" / "module.so").write_bytes(b"x" * (size // 2))
    used_at = time.time() - days * 86400
    os.utime(folder, (used_at, used_at))
    return folder


@pytest.mark.parametrize(
    ("limit", "kept"),
    [
        (4000, ["old", "older", "oldest", "recent"]),
        (3999, ["old", "older", "recent"]),
        (2500, ["old", "recent"]),
        (1000, ["recent"]),
        (0, ["recent"]),
    ],
)
def test_the_least_recently_used_builds_are_deleted_first(tmp_path: Path, limit: int, kept: list[str]) -> None:
    build(tmp_path, "older", 8)
    build(tmp_path, "oldest", 9)
    build(tmp_path, "recent", 0.5 * IN_USE_SECONDS / 86400)
    build(tmp_path, "old", 7)
    trim_builds(tmp_path, limit)
    assert sorted(path.name for path in tmp_path.iterdir()) == kept
