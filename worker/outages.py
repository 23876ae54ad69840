"""Tells outages of the worker's surroundings from errors of the job and of Warpwatch itself.

A commit can bring about any error of the system in the worker, and a child that does not start. So these count as the
machine's fault only where the machine shows it without any commit as well; otherwise they cost the job an attempt.
"""

from __future__ import annotations

import errno
import shutil
import tempfile
from pathlib import Path

from warpwatch import git
from warpwatch.contract.environment import Environment
from warpwatch.contract.messages import CanaryReply
from warpwatch.contract.words import Reason, Status
from warpwatch.settings import Settings, free_bytes
from warpwatch.worker.checkout import QUICK_SECONDS
from warpwatch.worker.child import ChildFailure
from warpwatch.worker.gate import CANARY_SECONDS
from warpwatch.worker.host import Host
from warpwatch.worker.reporter import CannotRunError, Reporter
from warpwatch.worker.trees import Tree, TreeError
from warpwatch.worker.worktrees import own_prefix

LEAST_FREE_BYTES = 32 * 2**20
"""With less space than this on its disk nothing can be built or checked out, whatever a program then reports."""
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})


def require_space(settings: Settings) -> None:
    """CannotRunError while less is free than stays free, so that work stops before the disk is full."""
    free = free_bytes(settings.home)
    if free < settings.disk_reserve_bytes:
        message = (
            f"{free / 2**30:.1f} GiB are free in {settings.home}, less than the "
            f"{settings.disk_reserve_bytes / 2**30:g} GiB that stay free (WARPWATCH_DISK_RESERVE_GB)"
        )
        raise CannotRunError(message, retry=True, reason=Reason.DISK_FULL)


def reason_of(error: BaseException, home: Path) -> Reason | None:
    """Which outage an error stands for, from its type and the state of the disk; None where it stands for none."""
    causes: list[BaseException] = [error]
    while (cause := causes[-1].__cause__) is not None and cause not in causes:
        causes.append(cause)
    if any(isinstance(cause, git.UnreachableError) for cause in causes):
        return Reason.GIT_UNREACHABLE
    system_errors = [cause for cause in causes if isinstance(cause, OSError) and not isinstance(cause, TreeError)]
    if any(cause.errno in _FULL for cause in system_errors) or _disk_is_full(home):
        return Reason.DISK_FULL
    return Reason.HOST_FAULT if system_errors else None


def find_trouble(host: Host, reporter: Reporter) -> str | None:
    """The fault that this machine shows without any commit; None where the machine can write, check out a tree, start a
    child and use its device."""
    if _disk_is_full(host.home):
        return "its disk is full"
    try:
        _check_out_known_tree(host.home)
        with host.lone_child(reporter) as child:
            child.ask(Environment, "environment", QUICK_SECONDS, reporter)
            if host.kind == "cuda":
                canary = child.ask(CanaryReply, "canary", CANARY_SECONDS, reporter)
                if canary.status is not Status.OK or canary.troubles:
                    return f"{host.device} is not fit: {'; '.join([*canary.troubles, canary.message])}"
    except (OSError, git.GitError, CannotRunError, ChildFailure) as error:
        return f"{type(error).__name__}: {error}"
    return None


def _check_out_known_tree(home: Path) -> None:
    """Writes a file to a repository of its own, and checks it out. OSError or GitError where this fails."""
    folder, name, text = home / "worktrees" / f"{own_prefix()}probe", "file", "text"
    mirror = folder.with_name(f"{folder.name}.git")
    with git.empty_worktree(folder), git.empty_worktree(mirror):
        git.git("init", "--quiet", "--bare", str(mirror), cwd=folder)
        item = git.git("hash-object", "-w", "--stdin", cwd=mirror, text=text).strip()
        tree = git.git("mktree", cwd=mirror, text=f"100644 blob {item}\t{name}\n").strip()
        git.in_worktree(mirror, folder, "read-tree", "--reset", "-u", tree)
        if Tree(folder).read(name, 100) != text.encode():
            raise OSError(f"{folder} does not hold what was checked out")


def _disk_is_full(home: Path) -> bool:
    for folder in (home, Path(tempfile.gettempdir())):
        try:
            if shutil.disk_usage(folder).free < LEAST_FREE_BYTES:
                return True
        except OSError:
            continue
    return False
