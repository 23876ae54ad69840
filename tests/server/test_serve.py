"""`warpwatch serve` as a process: a stop by SIGTERM stops the embedded PostgreSQL too, as Ctrl-C does."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import FAST_AND_FORGETFUL
from warpwatch.cli.serve import _listening
from warpwatch.db import embedded, migrate
from warpwatch.settings import Settings


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "home"
    with embedded.running(folder, options=FAST_AND_FORGETFUL) as url:
        migrate.upgrade(url)
    yield folder
    embedded.stop(folder)
    shutil.rmtree(embedded.data_folder(folder), ignore_errors=True)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_the_embedded_database(home: Path, number: signal.Signals) -> None:
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


def test_small_answers_are_sent_at_once(tmp_path: Path) -> None:
    """Without this every answer but the first of a connection comes 40 ms late."""

    async def is_undelayed() -> bool:
        found: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

        def connected(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            near = writer.get_extra_info("socket")
            found.set_result(bool(near.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)))
            writer.close()

        with _listening(Settings(home=tmp_path, port=0)) as listener:
            async with await asyncio.start_server(connected, sock=listener):
                await asyncio.open_connection(*listener.getsockname())
                return await found

    assert asyncio.run(is_undelayed())
