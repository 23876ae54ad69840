"""Requests that a code host refuses or loses: limits, permissions, tokens, redirects; and several servers at once."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import text

from tests.builders import Lab
from tests.server.forges import (
    PROJECT,
    Forge,
    github,
    in_seconds,
    serving,
)
from tests.server.test_forge import (
    API,
    LATE,
    LINK,
    STRANGER,
    end,
    forge,
    lab,
    linked,
    notifier,
    open_pull,
    say,
    sent,
    settings,
    submissions,
)
from warpwatch.contract.words import ForgeState
from warpwatch.db.database import Database
from warpwatch.db.forge import claim_message
from warpwatch.server.threads.forge_notifier import ForgeNotifier

__all__ = ["forge", "lab", "linked", "notifier", "settings"]


AT_THE_END = "the time at which the pause ends"


@pytest.mark.usefixtures("linked")
@pytest.mark.parametrize(
    ("status", "headers", "pause"),
    [
        (429, {"Retry-After": "120"}, 120),
        (403, {"Retry-After": "120"}, 120),
        (403, {"x-ratelimit-remaining": "0", "x-ratelimit-reset": AT_THE_END}, 1800),
        (403, {"x-ratelimit-remaining": "0", "x-ratelimit-reset": "nonsense"}, 60),
        (429, {}, 60),
        (429, {"Retry-After": "1e9"}, 3600),
    ],
    ids=["too_many_requests", "forbidden", "until_a_time", "nonsense", "without_a_word", "longest"],
)
def test_limits_pause_all_messages_of_a_repository(
    client: TestClient,
    lab: Lab,
    forge: Forge,
    notifier: ForgeNotifier,
    database: Database,
    status: int,
    headers: dict[str, str],
    pause: float,
) -> None:
    body = {"message": "You have exceeded a secondary rate limit"}
    headers = {name: in_seconds(pause) if value == AT_THE_END else value for name, value in headers.items()}
    forge.refusals = [(r"POST .*/check-runs$", (status, headers, body))]
    open_pull(client, forge, lab, 3, 3)
    notifier.sweep()
    left = (datetime.fromisoformat(client.get(LINK).json()["paused_until"]) - datetime.now(UTC)).total_seconds()
    assert pause - 120 < left <= pause + 1
    assert forge.comments == {}, "nothing else is sent either"
    assert client.get(LINK).json()["state"] == ForgeState.LINKED
    with database.session() as session:
        session.execute(text("UPDATE forge_links SET paused_until = now()"))
        session.execute(text("UPDATE forge_messages SET next_at = now()"))
    notifier.sweep()
    assert (len(forge.check_runs), len(forge.bodies_of(3))) == (1, 1)


def test_the_words_of_a_secondary_limit_are_not_needed(
    client: TestClient, lab: Lab, forge: Forge, notifier: ForgeNotifier, linked: dict[str, Any]
) -> None:
    """GitHub names the page of its documents; the message may change."""
    url = "https://docs.github.com/rest/using-the-rest-api/rate-limits-for-the-rest-api#about-secondary-rate-limits"
    forge.refusals = [(r"POST .*/check-runs$", (403, {}, {"documentation_url": url}))]
    open_pull(client, forge, lab, 3, 3)
    notifier.sweep()
    assert client.get(LINK).json()["paused_until"] is not None


@pytest.mark.usefixtures("linked")
def test_a_forbidden_request_is_given_up_and_shown(
    client: TestClient, lab: Lab, forge: Forge, notifier: ForgeNotifier
) -> None:
    """A permission that the app lacks. Once it has it, the link is checked and all is sent."""
    forge.refusals = [(r"POST .*/comments$", (403, {}, {"message": "Resource not accessible by integration"}))]
    open_pull(client, forge, lab, 3, 3)
    notifier.sweep()
    row = client.get(LINK).json()
    assert (row["state"], row["given_up"], bool(row["error"])) == (ForgeState.REFUSED, 1, True)
    page = client.get("/repositories/kernels/forge").text
    assert "given up" in page
    assert 'id="link-state">refused' in page
    assert 'warpwatch_notifications{channel="github",outcome="given_up"} 1.0' in client.get("/metrics").text
    assert client.post(f"{LINK}/check").status_code == 202
    notifier.sweep()
    row = client.get(LINK).json()
    assert (row["state"], row["given_up"], row["error"], len(forge.bodies_of(3))) == (ForgeState.LINKED, 0, "", 1)


@pytest.mark.parametrize("permissions", [{}, {"checks": "read", "issues": "write", "pull_requests": "write"}])
def test_a_permission_that_the_app_lacks_is_found_at_once(
    client: TestClient, lab: Lab, forge: Forge, notifier: ForgeNotifier, permissions: dict[str, str]
) -> None:
    complete, forge.permissions = forge.permissions, permissions
    client.put(LINK, json={"forge": "github", "project": PROJECT})
    notifier.sweep()
    row = client.get(LINK).json()
    assert (row["state"], bool(row["error"])) == (ForgeState.REFUSED, True)
    forge.permissions = complete
    client.post(f"{LINK}/check")
    notifier.sweep()
    assert client.get(LINK).json()["state"] == ForgeState.LINKED


@pytest.mark.usefixtures("linked")
def test_an_app_that_was_removed(client: TestClient, lab: Lab, forge: Forge, notifier: ForgeNotifier) -> None:
    forge.is_installed = False
    forge.tokens.clear()
    open_pull(client, forge, lab, 3, 3)
    notifier.sweep()
    row = client.get(LINK).json()
    assert (row["state"], row["given_up"]) == (ForgeState.MISSING, 2)
    forge.is_installed = True
    client.post("/repositories/kernels/forge/check")
    notifier.sweep()
    assert client.get(LINK).json()["state"] == ForgeState.LINKED
    assert (len(forge.check_runs), len(forge.bodies_of(3))) == (1, 1)


@pytest.mark.usefixtures("linked")
def test_tokens_are_used_until_they_expire(client: TestClient, lab: Lab, forge: Forge, notifier: ForgeNotifier) -> None:
    given = len(forge.asked(r"POST /app/installations/5/access_tokens"))
    open_pull(client, forge, lab, 3, 3)
    notifier.sweep()
    assert len(forge.asked("access_tokens")) == given == 1
    forge.tokens.clear()
    forge.token_seconds = 200
    open_pull(client, forge, lab, 3, 4, at=LATE)
    notifier.sweep()
    assert len(forge.asked("access_tokens")) > 2, "one that was taken back is replaced, one that ends soon is not used"
    assert {row["outcome"] for row in sent(client)} == {"sent"}


@pytest.mark.usefixtures("linked")
def test_a_redirect_is_not_followed(client: TestClient, lab: Lab, forge: Forge, notifier: ForgeNotifier) -> None:
    """The token is for the API's host alone."""
    with serving(github) as elsewhere:
        moved = (301, {"Location": f"{elsewhere.url}/repos/{PROJECT}/check-runs"}, {"message": "Moved Permanently"})
        forge.refusals = [(r"POST .*/check-runs$", moved)]
        open_pull(client, forge, lab, 3, 3)
        notifier.sweep()
        assert elsewhere.requests == []
    assert client.get(LINK).json()["given_up"] == 1


@pytest.mark.usefixtures("linked")
@pytest.mark.parametrize(
    "answer", [(200, {}, "[" * 5000), (200, {}, None), (200, {}, {"id": {}}), (200, {}, {"id": "x" * 5_000_000})]
)
def test_answers_that_cannot_be_read_are_asked_for_again(
    client: TestClient, lab: Lab, forge: Forge, notifier: ForgeNotifier, answer: Any
) -> None:
    forge.refusals = [(r"GET .*/collaborators", answer), (r"POST .*/comments$", answer)]
    open_pull(client, forge, lab, 7, 3)
    say(client, "/warpwatch help", STRANGER)
    notifier.sweep()
    assert len(submissions(client)) == 1
    assert {row["outcome"] for row in sent(client) if row["kind"] == "comment"} == {"sent"}


@pytest.mark.usefixtures("linked")
def test_only_the_newest_of_several_messages_is_sent(
    client: TestClient, lab: Lab, forge: Forge, notifier: ForgeNotifier
) -> None:
    submission = open_pull(client, forge, lab, 3, 3).json()["submission_id"]
    end(client, lab, submission)
    notifier.sweep()
    told = client.get(f"{API}/submissions/{submission}/check-runs").json()["items"]
    assert [(row["state"], row["outcome"], row["attempts"]) for row in told] == [
        ("pending", "replaced", 0),
        ("final", "sent", 1),
    ]
    assert client.get(LINK).json()["given_up"] == 0
    (run,) = forge.check_runs.values()
    assert run["conclusion"] == "success"


def test_two_servers_send_a_message_once(client: TestClient, lab: Lab, database: Database) -> None:
    client.put(LINK, json={"forge": "github", "project": PROJECT})
    with database.session() as session:
        assert claim_message(session) is not None
    with database.session() as session:
        assert claim_message(session) is None
        session.execute(text("UPDATE forge_messages SET claimed_until = now() - interval '1 second'"))
        assert claim_message(session) is not None
