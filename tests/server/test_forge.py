"""Pull requests on code hosts: one check run and one comment each; and the links to them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import text
from typer.testing import CliRunner

from tests.builders import CASES, Lab, catalogue, commit, make_repository, run_git
from tests.server.forges import (
    APP_ID,
    PROJECT,
    TOKEN,
    Forge,
    github,
    gitlab,
    serving,
    write_key,
)
from tests.server.test_code import problem
from tests.server.test_hooks import SECRET
from tests.server.test_hooks import github as send
from tests.server.test_hooks import gitlab as send_gitlab
from warpwatch.cli.app import app as command
from warpwatch.contract.outcome import Finding
from warpwatch.contract.words import ForgeState, Status
from warpwatch.db import registry
from warpwatch.db.database import Database
from warpwatch.db.unjudged import mark_judged
from warpwatch.server.reports.markdown import MARKER
from warpwatch.server.threads import forge_notifier as threads
from warpwatch.server.threads.forge_notifier import ForgeNotifier
from warpwatch.settings import Settings

API = "/api/v1"


LINK = f"{API}/repositories/kernels/forge"


MEMBER, STRANGER = ("ann", 1), ("mallory", 66)


V1 = ("v1", CASES[0])


EARLY, LATE, LATER = (f"2026-01-31T12:00:0{second}Z" for second in (0, 5, 9))


@pytest.fixture
def forge() -> Iterator[Forge]:
    with serving(github) as forge:
        yield forge
        assert forge.unknown == []


@pytest.fixture
def settings(tmp_path: Path, database_url: str, forge: Forge) -> Settings:
    key = write_key(tmp_path)
    return Settings(
        tmp_path / "home", database_url=database_url, github_app_id=APP_ID, github_app_key=key, github_api=forge.url
    )


@pytest.fixture
def lab(database: Database, tmp_path: Path) -> Lab:
    """main: 0 to 2. feature: 3, which left main at 1. fork: 4, on top of it."""
    source = tmp_path / "source"
    shas = make_repository(source, 3, ("square", "cube"))
    run_git(source, "checkout", "--quiet", "-b", "feature", shas[1])
    shas.append(commit(source, "Square faster"))
    shas.append(commit(source, "Square wrong"))
    run_git(source, "update-ref", "refs/pull/7/head", shas[4])
    run_git(source, "reset", "--quiet", "--hard", shas[3])
    run_git(source, "checkout", "--quiet", "main")
    lab = Lab(database, source, shas, tmp_path, operators=("square", "cube"))
    with database.session() as session:
        registry.record_catalogue(session, lab.commits[shas[0]], catalogue(("square", "cube")))
        registry.set_repository(session, lab.repository, {"webhook_secret": SECRET})
    return lab


@pytest.fixture
def notifier(settings: Settings, database: Database, monkeypatch: pytest.MonkeyPatch) -> Iterator[ForgeNotifier]:
    """A round of it ends when nothing is due."""
    monkeypatch.setattr(threads, "POLL_SECONDS", 60.0)
    notifier = ForgeNotifier(settings, database, first_pause=0)
    yield notifier
    notifier._pool.shutdown()


@pytest.fixture
def linked(client: TestClient, lab: Lab, notifier: ForgeNotifier) -> dict[str, Any]:
    answer = client.put(LINK, json={"forge": "github", "project": PROJECT})
    assert answer.status_code == 200, answer.text
    notifier.sweep()
    row: dict[str, Any] = client.get(LINK).json()
    assert row["state"] == ForgeState.LINKED, row
    return row


def pull(lab: Lab, number: int, head: int, at: str = EARLY, *, is_fork: bool = False) -> dict[str, Any]:
    return {
        "action": "synchronize",
        "number": number,
        "pull_request": {
            "updated_at": at,
            "head": {"sha": lab.shas[head], "repo": {"full_name": "mallory/kernels" if is_fork else PROJECT}},
            "base": {"sha": lab.shas[2], "ref": "main", "repo": {"full_name": PROJECT}},
        },
    }


def open_pull(client: TestClient, forge: Forge, lab: Lab, number: int, head: int, **more: Any) -> Any:
    """The event of a pull request, which the forge then has too."""
    message = pull(lab, number, head, **more)
    forge.pulls[number] = message["pull_request"]
    return send(client, "pull_request", message)


def say(
    client: TestClient, words: str, user: tuple[str, int] = MEMBER, *, number: int = 7, comment: int = 1, at: str = LATE
) -> Any:
    """The event of a comment on a pull request."""
    login, user_id = user
    message = {
        "action": "created",
        "issue": {"number": number, "pull_request": {}},
        "comment": {
            "id": comment,
            "body": words,
            "created_at": at,
            "author_association": "OWNER",
            "user": {"login": login, "id": user_id, "type": "User"},
        },
    }
    return send(client, "issue_comment", message)


def end(client: TestClient, lab: Lab, submission: int, status: Status = Status.OK) -> None:
    for job in client.get(f"{API}/jobs", params={"submission": submission, "limit": 200}).json()["items"]:
        if job["state"] == "queued":
            outcome = lab.outcome([Finding(*V1, status, "")])
            lab.finish(job["id"], replace(outcome, catalogue=catalogue(("square", "cube"))))
        with lab.database.session() as session:
            mark_judged(session, job["id"])


def sent(client: TestClient) -> list[dict[str, Any]]:
    """What was sent, oldest first."""
    rows: list[dict[str, Any]] = client.get(f"{LINK}/messages", params={"limit": 200}).json()["items"]
    return rows[::-1]


def submissions(client: TestClient) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = client.get(f"{API}/submissions").json()["items"]
    return rows[::-1]


@pytest.mark.usefixtures("linked")
@pytest.mark.parametrize(
    ("status", "conclusion"),
    [(Status.OK, "success"), (Status.WRONG, "failure"), (Status.CRASHED, "action_required")],
)
def test_a_pull_request_gets_one_check_run_and_one_comment(
    client: TestClient, lab: Lab, forge: Forge, notifier: ForgeNotifier, status: Status, conclusion: str
) -> None:
    submission = open_pull(client, forge, lab, 3, 3).json()["submission_id"]
    notifier.sweep()
    (run,) = forge.check_runs.values()
    assert (run["name"], run["head_sha"], run["status"]) == ("warpwatch", lab.shas[3], "in_progress")
    assert run["output"]["annotations"] == []
    end(client, lab, submission, status)
    notifier.sweep()
    notifier.sweep()
    (run,) = forge.check_runs.values()
    assert (run["status"], run["conclusion"]) == ("completed", conclusion)
    assert run["details_url"].endswith(f"/runs/{submission}")
    report = client.get(f"{API}/submissions/{submission}/report").json()
    assert len(run["output"]["annotations"]) == len(report["rows"])
    assert run["output"]["title"] == report["summary"]
    (comment,) = forge.bodies_of(3)
    shown = client.get(f"{API}/submissions/{submission}/report.md").text
    assert comment.startswith(shown), "the page, the API and the comment have one source"
    page = client.get(f"/runs/{submission}").text
    assert "Check run" in page


@pytest.mark.usefixtures("linked")
def test_a_failure_is_told_before_the_end_and_its_annotations_once(
    client: TestClient, lab: Lab, forge: Forge, notifier: ForgeNotifier
) -> None:
    submission = open_pull(client, forge, lab, 3, 3).json()["submission_id"]
    jobs = client.get(f"{API}/jobs", params={"submission": submission, "state": "queued"}).json()["items"]
    job = next(job for job in jobs if job["kind"] == "check")
    outcome = lab.outcome([Finding(*V1, Status.WRONG, "")])
    lab.finish(job["id"], replace(outcome, catalogue=catalogue(("square", "cube"))))
    with lab.database.session() as session:
        mark_judged(session, job["id"])
    notifier.sweep()
    (run,) = forge.check_runs.values()
    assert (run["status"], run["conclusion"], run["output"]["annotations"]) == ("completed", "failure", [])
    assert client.get(f"{API}/submissions/{submission}/report").json()["conclusion"] == "pending"
    end(client, lab, submission)
    notifier.sweep()
    (run,) = forge.check_runs.values()
    rows = client.get(f"{API}/submissions/{submission}/report").json()["rows"]
    assert len(run["output"]["annotations"]) == len(rows) > 0


@pytest.mark.usefixtures("linked")
def test_a_new_head_edits_the_comment(
    client: TestClient, lab: Lab, forge: Forge, notifier: ForgeNotifier, database: Database
) -> None:
    forge.comments[5] = {"id": 5, "number": 3, "user": {"login": "mallory", "id": 66, "type": "User"}, "body": MARKER}
    open_pull(client, forge, lab, 3, 3)
    notifier.sweep()
    (first,) = forge.bodies_of(3)
    assert open_pull(client, forge, lab, 3, 4, at=LATE).status_code == 201
    # An event that comes late changes nothing.
    open_pull(client, forge, lab, 3, 3, at=EARLY)
    notifier.sweep()
    (second,) = forge.bodies_of(3)
    assert lab.shas[3][:8] in first
    assert lab.shas[4][:8] in second
    assert forge.comments[5]["body"] == MARKER, "the comment of somebody else stays as it is"
    with database.session() as session:
        session.execute(text("UPDATE forge_messages SET remote_id = NULL"))
    open_pull(client, forge, lab, 3, 4, at=LATER)
    client.post(f"{LINK}/check")
    say(client, "/warpwatch help", number=3)
    notifier.sweep()
    assert len(forge.bodies_of(3)) == 1, "the comment is found again by its marker"


@pytest.mark.usefixtures("linked")
def test_a_lost_answer_doubles_nothing(client: TestClient, lab: Lab, forge: Forge, notifier: ForgeNotifier) -> None:
    forge.lost = [r"POST .*/check-runs$", r"POST .*/comments$"]
    submission = open_pull(client, forge, lab, 3, 3).json()["submission_id"]
    notifier.sweep()
    end(client, lab, submission)
    notifier.sweep()
    assert (len(forge.check_runs), len(forge.bodies_of(3))) == (1, 1)
    assert [row["outcome"] for row in sent(client)] == ["sent"] * len(sent(client))


@pytest.mark.usefixtures("linked")
def test_a_deleted_comment_is_made_again(client: TestClient, lab: Lab, forge: Forge, notifier: ForgeNotifier) -> None:
    submission = open_pull(client, forge, lab, 3, 3).json()["submission_id"]
    notifier.sweep()
    forge.comments.clear()
    end(client, lab, submission)
    notifier.sweep()
    assert len(forge.bodies_of(3)) == 1


@pytest.mark.usefixtures("linked")
def test_a_retry_gets_a_check_run_of_its_own(
    client: TestClient, lab: Lab, forge: Forge, notifier: ForgeNotifier
) -> None:
    """Its annotations would be added to those of the first."""
    submission = open_pull(client, forge, lab, 3, 3).json()["submission_id"]
    jobs = client.get(f"{API}/jobs", params={"submission": submission}).json()["items"]
    for job in jobs:
        client.post(f"{API}/jobs/{job['id']}/cancel")
        with lab.database.session() as session:
            mark_judged(session, job["id"])
    notifier.sweep()
    client.post(f"{API}/submissions/{submission}/retry")
    notifier.sweep()
    end(client, lab, submission)
    notifier.sweep()
    assert [run["conclusion"] for run in forge.check_runs.values()] == ["action_required", "success"]


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"forge": "sourcehut"}, "forge"),
        ({"project": "kernels"}, "project"),
        ({"project": "acme/.."}, "project"),
        ({"project": "acme/kernels/more"}, "project"),
        ({"project": "acme/kern els"}, "project"),
        ({"project": "acme/kernels?x=y"}, "project"),
        ({"api_url": "https://evil.example"}, "api_url"),
        ({"token": "abc"}, "token"),
        ({"forge": "gitlab", "token": "abc"}, "api_url"),
        ({"forge": "gitlab", "token": "abc", "api_url": "https://gitlab.example/"}, "api_url"),
        ({"forge": "gitlab", "token": "abc", "api_url": "https://a:b@gitlab.example/api/v4"}, "api_url"),
        ({"forge": "gitlab", "token": "abc", "api_url": "http://[::1/api/v4"}, "api_url"),
        ({"forge": "gitlab", "token": "abc", "api_url": "http://169.254.169.254/api/v4"}, "api_url"),
        ({"forge": "gitlab", "token": "two words", "api_url": "https://gitlab.example/api/v4"}, "token"),
        ({"forge": "gitlab", "api_url": "https://gitlab.example/api/v4"}, "token"),
    ],
)
def test_links_that_cannot_be(client: TestClient, lab: Lab, body: dict[str, str], field: str) -> None:
    usual = {"forge": "github", "project": PROJECT}
    answer = problem(client.put(LINK, json=usual | body), 422)
    assert [error["field"] for error in answer["errors"]] == [field]
    page = client.post("/repositories/kernels/forge", data=usual | body)
    assert page.status_code == 422
    assert f'id="{field}-error"' in page.text


def test_a_server_without_an_app_says_so(client: TestClient, lab: Lab, app: Any, settings: Settings) -> None:
    app.state.settings = replace(settings, github_app_id=None)
    answer = problem(client.put(LINK, json={"forge": "github", "project": PROJECT}), 422)
    assert answer["errors"][0]["field"] == "forge"


def test_a_key_that_cannot_be_read(client: TestClient, lab: Lab, settings: Settings, database: Database) -> None:
    client.put(LINK, json={"forge": "github", "project": PROJECT})
    assert settings.github_app_key is not None
    settings.github_app_key.write_text("no key")
    notifier = ForgeNotifier(settings, database)
    notifier.sweep()
    notifier._pool.shutdown()
    assert client.get(LINK).json()["state"] == ForgeState.REFUSED


@pytest.fixture
def lab_of_gitlab(client: TestClient, lab: Lab) -> Iterator[Forge]:
    with serving(gitlab) as forge:
        body = {"forge": "gitlab", "project": PROJECT, "api_url": f"{forge.url}/api/v4", "token": TOKEN}
        answer = client.put(LINK, json=body)
        assert answer.status_code == 200, answer.text
        assert TOKEN not in answer.text
        yield forge
        assert forge.unknown == []


def merge_request(lab: Lab, head: int, at: str, *, is_fork: bool = False) -> dict[str, Any]:
    change = {
        "iid": 7,
        "action": "open",
        "updated_at": at,
        "source_project_id": 2 if is_fork else 1,
        "target_project_id": 1,
        "target_branch": "main",
        "last_commit": {"id": lab.shas[head]},
    }
    return {"object_kind": "merge_request", "object_attributes": change}


def note(words: str, user: tuple[str, int], comment: int) -> dict[str, Any]:
    written = {"id": comment, "note": words, "noteable_type": "MergeRequest", "created_at": "2026-01-31 12:00:05 UTC"}
    return {
        "object_kind": "note",
        "object_attributes": written,
        "merge_request": {"iid": 7},
        "user": {"username": user[0], "id": user[1]},
    }


def test_gitlab(client: TestClient, lab: Lab, notifier: ForgeNotifier, lab_of_gitlab: Forge) -> None:
    forge = lab_of_gitlab
    message = merge_request(lab, 4, "2026-01-31 12:00:00 UTC", is_fork=True)
    forge.pulls[7] = message["object_attributes"] | {"sha": lab.shas[4]}
    send_gitlab(client, message)
    send_gitlab(client, note("/warpwatch allow", STRANGER, 1))
    notifier.sweep()
    assert submissions(client) == []
    send_gitlab(client, note("/warpwatch allow", MEMBER, 2))
    notifier.sweep()
    (row,) = submissions(client)
    end(client, lab, row["id"], Status.WRONG)
    notifier.sweep()
    assert forge.reactions == [(1, "thumbsdown"), (2, "thumbsup")]
    assert [(sha, body["state"]) for sha, body in forge.statuses] == [
        (lab.shas[4], "pending"),
        (lab.shas[4], "failed"),
    ]
    (comment,) = forge.bodies_of(7)
    assert comment.startswith(client.get(f"{API}/submissions/{row['id']}/report.md").text)
    assert client.get(LINK).json()["state"] == ForgeState.LINKED


def test_a_token_goes_nowhere_else(client: TestClient, lab: Lab, lab_of_gitlab: Forge) -> None:
    """Who may change settings does not learn it by naming an address of theirs."""
    with serving(gitlab) as elsewhere:
        body = {"forge": "gitlab", "project": PROJECT, "api_url": f"{elsewhere.url}/api/v4"}
        answer = problem(client.put(LINK, json=body), 422)
        assert [error["field"] for error in answer["errors"]] == ["token"]
        assert elsewhere.requests == []
    kept = {"forge": "gitlab", "project": PROJECT, "api_url": f"{lab_of_gitlab.url}/api/v4", "files_issues": True}
    assert client.put(LINK, json=kept).json()["has_token"]


def test_a_refused_token(client: TestClient, lab: Lab, notifier: ForgeNotifier, lab_of_gitlab: Forge) -> None:
    body = {"forge": "gitlab", "project": PROJECT, "api_url": f"{lab_of_gitlab.url}/api/v4", "token": "another"}
    client.put(LINK, json=body)
    notifier.sweep()
    assert client.get(LINK).json()["state"] == ForgeState.REFUSED
    body["project"] = "acme/other"
    client.put(LINK, json=body | {"token": TOKEN})
    notifier.sweep()
    assert client.get(LINK).json()["state"] == ForgeState.MISSING
    assert client.delete(LINK).status_code == 204
    problem(client.delete(LINK), 404)
    problem(client.get(LINK), 404)


@pytest.mark.usefixtures("lab")
def test_the_command_line(served: Settings, forge: Forge, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WARPWATCH_URL", served.server_url)
    runner = CliRunner()
    done = runner.invoke(command, ["forge", "set", "github", PROJECT, "--repository", "kernels", "--issues"])
    assert done.exit_code == 0, done.output
    assert "issues\tfiled" in done.output
    for words in (["check"], ["show"], ["remove"]):
        done = runner.invoke(command, ["forge", *words, "--repository", "kernels"])
        assert done.exit_code == 0, done.output
    assert runner.invoke(command, ["forge", "show", "--repository", "kernels"]).exit_code == 2
