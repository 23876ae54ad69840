"""The page of a commit: its message, its diff, and its changes as a picture."""

from __future__ import annotations

from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from tests.builders import CASES, Lab, commit, make_repository, run_git
from tests.planted import plant
from tests.server.test_causes import CELL
from tests.server.test_code import problem
from warpwatch import git
from warpwatch.contract.words import Status
from warpwatch.db.database import Database
from warpwatch.server.history.diffs import MOST_BODY
from warpwatch.settings import Settings

BODY = "The halo was read twice.\n\n<script>alert(1)</script>"


@pytest.fixture
def fetched(database: Database, settings: Settings, tmp_path: Path) -> Lab:
    """Three benchmarked commits: the first has no parent, the second a message with a body."""
    path = tmp_path / "kernels"
    shas = make_repository(path, commits=1, operators=("square",))
    commit(path, "Read the halo once")
    run_git(path, "commit", "--quiet", "--amend", "--message", f"Read the halo once\n\n{BODY}")
    shas.append(run_git(path, "rev-parse", "HEAD").strip())
    commit(path, "Say much")
    run_git(path, "commit", "--quiet", "--amend", "--message", "Say much\n\n" + "word " * MOST_BODY)
    shas.append(run_git(path, "rev-parse", "HEAD").strip())
    lab = Lab(database, path, shas, tmp_path)
    for number in range(3):
        lab.bench(number, {CELL: 1000.0})
    git.update_mirror(str(path), settings.home)
    return lab


def test_a_commit_has_its_message_and_its_diff(client: TestClient, fetched: Lab) -> None:
    source = client.get(f"/api/v1/commits/{fetched.shas[1]}/source", params={"repository": "kernels"}).json()
    assert source["body"] == BODY
    assert source["diff"]["files"] == [{"path": "kernels/square.py", "added": 1, "deleted": 1}]
    assert [line["kind"] for line in source["diff"]["lines"]] == ["file", "hunk", "removed", "added"]
    part = client.get(f"/commits/{fetched.shas[1]}/source", params={"repository": "kernels"}).text
    assert "The halo was read twice." in part
    assert "<script>" not in part
    assert '<div class="removed"><span class="quiet">removed: </span>NUMBER = 1</div>' in part
    assert (
        f'hx-get="/commits/{fetched.shas[1]}/source?repository=kernels"'
        in client.get(f"/commits/{fetched.shas[1]}").text
    ), "the page is shown before git was asked"


def test_a_commit_without_a_parent_adds_all_its_files(client: TestClient, fetched: Lab) -> None:
    diff = client.get(f"/api/v1/commits/{fetched.shas[0]}/source", params={"repository": "kernels"}).json()["diff"]
    assert diff["files"] == [{"path": "kernels/square.py", "added": 1, "deleted": 0}]
    assert diff["url"] is None


def test_a_long_message_is_cut(client: TestClient, fetched: Lab) -> None:
    source = client.get(f"/api/v1/commits/{fetched.shas[2]}/source", params={"repository": "kernels"}).json()
    assert len(source["body"]) == MOST_BODY


def test_a_commit_that_was_not_fetched_says_so(client: TestClient, lab: Lab) -> None:
    lab.bench(1, {CELL: 1000.0})
    diff = client.get(f"/api/v1/commits/{lab.shas[1]}/source", params={"repository": "kernels"}).json()["diff"]
    assert (diff["files"], diff["lines"]) == ([], [])
    assert diff["message"]
    problem(client.get("/api/v1/commits/ffffffff/source", params={"repository": "kernels"}), 404)
    assert client.get("/commits/ffffffff/source", params={"repository": "kernels"}).status_code == 404


def test_the_changes_of_a_commit_are_a_picture(client: TestClient, lab: Lab) -> None:
    lab.bench(0, {CELL: 1000.0, (CELL[0], CASES[1]): 1000.0})
    lab.bench(1, {CELL: 1300.0, (CELL[0], CASES[1]): 1000.0})
    assert "dots-plot" not in client.get(f"/commits/{lab.shas[1]}").text
    plant(lab, 0, 1, 1.3, [CELL])
    page = client.get(f"/commits/{lab.shas[1]}").text
    assert 'class="dots-plot"' in page
    assert page.count('<g class="worse"') == 2, "one row, drawn for wide and for narrow screens"
    assert "dots-plot" not in client.get(f"/commits/{lab.shas[1]}?show=problems").text


def test_a_change_that_rounds_decided_stands_at_its_commit_without_a_time(client: TestClient, lab: Lab) -> None:
    """The culprit of a bisected change was checked and compared, and never benchmarked: its row said nothing."""
    for index in (0, 2):
        lab.bench(index, {CELL: 1000.0})
    lab.check(1, {CELL: Status.OK})
    plant(lab, 0, 1, 1.3, [CELL])
    page = client.get(f"/commits/{lab.shas[1]}").text
    assert page.count('<g class="worse"') == 2
    row = page[page.index("<tbody>") :]
    assert "slower" in row[: row.index("</tbody>")]
    (cell,) = client.get(f"/api/v1/commits/{lab.shas[1]}/cells?repository=kernels").json()["items"]
    assert (cell["series_id"], cell["statement"]["kind"], cell["statement"]["ratio"]) == (None, "confirmed", 1.3)


def test_a_repaired_result_has_no_picture_of_its_time(client: TestClient, lab: Lab) -> None:
    """Its time was once drawn at −79 %, which a busy host had made, beside a table that said fixed."""
    for index, time in ((0, 1000.0), (2, 200.0)):
        lab.bench(index, {CELL: time})
    plant(lab, 0, 1, None, [CELL], state="reverted", fixed_by_commit_id=lab.commits[lab.shas[2]])
    page = client.get(f"/commits/{lab.shas[2]}").text
    assert "Changed (1)" in page
    assert "dots-plot" not in page
