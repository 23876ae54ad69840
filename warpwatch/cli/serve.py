"""`warpwatch serve`: pages and REST API."""

from __future__ import annotations

import gc
import logging
import signal
import socket
import sys
from contextlib import closing
from types import FrameType
from typing import TYPE_CHECKING

from warpwatch import telemetry
from warpwatch.cli.app import app, exit_on
from warpwatch.cli.services import ensure_worker_key
from warpwatch.destinations import is_loopback
from warpwatch.logs import configure_logs
from warpwatch.settings import SettingError, Settings, load_settings

if TYPE_CHECKING:
    from fastapi import FastAPI

    from warpwatch.db.database import Database

SWITCH_SECONDS = 0.0005
"""How long a thread that computes keeps the interpreter from the others. With Python's 5 ms, a request of ten
statements waits a second beside six threads that read results or judge."""
GRACE_SECONDS = 2
"""How long requests under way may hold up a stop."""


@app.command()
def serve() -> None:
    """Serve pages and REST API at WARPWATCH_HOST:WARPWATCH_PORT until stopped; needs `warpwatch migrate` once."""
    from warpwatch.cli.database import database_url
    from warpwatch.db.errors import EngineError
    from warpwatch.server.http.security import check_exposure

    # uvicorn stops on SIGTERM and raises it again; its default action would end this process before the database is
    # closed and the embedded PostgreSQL is stopped.
    signal.signal(signal.SIGTERM, _exit)
    with exit_on(EngineError, SettingError):
        settings = load_settings()
        configure_logs(settings.log_format, logging.WARNING)
        check_exposure(settings)
        if settings.has_telemetry:
            telemetry.start("warpwatch-server")
        with listen(settings) as listener, database_url(settings) as url:
            _serve(settings, url, listener)


def _exit(_signal: int, _frame: FrameType | None) -> None:
    raise SystemExit(0)


def _serve(settings: Settings, url: str, listener: socket.socket) -> None:
    # What is imported stays, and looking for garbage in it takes a sixth of the time.
    gc.disable()
    from warpwatch.db.database import Database
    from warpwatch.server.app import create_app

    gc.freeze()
    gc.enable()
    sys.setswitchinterval(SWITCH_SECONDS)
    with closing(Database(url, pool_size=20)) as database:
        worker_key = settings.worker_key
        if worker_key is None and is_loopback(settings.host):
            worker_key = ensure_worker_key(settings.home)
        if worker_key is not None:
            _accept_worker_key(database, worker_key)
        _run(create_app(settings, database), listener)


def _accept_worker_key(database: Database, key: str) -> None:
    """Lets workers in that have this key; SettingError for one that is no key."""
    from warpwatch.db.errors import EngineError, UnusableValueError
    from warpwatch.db.worker_keys import accept_key

    try:
        with database.session() as session:
            accept_key(session, "local", key)
    except UnusableValueError as error:
        raise SettingError(str(error)) from None
    except EngineError as error:
        # The server starts all the same, and says on its pages what is wrong with the database.
        logging.getLogger(__name__).warning("workers of this machine get no key until the next start: %s", error)


def _run(application: FastAPI, listener: socket.socket) -> None:
    import uvicorn

    from warpwatch.server.http.deadlines import HttpConnection

    class HttpServer(uvicorn.Server):
        def handle_exit(self, sig: int, frame: FrameType | None) -> None:
            """Live events have no end of their own, and stopping waits for whatever is being sent."""
            application.state.hub.close()
            super().handle_exit(sig, frame)

    config = uvicorn.Config(
        application,
        http=HttpConnection,
        # RequestGuard reads X-Forwarded headers, of the proxies in the settings alone.
        proxy_headers=False,
        log_config=None,
        log_level="warning",
        access_log=False,
        timeout_graceful_shutdown=GRACE_SECONDS,
    )
    HttpServer(config).run(sockets=[listener])


def listen(settings: Settings) -> socket.socket:
    """A socket that listens where the settings say; SettingError when something else is there already."""
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    listener = socket.socket(family)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    # Connections inherit it. Without it the body of an answer waits 40 ms for the client to acknowledge the head.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    try:
        listener.bind((settings.host.strip("[]"), settings.port))
        listener.listen(128)
    except OSError as error:
        listener.close()
        remedy = "choose another port with WARPWATCH_PORT, or stop what listens there"
        raise SettingError(f"cannot listen on {settings.host}:{settings.port} ({error.strerror}); {remedy}") from None
    return listener
