"""CI jobs that show the ID token of their code host: who they are, and the few requests that are theirs."""

from __future__ import annotations

import base64
import json
import re
from typing import Any

from warpwatch.contract.words import TokenScope
from warpwatch.db.ci_identities import CiIdentityRow, find_ci_identities, find_repository_of, note_ci_use
from warpwatch.db.database import Database
from warpwatch.server.http.access import CI_PREFIX, Caller
from warpwatch.server.http.problems import Problem
from warpwatch.server.http.providers import Providers, WrongTokenError

MAX_TOKEN = 16_000
_TOKEN = re.compile(r"[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]*")
_ANYWHERE = re.compile(r"GET /(repositories|caller)|POST /(submissions(/preview)?|imports)")
"""Requests whose handlers themselves leave out or refuse other repositories."""
_SUBMISSION = re.compile(
    r"GET /submissions/(\d{1,18})(/report[.a-z]*|/verdicts|/callbacks|/progress)?"
    r"|POST /submissions/(\d{1,18})/(cancel|retry)"
)
_BADGE = re.compile(r"GET /badges/([^/]+)\.svg")


def is_id_token(shown: str) -> bool:
    """Whether a bearer looks like a signed token of somebody else."""
    return len(shown) <= MAX_TOKEN and _TOKEN.fullmatch(shown) is not None


def identify_ci(providers: Providers, database: Database, shown: str) -> Caller | None:
    """The CI job that shows a token, which may submit for the repositories that trust it; None for any other.

    Keys are fetched without a transaction. ProviderError while its issuer is away.
    """
    claims = _unverified(shown)
    issuer, audiences = claims.get("iss"), claims.get("aud")
    if not isinstance(issuer, str):
        return None
    with database.session() as session:
        rows = find_ci_identities(session, issuer.rstrip("/"))
    wanted = audiences if isinstance(audiences, list) else [audiences]
    rows = [row for row in rows if row.audience in wanted]
    if not rows:
        # Nobody is asked for keys whom no administrator named.
        return None
    try:
        subject = providers.verify(issuer, shown, rows[0].audience)["sub"]
    except WrongTokenError:
        return None
    # The signature covers all audiences of the token.
    trusting = [row for row in rows if matches(row, subject)]
    if not trusting:
        return None
    with database.session() as session:
        note_ci_use(session, [row.id for row in trusting])
    repositories = frozenset(row.repository for row in trusting)
    return Caller(f"{CI_PREFIX}{subject}"[:500], TokenScope.SUBMIT, None, repositories)


def matches(row: CiIdentityRow, subject: str) -> bool:
    pattern = ".*".join(re.escape(part) for part in row.subject.split("*"))
    return re.fullmatch(pattern, subject, re.DOTALL) is not None


def refuse_elsewhere(database: Database, caller: Caller, method: str, path: str) -> Problem | None:
    """A 403 where a CI job asks for anything but its own submissions."""
    if caller.repositories is None:
        return None
    request = f"{'GET' if method == 'HEAD' else method} {path.removeprefix('/api/v1')}"
    if path.startswith("/api/v1/"):
        if _ANYWHERE.fullmatch(request):
            return None
        badge, submission = _BADGE.fullmatch(request), _SUBMISSION.fullmatch(request)
        if badge is not None and badge[1] in caller.repositories:
            return None
        if submission is not None:
            with database.session() as session:
                name = find_repository_of(session, int(submission[1] or submission[3]))
            if name is None or name in caller.repositories:
                return None
    return Problem(403, f"{caller.name} may submit for {', '.join(sorted(caller.repositories))}, and nothing else")


def _unverified(shown: str) -> dict[str, Any]:
    """Unverified claims of a token; use the claims only to find the issuer whose keys could prove the token."""
    part = shown.split(".")[1]
    try:
        claims = json.loads(base64.urlsafe_b64decode(part + "=" * (-len(part) % 4)))
    except (ValueError, RecursionError):
        return {}
    return claims if isinstance(claims, dict) else {}
