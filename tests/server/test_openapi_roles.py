"""Made-up requests of every role: no 5xx, and no answer to who may not ask."""

from __future__ import annotations

from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest
import requests
from schemathesis import GenerationMode

from tests.builders import CASES, Lab
from tests.server.test_openapi import make_up
from warpwatch.contract.words import AccountRole, Status
from warpwatch.db.access import add_token
from warpwatch.db.accounts import ensure_account
from warpwatch.db.registry import set_repository
from warpwatch.server.http.access import hash_of
from warpwatch.server.http.permissions import ROLE_SCOPES, SCOPES, is_public, required_scope
from warpwatch.settings import Settings

REQUESTS = 1
"""Per operation and role, of those that all tests share."""
OPEN = ("/api/v1/worker/", "/api/v1/hooks/", "/api/v1/health")


@pytest.fixture
def settings(tmp_path: Path, database_url: str) -> Settings:
    settings = Settings(home=tmp_path / "home", database_url=database_url)
    return replace(settings, token="the-token-of-the-server", is_public=True, public_requests=100_000)


def check_answer(role: AccountRole | None, response: Any) -> None:
    """What RequestGuard promises for a request that was sent as it is."""
    method, path = response.request.method, unquote(urlsplit(response.request.url).path)
    place = f"{role} {method} {path}: {response.status_code} {response.text[:300]}"
    assert response.status_code < 500, place
    if path.startswith(OPEN):
        return
    if role is None:
        assert (response.status_code == 401) is not is_public(method, path), place
    elif SCOPES.index(ROLE_SCOPES[role]) < SCOPES.index(required_scope(method, path)):
        assert response.status_code == 403, place
    elif path != "/api/v1/tokens":
        assert response.status_code not in (401, 403), place


# test_permissions.py walks every route with every role; what is made up beside that differs little from role to role.
OFTEN = (None, AccountRole.SUBMITTER)
RARELY = (pytest.param(role, marks=pytest.mark.nightly) for role in (AccountRole.VIEWER, AccountRole.TRIAGER))


@pytest.mark.parametrize("role", [*OFTEN, *RARELY])
def test_made_up_requests_of_a_role(served: Settings, lab: Lab, role: AccountRole | None, times: int) -> None:
    lab.check(0, {("v1", CASES[0]): Status.OK})
    lab.bench(0, {("v1", CASES[0]): 1000.0})
    with lab.database.session() as s:
        set_repository(s, lab.repository, {"is_public": True})
    session = requests.Session()
    # Otherwise it looks for proxies and passwords before every request.
    session.trust_env = False
    if role is not None:
        with lab.database.session() as s:
            account = ensure_account(s, role, role)
            add_token(s, account.id, role, "", hash_of("wwp_token"), ROLE_SCOPES[role], None)
        session.headers["Authorization"] = "Bearer wwp_token"
    # The description itself is for those who may read.
    administrator = {"Authorization": f"Bearer {served.token}"}
    description = requests.get(f"{served.server_url}/api/v1/openapi.json", headers=administrator, timeout=60).text
    made_up = make_up(description, GenerationMode.POSITIVE, times)
    for case in chain.from_iterable(cases[: REQUESTS * times] for cases in made_up.values()):
        # The token that is asked with must last.
        if "/tokens/" in case.path:
            continue
        check_answer(role, case.call(base_url=served.server_url, session=session))
    assert len(made_up) >= 100
    assert all(made_up.values())
