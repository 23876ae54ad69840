"""Our static files, with leave for browsers to keep what is named by its content."""

from __future__ import annotations

import os

from starlette.responses import Response
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

_YEAR = 365 * 24 * 3600


class Assets(StaticFiles):
    """A file asked for with its digest (`?v=`, see server.pages.render.asset) never changes under that address."""

    def file_response(
        self, full_path: str | os.PathLike[str], stat_result: os.stat_result, scope: Scope, status_code: int = 200
    ) -> Response:
        response = super().file_response(full_path, stat_result, scope, status_code)
        if scope.get("query_string", b"").startswith(b"v="):
            response.headers["Cache-Control"] = f"public, max-age={_YEAR}, immutable"
        return response
