"""Runs commands that hold no code of any commit as children run: what they leave is as good for them."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from warpwatch.worker.sandbox import Confinement, Jail
from warpwatch.worker.trees import Tree

_POLL_SECONDS = 0.2


@contextlib.contextmanager
def ended(
    confinement: Confinement,
    words: list[str],
    inside: Mapping[str, str],
    seconds: float,
    should_stop: Callable[[], str | None] = lambda: None,
) -> Iterator[Tree]:
    """Runs a command to its end in a jail; the temporary folder that it had.

    inside: variables that name folders in it. seconds: after which it is killed, without those in `should_stop`, which
    is asked often, may stop the command for a while and ends it with a reason.
    """
    jail = Jail(confinement)
    try:
        variables = jail.environment() | {name: str(jail.inside / folder) for name, folder in inside.items()}
        process = subprocess.Popen(
            jail.command(words, jail.inside),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=jail.passed,
            env=variables,
            start_new_session=True,
        )
        try:
            jail.launched()
            while seconds > 0 and should_stop() is None:
                begin = time.monotonic()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(min(_POLL_SECONDS, seconds))
                    break
                seconds -= time.monotonic() - begin
        finally:
            jail.kill(process.pid)
            process.wait()
        yield Tree(jail.folder())
    finally:
        jail.close()


def keep(left: Tree, names: Mapping[str, str], target: Path, limit: int) -> None:
    """Copies files that a jail left into a new folder, as a whole; the first of two workers wins.

    names: of the files that are left, and of those below `target`. OSError for what is no regular file of at most
    `limit` bytes.
    """
    partial = target.with_name(f"{target.name}.{os.getpid()}-{time.monotonic_ns()}")
    try:
        partial.mkdir(parents=True)
        for name, copied in names.items():
            left.copy(name, Tree(partial), copied, limit)
        if not target.exists():
            partial.rename(target)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
