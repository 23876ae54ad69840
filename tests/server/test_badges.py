"""Badges: what is right, wrong and slower on a line of history, as a small picture."""

from __future__ import annotations

from typing import Any
from xml.etree.ElementTree import fromstring

import pytest
from fastapi.testclient import TestClient

from tests.builders import CASES, Lab, commit, described, run_git
from tests.server.test_code import problem
from warpwatch import git
from warpwatch.contract.words import Status, Verdict
from warpwatch.db import registry, regressions
from warpwatch.db.database import Database
from warpwatch.db.reads.badges import BadgeCounts
from warpwatch.server.history.branches import follow_branches
from warpwatch.server.web.badges import BAD, GOOD, UNKNOWN, WARNING, badge, words
from warpwatch.settings import Settings

BADGE = "/api/v1/badges/kernels.svg"
V1, V2, V3 = (("v1", CASES[0]), ("v2", CASES[0]), ("v3", CASES[0]))


def said(client: TestClient, **query: str) -> str:
    answer = client.get(BADGE, params=query)
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"].startswith("image/svg+xml")
    root = fromstring(answer.text)
    title = root.findtext("{http://www.w3.org/2000/svg}title")
    assert root.get("role") == "img"
    assert root.get("aria-label") == title
    return title or ""


@pytest.mark.parametrize(
    ("standing", "text", "colour"),
    [
        (BadgeCounts(5, 0, 0, 0), "5 pass, none slower", GOOD),
        (BadgeCounts(5, 1, 2, 3), "1 wrong, 2 failing, 3 slower", BAD),
        (BadgeCounts(5, 0, 0, 1), "1 slower", BAD),
        (BadgeCounts(5, 0, 1, 0), "1 failing", WARNING),
        (BadgeCounts(0, 0, 0, 0), "not checked", UNKNOWN),
        (BadgeCounts(5, 0, 0, 0, 1), "5 pass, 1 suspected", WARNING),
        (BadgeCounts(5, 0, 0, 1, 2), "1 slower, 2 suspected", BAD),
        (BadgeCounts(0, 0, 0, 0, 1), "1 suspected", WARNING),
    ],
)
def test_what_is_not_right_comes_first(standing: BadgeCounts, text: str, colour: str) -> None:
    assert words(standing) == (text, colour)


def test_names_are_no_markup() -> None:
    assert (
        fromstring(badge('<a href="x">&', BadgeCounts(1, 0, 0, 0))).get("aria-label")
        == '<a href="x">&: 1 pass, none slower'
    )


def test_a_badge_is_about_the_newest_commit_checked(client: TestClient, lab: Lab) -> None:
    assert said(client) == "kernels: not checked"
    lab.check(0, {V1: Status.WRONG, V2: Status.OK})
    assert said(client) == "kernels: 1 wrong"
    lab.check(4, {V1: Status.OK, V2: Status.OK, V3: Status.UNSUPPORTED})
    assert said(client) == "kernels: 2 pass, none slower"
    lab.check(2, {V1: Status.WRONG})
    assert said(client) == "kernels: 2 pass, none slower", "a commit measured later is not a newer one"
    lab.bench(4, {V1: 100.0, V2: Status.WRONG})
    assert said(client) == "kernels: 1 wrong", "a bench verifies what it times"
    lab.bench(4, {V1: 100.0, V2: 100.0})
    lab.operators = ("square", "cube")
    lab.check(4, {V1: Status.CRASHED}, operator="cube")
    assert said(client) == "kernels: 1 failing"
    assert said(client, operator="square") == "square: 2 pass, none slower"


def test_open_slow_downs_are_counted(client: TestClient, lab: Lab, database: Database) -> None:
    lab.check(1, {V1: Status.OK})
    commits: dict[str, Any] = {"base_commit_id": lab.commits[lab.shas[0]], "head_commit_id": lab.commits[lab.shas[1]]}
    with database.session() as session:
        number = regressions.open_suspicion(
            session, operator_id=1, device_id=lab.device, direction="slower", ratio=1.3, series=[], **commits
        )
        assert number is not None
    assert said(client) == "kernels: 1 pass, 1 suspected"
    with database.session() as session:
        regressions.decide(session, number, Verdict.CONFIRMED, ratio=1.3, low=1.2, high=1.4)
    assert said(client) == "kernels: 1 slower"
    client.post(f"/api/v1/regressions/{number}/triage", json={"state": "accepted", "note": "", "author": "ann"})
    assert said(client) == "kernels: 1 pass, none slower"


def test_another_branch_does_not_count(client: TestClient, lab: Lab, settings: Settings, database: Database) -> None:
    run_git(lab.source, "checkout", "--quiet", "-b", "side", lab.shas[2])
    try:
        sha = commit(lab.source, "On the side")
        run_git(lab.source, "checkout", "--quiet", "main")
        git.update_mirror(str(lab.source), settings.home)
        lab.shas.append(sha)
        with lab.database.session() as session:
            lab.commits |= registry.record_commits(session, lab.repository, described(lab.source, (sha,)))
        follow_branches(database, settings, lab.repository)
        lab.check(1, {V1: Status.OK})
        lab.check(6, {V1: Status.WRONG})
        assert said(client) == "kernels: 1 pass, none slower"
        assert said(client, branch="side") == "kernels: 1 wrong"
        client.patch("/api/v1/repositories/kernels", json={"branch": "side"})
        assert said(client) == "kernels: 1 wrong"
        problem(client.get(BADGE, params={"branch": "nope"}), 404)
    finally:
        lab.shas.pop()
        run_git(lab.source, "branch", "--quiet", "-D", "side")


def test_a_badge_is_kept_for_a_while(client: TestClient, lab: Lab) -> None:
    first = client.get(BADGE)
    assert "max-age" in first.headers["cache-control"]
    again = client.get(BADGE, headers={"If-None-Match": first.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    lab.check(0, {V1: Status.OK})
    assert client.get(BADGE, headers={"If-None-Match": first.headers["etag"]}).status_code == 200


def test_what_there_is_no_badge_of(client: TestClient, lab: Lab) -> None:
    problem(client.get("/api/v1/badges/nobody.svg"), 404)
    problem(client.get(BADGE, params={"operator": "nothing"}), 404)
    problem(client.get(BADGE, params={"branch": "main"}), 404)
