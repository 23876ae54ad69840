"""Display of progress in a terminal while commits are measured."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event, Thread

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from warpwatch.worker.reporter import SilentReporter

INTERRUPTED = "interrupted"
_LAST_LINE_WIDTH = 100
SAY_SECONDS = 60.0
"""How often a line is printed where nobody sees the bars."""


class TerminalReporter(SilentReporter):
    """Draws: log lines above, unless it is quiet, a bar for the jobs and one for the current job."""

    def __init__(self, progress: Progress, is_quiet: bool) -> None:
        self._is_quiet = is_quiet
        self._progress = progress
        self._last_line = ""
        self._jobs = progress.add_task("", total=None)
        self._steps = progress.add_task("", total=None)
        self.interrupted = False

    def job(self, number: int, total: int, text: str) -> None:
        self._progress.update(self._jobs, completed=number, total=total, description=text)

    def log(self, text: str) -> None:
        self._last_line = text.strip() or self._last_line
        if not self._is_quiet:
            self._progress.console.print(text, markup=False, highlight=False, soft_wrap=True)

    def progress(self, done: int, total: int, text: str, cell: tuple[str, str] | None = None) -> None:  # noqa: ARG002
        self._progress.update(self._steps, completed=done, total=total, description=text)

    def describe(self) -> str:
        """The bars in a line: jobs, the step of the current job, and about how long the rest takes. Where the log is
        not shown, its last line stands there as well."""
        jobs, step = (self._progress.tasks[number] for number in (self._jobs, self._steps))
        parts = [f"{jobs.completed:g} of {jobs.total or 1:g} jobs have ended", jobs.description, step.description]
        parts += [_both_ends(self._last_line)] if self._is_quiet else []
        if jobs.completed and jobs.elapsed and jobs.total:
            left = jobs.elapsed / jobs.completed * (jobs.total - jobs.completed)
            parts.append(f"expected end {time.strftime('%H:%M', time.localtime(time.time() + left))}")
        return ", ".join(part for part in parts if part)

    def should_stop(self) -> str | None:
        return INTERRUPTED if self.interrupted else None


def _both_ends(line: str) -> str:
    """A long line without its middle: the calls of a compiler begin alike, and name the file further behind."""
    rest = _LAST_LINE_WIDTH // 2
    return line if len(line) <= _LAST_LINE_WIDTH else f"{line[:rest]} … {line[-rest:]}"


@contextmanager
def run_progress(console: Console, *, is_quiet: bool = False) -> Iterator[TerminalReporter]:
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        reporter = TerminalReporter(progress, is_quiet)
        ended = Event()

        def say() -> None:
            while not ended.wait(SAY_SECONDS):
                console.print(reporter.describe(), markup=False, highlight=False, soft_wrap=True)

        if not console.is_terminal:
            Thread(target=say, daemon=True).start()
        try:
            yield reporter
        finally:
            ended.set()


@contextmanager
def interruptible(progress: TerminalReporter) -> Iterator[None]:
    """Ctrl-C and SIGTERM end the current job; what was measured before is kept."""

    def interrupt(*_: object) -> None:
        progress.interrupted = True

    before = {number: signal.signal(number, interrupt) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
