"""The watched branch is chosen once, at registration; what somebody checks out later changes nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from tests.builders import CPU, commit, make_repository, run_git
from warpwatch import git, git_branches
from warpwatch.db import registry
from warpwatch.db.database import Database
from warpwatch.db.models import RepositoryRecord
from warpwatch.server.history.branches import follow_branches
from warpwatch.settings import Settings

Repository = dict[str, Any]


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A working copy whose branches are main and feature; main is checked out."""
    path = tmp_path / "copy"
    make_repository(path, commits=3)
    run_git(path, "checkout", "--quiet", "-b", "feature")
    commit(path, "On the feature")
    run_git(path, "checkout", "--quiet", "main")
    return path


@pytest.fixture
def devices(database: Database) -> None:
    with database.session() as session:
        registry.ensure_device(session, CPU.device_key, "cpu", CPU.device_name)


def register(client: TestClient, path: Path) -> Repository:
    answer = client.post("/api/v1/repositories", json={"name": "mine", "url": str(path)})
    assert answer.status_code == 201, answer.text
    return repository(client)


def repository(client: TestClient) -> Repository:
    row: Repository = client.get("/api/v1/repositories/mine").json()
    return row


def submit(client: TestClient, commits: str) -> None:
    body = {"repository": "mine", "commits": commits, "kinds": ["check"], "device": CPU.device_key}
    answer = client.post("/api/v1/submissions", json=body)
    assert answer.status_code == 201, answer.text


def watched(client: TestClient) -> list[str]:
    branches = client.get("/api/v1/branches", params={"repository": "mine"}).json()["items"]
    return [row["name"] for row in branches if row["is_watched"]]


@pytest.mark.usefixtures("devices")
def test_a_checkout_in_the_working_copy_changes_nothing(client: TestClient, copy: Path) -> None:
    assert register(client, copy)["branch"] == "main"
    submit(client, "HEAD")
    run_git(copy, "checkout", "--quiet", "feature")
    submit(client, "HEAD")
    assert repository(client)["branch"] == "main"
    assert watched(client) == ["main"]
    assert "The watched branch." not in client.get("/branches/feature").text
    run_git(copy, "checkout", "--quiet", "--detach", "main~1")
    submit(client, "HEAD")
    assert watched(client) == ["main"]


@pytest.mark.usefixtures("devices")
def test_a_repository_without_a_choice_gets_one_with_its_next_submission(
    client: TestClient, database: Database, copy: Path
) -> None:
    """Repositories that were registered before the choice was stored."""
    register(client, copy)
    submit(client, "HEAD")
    with database.session() as session:
        session.query(RepositoryRecord).update({"branch": None})
    run_git(copy, "checkout", "--quiet", "feature")
    submit(client, "HEAD")
    assert repository(client)["branch"] == "main"
    assert watched(client) == ["main"]


def test_nothing_is_chosen_anew_where_somebody_has_chosen(
    client: TestClient, settings: Settings, database: Database, copy: Path
) -> None:
    row = register(client, copy)
    assert client.patch("/api/v1/repositories/mine", json={"branch": "feature"}).json()["branch"] == "feature"
    git.update_mirror(str(copy), settings.home)
    follow_branches(database, settings, row["id"])
    assert repository(client)["branch"] == "feature"


def test_null_chooses_the_default_branch_again(client: TestClient, copy: Path) -> None:
    register(client, copy)
    client.patch("/api/v1/repositories/mine", json={"branch": "feature"})
    assert client.patch("/api/v1/repositories/mine", json={"branch": None}).json()["branch"] == "main"


def default(path: Path, home: Path) -> str | None:
    return git_branches.default_branch(str(path), git.update_mirror(str(path), home))


def test_the_default_branch_of_the_origin_comes_first(copy: Path, tmp_path: Path) -> None:
    """Though HEAD is elsewhere, and main exists."""
    run_git(copy, "checkout", "--quiet", "-b", "develop")
    clone = tmp_path / "clone"
    run_git(tmp_path, "clone", "--quiet", str(copy), str(clone))
    run_git(clone, "branch", "main", "origin/main")
    run_git(clone, "checkout", "--quiet", "-b", "topic")
    assert default(clone, tmp_path / "home") == "develop"


def test_a_configured_name_comes_before_the_usual_ones(copy: Path, tmp_path: Path) -> None:
    run_git(copy, "branch", "stable")
    run_git(copy, "checkout", "--quiet", "feature")
    run_git(copy, "config", "init.defaultBranch", "stable")
    assert default(copy, tmp_path / "home") == "stable"


def test_a_working_copy_without_usual_names_has_the_branch_that_is_checked_out(copy: Path, tmp_path: Path) -> None:
    run_git(copy, "checkout", "--quiet", "feature")
    run_git(copy, "branch", "--move", "main", "work")
    assert default(copy, tmp_path / "home") == "feature"


def test_a_code_host_says_which_branch_is_the_default(copy: Path, tmp_path: Path) -> None:
    bare = tmp_path / "host.git"
    run_git(tmp_path, "clone", "--quiet", "--bare", str(copy), str(bare))
    run_git(bare, "symbolic-ref", "HEAD", "refs/heads/feature")
    assert default(bare, tmp_path / "home") == "feature"


def test_a_repository_without_a_branch_has_no_default(copy: Path, tmp_path: Path) -> None:
    run_git(copy, "checkout", "--quiet", "--detach")
    run_git(copy, "branch", "--quiet", "-D", "main", "feature")
    assert default(copy, tmp_path / "home") is None
