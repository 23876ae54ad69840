"""Control groups, on folders that stand in for the kernel's: few hosts of tests give a process one of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from warpwatch.worker import groups, levels, sandbox


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """A group of version 2 that was given to this process."""
    own = tmp_path / "cgroup" / "service"
    own.mkdir(parents=True)
    (own / "cgroup.controllers").write_text("cpu memory pids\n")
    (own / "cgroup.procs").touch()
    return own


def process(tmp_path: Path, name: str = "service") -> Path:
    """The files of /proc/self of a process in that group."""
    folder = tmp_path / "self"
    folder.mkdir(exist_ok=True)
    (folder / "mounts").write_text(f"tmpfs /run tmpfs rw 0 0\ncgroup2 {tmp_path}/cgroup cgroup2 rw 0 0\n")
    (folder / "cgroup").write_text(f"4:memory:/other\n0::/{name}\n")
    return folder


def test_a_group_of_its_own_is_found(own: Path, tmp_path: Path) -> None:
    assert groups.find_own_group(process(tmp_path)) == own


def test_a_group_without_the_controllers_is_none(own: Path, tmp_path: Path) -> None:
    (own / "cgroup.controllers").write_text("cpu pids\n")
    assert groups.find_own_group(process(tmp_path)) is None
    assert groups.find_own_group(process(tmp_path, "elsewhere")) is None
    assert groups.find_own_group(tmp_path / "no such process") is None


def test_the_worker_moves_before_it_passes_controllers_on(own: Path) -> None:
    assert groups.claim(own) == own
    assert (own / f"worker-{os.getpid()}" / "cgroup.procs").read_text() == str(os.getpid())
    assert (own / "cgroup.subtree_control").read_text() == "+memory +pids"


def test_a_group_with_other_processes_is_left(own: Path) -> None:
    """The kernel refuses the controllers then; a folder in their place refuses as well."""
    (own / "cgroup.subtree_control").mkdir()
    assert groups.claim(own) is None
    assert (own / "cgroup.procs").read_text() == str(os.getpid()), "it moves back"
    assert groups.claim(None) is None


def test_a_child_joins_a_group_with_its_limits(own: Path, tmp_path: Path) -> None:
    confinement = levels.confinement(tmp_path / "home", 2**30, isolation="none", group=own)
    jail = sandbox.Jail(confinement)
    (group,) = own.glob("child-*")
    limits = {path.name: path.read_text() for path in group.iterdir()}
    assert limits == {
        "memory.max": str(2**30),
        "memory.swap.max": "0",
        "memory.oom.group": "1",
        "pids.max": str(sandbox.PROCESSES),
    }
    command = jail.command([sys.executable, "-c", ""], Path("/"))
    subprocess.run(command, pass_fds=jail.passed, check=True)
    assert (group / "cgroup.procs").read_text() == "0", "0 is the process that writes"
    for path in group.iterdir():  # In the kernel's folders, files do not keep a group from being removed.
        path.unlink()
    jail.close()
    assert not group.exists()
