"""Applications whose routes are prepared and described once for all tests.

FastAPI prepares the routes of an application at its first request, which takes half a second of a core. The routes are
the same for every application; settings, database and threads are looked up in the application that a request reached.
"""

from __future__ import annotations

from fastapi import FastAPI
from starlette.routing import BaseRoute

from warpwatch.db.database import Database
from warpwatch.server import app as application
from warpwatch.settings import Settings

_prepared: list[BaseRoute] = []
_first: list[FastAPI] = []


def create_app(
    settings: Settings, database: Database, *, judge: bool = True, published: Database | None = None
) -> FastAPI:
    """As the server's own `create_app`."""
    app = application.create_app(settings, database, judge=judge, published=published)
    if not _prepared:
        _prepared.extend(app.router.routes)
        _first.append(app)
    app.router.routes[:] = _prepared
    # The routes are described once as well, which takes a second.
    app.openapi = _first[0].openapi  # type: ignore[method-assign]  # as `describe_errors` does
    return app
