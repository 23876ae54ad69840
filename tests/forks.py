"""With --forks N, N forks of the process that has collected the tests run them, each the next file that none has begun.

Every process of pytest-xdist imports and collects on its own, which takes 12 processor seconds.
"""

from __future__ import annotations

import atexit
import multiprocessing
import os
import signal
import struct
import warnings
from collections.abc import Iterator
from itertools import groupby
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import pytest

_NUMBER = struct.Struct("i")


def pytest_runtestloop(session: pytest.Session) -> bool | None:
    count = session.config.getoption("--forks")
    if session.testsfailed or session.config.option.collectonly:
        return None
    files = [list(items) for _, items in groupby(session.items, key=lambda item: item.path)]
    # A read of a pipe is undivided, so each number is one process's.
    queue, numbers = os.pipe()
    os.write(numbers, b"".join(map(_NUMBER.pack, range(len(files)))))
    os.close(numbers)
    # Each process makes a folder of its own in this one.
    session.config._tmp_path_factory.getbasetemp()  # type: ignore[attr-defined] # pytest has no public name for it
    context = multiprocessing.get_context("fork")
    forks = {}
    for number in range(count):
        receiving, sending = context.Pipe(duplex=False)
        forks[receiving] = context.Process(target=_run, args=(session, _items(files, queue), sending, number))
        forks[receiving].start()
        sending.close()
    os.close(queue)
    try:
        running = _report(session, list(forks))
    except BaseException:
        # As at a terminal, where all processes hear of it, so that each ends what its tests have started.
        for process in forks.values():
            if process.is_alive() and process.pid is not None:
                os.kill(process.pid, signal.SIGINT)
        raise
    finally:
        for process in forks.values():
            process.join()
    for receiving, process in forks.items():
        if process.exitcode != 0:
            name = running.get(receiving, "between two tests")
            text = f"the process that ran it ended with exit code {process.exitcode}"
            report = pytest.TestReport(name, (name, None, name), {}, "failed", text, "call")
            session.config.hook.pytest_runtest_logreport(report=report)
    return True


def _items(files: list[list[pytest.Item]], queue: int) -> Iterator[pytest.Item]:
    """The tests of files that no other process has begun."""
    while content := os.read(queue, _NUMBER.size):
        yield from files[_NUMBER.unpack(content)[0]]


def _run(session: pytest.Session, items: Iterator[pytest.Item], sending: Connection, number: int) -> None:
    """Runs tests in a fork."""
    config = session.config
    # What the process that has collected the tests prints of them, this one need not print as well.
    config.get_terminal_writer()._file = Path(os.devnull).open("w")  # noqa: SIM115 - until the process ends
    # A file that catches what tests print has one position for all forks.
    capture = config.pluginmanager.getplugin("capturemanager")
    capture.stop_global_capturing()
    capture.start_global_capturing()
    factory = config._tmp_path_factory  # type: ignore[attr-defined]
    factory._basetemp = factory.mktemp(f"fork-{number}", numbered=False)
    config.pluginmanager.register(_Sender(config, sending))
    try:
        item = next(items, None)
        while item is not None:
            following = next(items, None)
            config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            item = following
    except KeyboardInterrupt:
        pass
    finally:
        # Where an interrupt ended the tests, their fixtures still stand.
        session._setupstate.teardown_exact(None)
        capture.stop_global_capturing()
        atexit._run_exitfuncs()


class _Sender:
    """Sends what a fork finds to the process that prints it."""

    def __init__(self, config: pytest.Config, sending: Connection) -> None:
        self._config, self._sending = config, sending

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._sending.send(("begin", nodeid))

    def pytest_runtest_logfinish(self) -> None:
        self._sending.send(("end", None))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        content = self._config.hook.pytest_report_to_serializable(config=self._config, report=report)
        self._sending.send(("report", content))

    def pytest_warning_recorded(self, warning_message: warnings.WarningMessage, when: str, nodeid: str) -> None:
        message = str(warning_message.message), warning_message.category
        place = warning_message.filename, warning_message.lineno
        self._sending.send(("warning", (*message, *place, when, nodeid)))


def _report(session: pytest.Session, forks: list[Connection]) -> dict[Connection, str]:
    """Passes on what forks find, until all have ended; the tests that they ended in."""
    running: dict[Connection, str] = {}
    while forks:
        for receiving in wait(forks):
            assert isinstance(receiving, Connection)
            try:
                kind, content = receiving.recv()
            except EOFError:
                forks.remove(receiving)
                continue
            if kind == "begin":
                running[receiving] = content
            elif kind == "end":
                del running[receiving]
            else:
                _pass_on(session.config, kind, content)
        if session.shouldfail:
            raise session.Failed(session.shouldfail)
        if session.shouldstop:
            raise session.Interrupted(session.shouldstop)
    return running


def _pass_on(config: pytest.Config, kind: str, content: Any) -> None:
    if kind == "report":
        report = config.hook.pytest_report_from_serializable(config=config, data=content)
        config.hook.pytest_runtest_logreport(report=report)
        return
    *message, when, nodeid = content
    details = {"warning_message": warnings.WarningMessage(*message), "when": when, "nodeid": nodeid, "location": None}
    config.hook.pytest_warning_recorded.call_historic(kwargs=details)
