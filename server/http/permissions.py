"""Permissions of each scope and role: the only table that the server decides by, and that the documents show."""

from __future__ import annotations

import re

from warpwatch.contract.words import AccountRole, TokenScope

SCOPES = list(TokenScope)
ROLE_SCOPES: dict[AccountRole, TokenScope] = dict(zip(AccountRole, TokenScope, strict=True))
"""Scope of the people with each role."""

PERMISSIONS: dict[TokenScope, tuple[str, ...]] = {
    # Everybody reads everything else. What people do with their own tokens is checked where it is done.
    TokenScope.READ: (
        "POST /submissions/preview",
        "POST /runs/preview",
        "POST /repositories/{name}/retention/preview",
        "POST /tokenizer",
        "POST /tokenizer/train",
        "POST /tokenizer/encode",
        "POST /tokenizer/decode",
        "POST /receipts/verify",
        "POST /tokens",
        "POST /tokens/{token_id}/revoke",
        "DELETE /tokens/{token_id}",
        "POST /login",
        "POST /login/invitation",
        "POST /logout",
        # Each of its tools asks this API in turn, with the same token.
        "POST /mcp",
    ),
    TokenScope.SUBMIT: (
        "POST /submissions",
        "POST /runs/new",
        "POST /submissions/{submission_id}/cancel",
        "POST /submissions/{submission_id}/retry",
        "POST /runs/{submission_id}/cancel",
        "POST /runs/{submission_id}/retry",
        "POST /jobs/{job_id}/cancel",
        "POST /jobs/{job_id}/retry",
        "POST /patches",
        "POST /judgements",
        "POST /imports",
        "POST /regressions/{regression_id}/compare",
        "POST /proofs",
        "POST /schedules/{schedule_id}/run",
    ),
    TokenScope.TRIAGE: (
        "POST /triage",
        "POST /regressions/triage",
        "PATCH /regressions/{regression_id}",
        "POST /regressions/{regression_id}/mute",
        "POST /regressions/{regression_id}/triage",
        "POST /costs/accept",
        "POST /costs/{trade_id}/accept",
        "PUT /series/{series_id}/mute",
        "DELETE /series/{series_id}/mute",
        "POST /muted/{series_id}/end",
        "POST /jobs/{job_id}/strike-out",
        "POST /jobs/{job_id}/strike-out/undo",
        "DELETE /jobs/{job_id}/strike-out",
        "POST /watches",
        "POST /watches/{watch_id}/remove",
        "DELETE /watches/{watch_id}",
        "POST /views",
        "POST /views/{view_id}/remove",
        "DELETE /views/{view_id}",
    ),
    # And every other request that changes something.
    TokenScope.ADMINISTER: (
        "GET /audit",
        "GET /accounts",
    ),
}
"""Method and path that each scope adds to those before it. The pages and the API below /api/v1 have the same paths."""
PUBLIC = (
    "GET /",
    "GET /home",
    "GET /overview",
    "GET /overview.csv",
    "GET /overview/trends",
    "GET /overview/shifts",
    "GET /overview/cases/{operator}",
    "GET /kernels",
    "GET /kernels/{name}",
    "GET /operators",
    "GET /operators/{name}/cases",
    "GET /operators/{name}/code",
    "GET /operators/{name}/speedups",
    "GET /series",
    "GET /history/{series_id}",
    "GET /history/{series_id}.csv",
    "GET /history/{series_id}/noise",
    "GET /history/{series_id}/quantities",
    "GET /commits",
    "GET /commits/{sha}",
    "GET /commits/{sha}.csv",
    "GET /commits/{sha}/cells",
    "GET /commits/{sha}/trades",
    "GET /branches",
    "GET /branches/{name}",
    "GET /compare",
    "GET /compare.csv",
    "GET /regressions",
    "GET /regressions.csv",
    "GET /regressions/{regression_id}",
    "GET /regressions/{regression_id}/cause",
    "GET /events",
    "GET /badges/{repository}.svg",
    "GET /verdicts",
    "GET /verdicts/thresholds",
    "GET /receipts/keys",
)
"""What anybody may ask for on a server that lets the public in: the least of all roles. Of which repositories, and
which columns, db.published decides; what it hides is in no answer to these."""
SAFE_METHODS = ("GET", "HEAD", "OPTIONS")
_PARAMETER = re.compile(r"\\{\w+\\}")


def _pattern(rows: tuple[str, ...]) -> re.Pattern[str]:
    return re.compile("|".join(_PARAMETER.sub("[^/]+", re.escape(row)) for row in rows))


_PATTERNS = {scope: _pattern(rows) for scope, rows in PERMISSIONS.items()}


_PUBLIC = _pattern(PUBLIC)


def is_public(method: str, path: str) -> bool:
    """Whether a request is one that the public may send."""
    return method in ("GET", "HEAD") and _PUBLIC.fullmatch(f"GET {path.removeprefix('/api/v1')}") is not None


def required_scope(method: str, path: str) -> TokenScope:
    """Scope that a request needs. Requests outside the table need the highest scope, unless they only read."""
    path = path.removeprefix("/api/v1")
    is_reading = method in SAFE_METHODS
    row = f"{'GET' if is_reading else method} {path}"
    scope = next((scope for scope in TokenScope if _PATTERNS[scope].fullmatch(row)), None)
    if scope is not None:
        return scope
    # Workers show keys of their own, and what they do is kept with their runs.
    return TokenScope.READ if is_reading or path.startswith("/worker/") else TokenScope.ADMINISTER


def is_change(method: str, path: str) -> bool:
    """Whether the trail keeps a request."""
    # A tokenizer is not stored.
    is_preview = path.endswith("/preview") or path.removeprefix("/api/v1").startswith("/tokenizer")
    is_visit = path.startswith(("/login", "/logout", "/mcp", "/api/v1/worker/"))
    is_question = path.endswith("/receipts/verify")
    return method not in SAFE_METHODS and not is_preview and not is_visit and not is_question


def weaker(first: TokenScope, second: TokenScope) -> TokenScope:
    """The one of two scopes that may do less."""
    return min(first, second, key=SCOPES.index)
