"""Static files that browsers may keep when their address changes with their content."""

from __future__ import annotations

import os
import re

from starlette.responses import Response
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

_YEAR = 365 * 24 * 3600
_VERSIONED = re.compile(r"/v\d+\.[^/]+/.")
"""A folder named by a version, as the Perfetto viewer has one."""


class Assets(StaticFiles):
    """Files with a digest in their address (`?v=`, see server.pages.render.asset) or in a versioned folder are
    immutable."""

    def file_response(
        self, full_path: str | os.PathLike[str], stat_result: os.stat_result, scope: Scope, status_code: int = 200
    ) -> Response:
        response = super().file_response(full_path, stat_result, scope, status_code)
        if scope.get("query_string", b"").startswith(b"v=") or _VERSIONED.search(scope["path"]):
            response.headers["Cache-Control"] = f"public, max-age={_YEAR}, immutable"
        return response
