"""Runs code in place of a commit's in a child of a worker with full isolation."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.worker.conftest import Diary
from warpwatch.contract.messages import BuildReply
from warpwatch.settings import Settings
from warpwatch.worker import levels
from warpwatch.worker.host import Host

CHILD = Path(__file__).parents[1] / "security" / "commit_child.py"
TRY = """
def attempt(*changes):
    for change in changes:
        try:
            change()
            print("changed")
        except OSError:
            print("refused")
"""


def isolated_host(home: Path) -> Host:
    """Skips the test where this machine has no full isolation."""
    settings = Settings(home=home)
    if levels.strongest_isolation(home) != "full":
        pytest.skip("this host allows no full isolation")
    return Host(settings, "cpu", bootstrap=CHILD)


def run(host: Host, root: Path, code: str, seconds: float = 30) -> list[str]:
    """The lines that the code prints; root: its folder, which is made."""
    root.mkdir()
    (root / "attack.py").write_text(code)
    child = host.start_child(host.empty_child(root), Diary())
    try:
        return child.ask(BuildReply, "check", seconds, Diary()).message.splitlines()
    finally:
        child.close()


def contents(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
