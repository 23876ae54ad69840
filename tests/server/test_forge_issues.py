"""Issues of confirmed regressions: where they are wanted, one each, with the evidence, closed when it is mended."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import text

from tests.builders import Lab
from tests.server.forges import PROJECT, TOKEN, Forge, gitlab, serving
from tests.server.test_channels import confirm
from tests.server.test_forge import LINK, forge, notifier, sent, settings
from tests.server.test_judge import judge
from warpwatch.db.database import Database
from warpwatch.db.regressions import read_regression
from warpwatch.db.triage import set_triage
from warpwatch.server.history.branches import follow_branches
from warpwatch.server.reports.issues import issue_text
from warpwatch.server.threads.forge_notifier import ForgeNotifier
from warpwatch.settings import Settings

API = "/api/v1"
__all__ = ["confirm", "forge", "judge", "notifier", "settings"]


@pytest.fixture
def link(client: TestClient, lab: Lab, settings: Settings, database: Database) -> Callable[..., None]:
    """Links the repository, whose branches are known as after a submission."""
    asked = {"repository": "kernels", "commits": "main", "device": "cpu", "kinds": ["profile"], "operators": ["cube"]}
    assert client.post(f"{API}/submissions", json=asked).status_code == 201

    def link_to(**more: Any) -> None:
        body = {"forge": "github", "project": PROJECT, "files_issues": True} | more
        assert client.put(LINK, json=body).status_code == 200

    return link_to


def test_a_regression_is_filed_once_with_its_evidence_and_closed(
    client: TestClient,
    lab: Lab,
    forge: Forge,
    link: Callable[..., None],
    confirm: Callable[..., int],
    notifier: ForgeNotifier,
    database: Database,
    settings: Settings,
) -> None:
    link()
    regression = confirm()
    follow_branches(database, settings, lab.repository)
    forge.lost = [r"POST .*/issues$"]
    for _ in range(3):
        notifier.sweep()
    (issue,) = forge.issues.values()
    assert issue["labels"] == ["warpwatch"]
    assert issue["state"] == "open"
    page = client.get(f"{API}/regressions/{regression}").json()
    for part in (lab.shas[1], "Ann", "Change 2", f"/regressions/{regression}", page["replay"]):
        assert part in issue["body"]
    with database.session() as session:
        detail = read_regression(session, regression)
        assert detail is not None
        assert issue["body"] == issue_text(detail, settings.server_url, "Test CPU")
        subject, author = "@acme/all <script> | x\n/close", "[a](http://b)\n/assign @ann"
        row = replace(detail.regression, head_subject=subject, head_author=author)
        hostile = replace(detail, regression=row, replay="x ```\n<b>")
        text_of_it = issue_text(hostile, settings.server_url, "Test CPU")
        assert not any(part in text_of_it for part in ("@acme", "@ann", "<script>", "[a](", "x ```"))
        assert not any(line.startswith("/") for line in text_of_it.splitlines())
        set_triage(session, regression, "fixed", "ann", "done")
    notifier.sweep()
    notifier.sweep()
    (issue,) = forge.issues.values()
    assert (issue["state"], issue["state_reason"]) == ("closed", "completed")
    rows = [(row["kind"], row["state"], row["outcome"]) for row in sent(client) if row["kind"] == "issue"]
    assert rows == [("issue", "open", "sent"), ("issue", "closed", "sent")]


def test_nothing_is_filed_unless_it_is_wanted(
    client: TestClient,
    lab: Lab,
    forge: Forge,
    link: Callable[..., None],
    confirm: Callable[..., int],
    notifier: ForgeNotifier,
    database: Database,
    settings: Settings,
) -> None:
    link(files_issues=False)
    confirm("square")
    follow_branches(database, settings, lab.repository)
    notifier.sweep()
    assert forge.issues == {}
    link(files_issues=True)
    notifier.sweep()
    assert forge.issues == {}, "what was confirmed before is not filed"
    confirm("cube")
    with database.session() as session:
        session.execute(text("UPDATE branches SET is_watched = false"))
    notifier.sweep()
    assert forge.issues == {}, "nor what is on no watched branch"
    with database.session() as session:
        session.execute(text("UPDATE branches SET is_watched = (name = 'main')"))
    notifier.sweep()
    (issue,) = forge.issues.values()
    assert "cube" in issue["title"]


def test_what_was_closed_before_it_was_filed_stays_unfiled(
    client: TestClient,
    lab: Lab,
    forge: Forge,
    link: Callable[..., None],
    confirm: Callable[..., int],
    notifier: ForgeNotifier,
    database: Database,
    settings: Settings,
) -> None:
    link()
    notifier.sweep()
    regression = confirm()
    follow_branches(database, settings, lab.repository)
    forge.refusals = [(r"GET .*/issues$", (429, {"Retry-After": "60"}, {}))]
    notifier.sweep()
    with database.session() as session:
        set_triage(session, regression, "invalid", "ann", "a false alarm")
        session.execute(text("UPDATE forge_links SET paused_until = NULL"))
        session.execute(text("UPDATE forge_messages SET next_at = now()"))
    notifier.sweep()
    assert forge.issues == {}
    assert {row["outcome"] for row in sent(client) if row["state"] == "closed"} == {"sent"}


def test_gitlab(
    lab: Lab,
    link: Callable[..., None],
    confirm: Callable[..., int],
    notifier: ForgeNotifier,
    database: Database,
    settings: Settings,
) -> None:
    with serving(gitlab) as forge:
        link(forge="gitlab", api_url=f"{forge.url}/api/v4", token=TOKEN)
        regression = confirm()
        follow_branches(database, settings, lab.repository)
        notifier.sweep()
        (issue,) = forge.issues.values()
        assert f"/regressions/{regression}" in issue["description"]
        with database.session() as session:
            set_triage(session, regression, "fixed", "ann", "done")
        notifier.sweep()
        (issue,) = forge.issues.values()
        assert issue["state_event"] == "close"
        assert forge.unknown == []
