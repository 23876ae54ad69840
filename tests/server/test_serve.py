"""`warpwatch serve` as a process: a stop by SIGTERM ends open streams and the embedded PostgreSQL, as Ctrl-C does."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.builders import Lab
from tests.conftest import FAST_AND_FORGETFUL
from warpwatch.cli.serve import listen
from warpwatch.db import embedded, migrate
from warpwatch.db.database import Database
from warpwatch.settings import Settings


@pytest.fixture
def home(tmp_path: Path, source: tuple[Path, list[str]]) -> Iterator[Path]:
    """A database of its own, with one queued job."""
    folder = tmp_path / "home"
    with embedded.running(folder, options=FAST_AND_FORGETFUL) as url:
        migrate.upgrade(url)
        with closing(Database(url)) as database:
            Lab(database, *source, folder=tmp_path).submit("check", 0)
    yield folder
    embedded.stop(folder)
    shutil.rmtree(embedded.data_folder(folder), ignore_errors=True)


@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.nightly)])
def test_a_signal_ends_streams_and_stops_the_embedded_database(home: Path, number: signal.Signals) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = subprocess.Popen(
        [sys.executable, "-m", "warpwatch", "serve"],
        env=os.environ | {"WARPWATCH_HOME": str(home), "WARPWATCH_PORT": str(port)},
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        wait_until_healthy(port)
        assert embedded.is_running(home)
        # The page of a job that waits has a stream, which has no end of its own.
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/api/v1/jobs/1/events", timeout=30) as stream:
            assert stream.readline() == b"event: state\n"
            server.send_signal(number)
            _, errors = server.communicate(timeout=60)
    finally:
        server.kill()
    assert "Traceback" not in errors
    assert not embedded.is_running(home)
    assert number == signal.SIGINT or server.returncode == 0


def wait_until_healthy(port: int, seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while True:
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/api/v1/health", timeout=5).close()
            return
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)


def test_no_answer_waits_for_the_acknowledgement_of_its_head(tmp_path: Path) -> None:
    with (
        listen(Settings(home=tmp_path, port=0)) as listener,
        socket.create_connection(listener.getsockname()),
        listener.accept()[0] as connection,
    ):
        assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
