"""Tells outages of the worker's surroundings from errors of the job and of Warpwatch itself."""

from __future__ import annotations

import errno
import shutil
import tempfile
from pathlib import Path

from warpwatch.contract.words import Reason
from warpwatch.git import UnreachableError
from warpwatch.settings import Settings, free_bytes
from warpwatch.worker.reporter import CannotRunError

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
    causes = _chain(error)
    if any(isinstance(cause, UnreachableError) for cause in causes):
        return Reason.GIT_UNREACHABLE
    system_errors = [cause for cause in causes if isinstance(cause, OSError)]
    if any(cause.errno in _FULL for cause in system_errors) or _disk_is_full(home):
        return Reason.DISK_FULL
    return Reason.HOST_FAULT if system_errors else None


def _chain(error: BaseException) -> list[BaseException]:
    causes = [error]
    while (cause := causes[-1].__cause__) is not None and cause not in causes:
        causes.append(cause)
    return causes


def _disk_is_full(home: Path) -> bool:
    for folder in (home, Path(tempfile.gettempdir())):
        try:
            if shutil.disk_usage(folder).free < LEAST_FREE_BYTES:
                return True
        except OSError:
            continue
    return False
