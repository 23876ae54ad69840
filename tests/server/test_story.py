"""The story of twelve commits and two side branches: at every stage every statement is what was planted.

main        1 ─ 2 ─ 3 ─ 4 ─ 5 ─ 6 ─ 7 ─ 8 ─ 9 ─ 10 ─ 11 ─ 12
wip             └─ w1 (wrong and slower, never merged)
speed                       └─ s1 ─ s2 (slower, merged as a merge commit after 12)

Commit 4 makes v3 slower, commit 9 reverts it. Commit 6 makes v2 wrong, commit 7 repairs it. Commit 8 touches a comment.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from tests.builders import Lab, run_git
from tests.server.simulated import V1, V2, Machine
from tests.server.story import Planted, Story
from tests.server.test_badges import said
from warpwatch.contract.words import Status
from warpwatch.db.database import Database
from warpwatch.server.judge import Judge
from warpwatch.settings import Settings


@pytest.fixture
def story(client: TestClient, settings: Settings, database: Database, tmp_path: Path) -> Story:
    source = tmp_path / "story" / "kernels"
    (source / "kernels").mkdir(parents=True)
    run_git(source, "init", "--quiet", "--initial-branch", "main")
    lab = Lab(database, source, [], tmp_path)
    truth = Planted()
    told = Story(source, Machine(client, lab, Judge(settings, database), truth), settings, database)
    told.commit("1", "STATE = 'first'\n")
    told.commit("2", "STATE = 'second'\n")
    run_git(source, "tag", "v1.0")
    run_git(source, "checkout", "--quiet", "-b", "wip")
    told.commit("w1", "STATE = 'work in progress'\n")
    run_git(source, "checkout", "--quiet", "main")
    for name, text in (("3", None), ("4", "STATE = 'slow'\n"), ("5", None)):
        told.commit(name, text)
    truth.slow = {told.names[name] for name in ("w1", "4", "5")}
    truth.wrong = {V1: {told.names["w1"]}}
    return told


OPEN_PHASES = ("bisecting", "confirmed", "culprit")


@dataclass
class Expected:
    """What is true of main. open: regression (name of its head, direction) → (phase, culprit). newest: the newest
    measured commit. wrong: how many checks fail there."""

    newest: str
    open: dict[tuple[str, str], tuple[str, str | None]] = field(default_factory=dict)
    ended: dict[tuple[str, str], tuple[str, str]] = field(default_factory=dict)
    """Of changes that are over: how, and by which commit."""
    wrong: int = 0


def check_everything(story: Story, expected: Expected) -> None:
    """Compares every place that says something of main with what was planted, but for reports, which are many."""
    open_rows = {key: story.row(*key) for key in expected.open}
    ended_rows = {key: story.row(*key) for key in expected.ended}
    for key, row in (open_rows | ended_rows).items():
        phase, commit = (expected.open | expected.ended)[key]
        assert row["phase"] == phase, key
        assert row["branch"] == "main", key
        if key in expected.open:
            assert row["culprit_sha"] == (story.sha(commit) if commit else None), key
        else:
            assert row["fixed_by_sha"] == story.sha(str(commit)), key
    open_ids = {row["id"] for row in open_rows.values() if row["phase"] != "suspected"}
    _check_lists(story, open_ids)
    _check_newest(story, expected, open_rows)
    _check_badge(story, expected, open_rows)
    for row in (open_rows | ended_rows).values():
        _check_own_pages(story, row)


def _check_lists(story: Story, open_ids: set[int]) -> None:
    """The lists of open regressions: overview, page of regressions, API, events."""
    listed = story.json("/regressions", repository="kernels", state="open")["items"]
    assert {row["id"] for row in listed if row["direction"] != "faster"} == open_ids
    events = story.json("/events", repository="kernels", state="open")["items"]
    assert {row["id"] for event in events for row in event["regressions"] if row["direction"] != "faster"} == open_ids
    by_id = {row["id"]: row for row in listed}
    overview = [item for item in story.page("/overview") if item["tag"] == "li" and item.get("phase") in OPEN_PHASES]
    page = [item for item in story.page("/regressions") if item["tag"] == "tr" and "regression" in item]
    for statements in (overview, [item for item in page if item["direction"] != "faster"]):
        assert {int(item["regression"]) for item in statements} == open_ids
        for item in statements:
            row = by_id[int(item["regression"])]
            assert (item["phase"], item["culprit"]) == (row["phase"], row["culprit_sha"] or "")


def _check_newest(story: Story, expected: Expected, open_rows: dict[Any, dict[str, Any]]) -> None:
    """The newest state of main, and its changes, in overview, operator and history."""
    cells = story.json("/overview", repository="kernels", device="test-cpu")["items"]
    # A variant that is wrong is not timed, so its last time is older, and muted on the page.
    assert {cell["commit_sha"] for cell in cells if cell["bench_status"] == "ok"} == {story.sha(expected.newest)}
    assert sum(cell["check_status"] == "wrong" for cell in cells) == expected.wrong
    parts = [story.page(f"/overview/cases/{name}") for name in {cell["operator"] for cell in cells}]
    on_page = {item["cell"]: item for part in parts for item in part if "cell" in item}
    main = story.main()
    for cell in cells:
        statement = on_page[f"{cell['operator']} {cell['variant']} {cell['case']}"]
        assert (statement["commit"], statement["check"]) == (cell["commit_sha"], cell["check_status"])
        history = story.json(f"/history/{cell['series_id']}", branches="true")
        assert {point["commit_sha"] for point in history["points"]} <= main
        assert history["points"][-1]["commit_sha"] == cell["commit_sha"]
        side = {point["commit_sha"]: point["branch"] for point in history["side"]}
        assert not side.keys() & main
        assert {side[story.sha(name)] for name in ("w1", "s2") if story.sha_or_none(name) in side} <= {"wip", "speed"}
        if cell["previous_ns"]:
            assert cell["previous_ns"] == pytest.approx(history["points"][-2]["median_ns"])
        bands = {item["regression_id"]: item for item in history["changes"]}
        if cell["regression_id"] is not None:
            assert bands[cell["regression_id"]]["phase"] == cell["regression_phase"]
        drawn = {
            int(item["regression"]): item["phase"]
            for item in story.page(f"/history/{cell['series_id']}")
            if item["tag"] == "li" and "regression" in item
        }
        assert drawn == {number: item["phase"] for number, item in bands.items()}
    shown = {cell["regression_id"] for cell in cells} - {None}
    assert shown == {row["id"] for row in open_rows.values() if row["phase"] != "suspected"}


def _check_badge(story: Story, expected: Expected, open_rows: dict[Any, dict[str, Any]]) -> None:
    counts = {"wrong": expected.wrong, "slower": 0}
    counts["slower"] = sum(row["direction"] == "slower" and row["phase"] != "suspected" for row in open_rows.values())
    text = said(story.client)
    for word, count in counts.items():
        match = re.search(rf"(\d+) {word}", text)
        assert (int(match[1]) if match else 0) == count, text


def _check_reports(story: Story) -> None:
    """Every report on a submission says of changes what they are by now, and wrong only of what was planted so."""
    lab, truth = story.machine.lab, story.machine.truth
    for submission in story.json("/submissions", repository="kernels", limit=200)["items"]:
        report = story.json(f"/submissions/{submission['id']}/report")
        for row in report["rows"]:
            of_change = re.search(r"/regressions/(\d+)$", row["url"])
            if of_change:
                regression = story.json(f"/regressions/{of_change[1]}")["regression"]
                is_suspected = regression["verdict"] == "suspected"
                assert row["kind"] == ("suspected" if is_suspected else regression["direction"])
                assert (row["base_sha"], row["head_sha"]) == (regression["base_sha"], regression["head_sha"])
                assert bool(row["message"]) == (regression["culprit_sha"] is not None), "nobody is named before"
            if row["kind"] == "wrong":
                cell = (row["variant"], row["case"])
                assert truth.status(cell, lab.shas.index(row["head_sha"])) == Status.WRONG


def _check_own_pages(story: Story, row: dict[str, Any]) -> None:
    """The regression's page, the pages of its commits, and the jobs that decided it."""
    (head,) = [item for item in story.page(f"/regressions/{row['id']}") if item["tag"] == "h1"]
    assert (head["phase"], head["culprit"], head["fix"]) == (
        row["phase"],
        row["culprit_sha"] or "",
        row["fixed_by_sha"] or "",
    )
    if row["culprit_sha"]:
        assert _role(story, row["culprit_sha"], row) == "cause"
    else:
        assert _role(story, row["head_sha"], row) in ("candidate", "cause")
        assert row["phase"] in ("suspected", "bisecting", "confirmed", "fixed", "reverted")
    if row["fixed_by_sha"]:
        assert _role(story, row["fixed_by_sha"], row) == "fix"
    bench = story.json(f"/regressions/{row['id']}/cause")["bench"]
    sides = [side["commit_sha"] for side in (bench["base"], bench["head"]) if side] if bench else []
    assert set(sides) <= story.main(), "the circumstances are those of the branch"
    detail = story.json(f"/regressions/{row['id']}")
    for trial in detail["trials"]:
        if trial["answer"] == "pending":
            continue
        (decided,) = [item for item in story.page(f"/jobs/{trial['job_id']}") if "answer" in item]
        assert (int(decided["regression"]), decided["answer"]) == (row["id"], trial["answer"])
        assert story.json(f"/jobs/{trial['job_id']}")["decision"]["regression"]["ratio"] == trial["ratio"]


def _role(story: Story, sha: str, row: dict[str, Any]) -> str:
    (statement,) = [
        item for item in story.page(f"/commits/{sha}") if "role" in item and item.get("regression") == str(row["id"])
    ]
    (in_json,) = [
        item
        for item in story.json(f"/commits/{sha}", repository="kernels")["changes"]
        if item["regression"]["id"] == row["id"]
    ]
    assert statement["role"] == in_json["role"]
    assert statement["phase"] == in_json["regression"]["phase"] == row["phase"]
    return statement["role"]


def test_every_statement_is_what_was_planted(story: Story) -> None:
    story.measure("1", "2", "w1")
    story.work()
    # A commit of an unmerged branch is wrong and slow, and nothing of that is said of main.
    check_everything(story, Expected("2"))
    wip = story.row("w1", "slower")
    assert (wip["branch"], wip["phase"], wip["culprit_sha"]) == ("wip", "culprit", story.sha("w1"))
    assert story.row("w1", "broken")["branch"] == "wip"
    _check_branch(story, "wip", {"slower", "broken"})

    story.measure("5")
    # Suspected in three commits: open nowhere, and nobody is named.
    check_everything(story, Expected("5", {("5", "slower"): ("suspected", None)}))
    _check_reports(story)
    story.step()
    # Confirmed and bisecting: commit 5 is the newest of the range and is not called the culprit.
    check_everything(story, Expected("5", {("5", "slower"): ("bisecting", None)}))
    story.work()
    settled: dict[tuple[str, str], tuple[str, str | None]] = {("4", "slower"): ("culprit", "4")}
    check_everything(story, Expected("5", settled))
    _check_reports(story)

    _break_and_repair(story, settled)
    _revert(story)
    _merge(story)


def test_a_commits_changes_are_over_the_line_that_it_is_on(story: Story) -> None:
    """Commit 4 is slower than 2, which is before it on main. w1, on another branch, is as slow as 4."""
    story.measure("2", "w1", "4")
    for name in ("w1", "4"):
        cells = story.json(f"/commits/{story.sha(name)}/cells", repository="kernels")["items"]
        assert max(cell["change"] for cell in cells if cell["change"] is not None) > 1.1, name


def _break_and_repair(story: Story, settled: dict[tuple[str, str], tuple[str, str | None]]) -> None:
    story.commit("6", "STATE = 'slow and wrong'\n")
    truth = story.machine.truth
    assert isinstance(truth, Planted)
    truth.slow |= {story.names["6"]}
    truth.wrong[V2] = {story.names["6"]}
    story.measure("6")
    broken = ("6", "broken")
    story.work()
    check_everything(story, Expected("6", settled | {broken: ("culprit", "6")}, wrong=1))
    run_git(story.source, "checkout", "--quiet", "-b", "speed")
    story.commit("s1", "STATE = 'slow, and right again on a branch'\n")
    story.commit("s2", "STATE = 'another try'\n")
    run_git(story.source, "checkout", "--quiet", "main")
    truth.slow |= {story.names["s1"], story.names["s2"]}
    story.measure("s2")
    story.work()
    # What the branch repairs is still broken on main.
    check_everything(story, Expected("6", settled | {broken: ("culprit", "6")}, wrong=1))
    story.commit("7", "STATE = 'slow again'\n")
    story.commit("8", "STATE = 'slow again, and a comment'\n")
    truth.slow |= {story.names["7"], story.names["8"]}
    story.measure("7", "8")
    story.work()
    check_everything(story, Expected("8", settled, {broken: ("fixed", "7")}))


def _revert(story: Story) -> None:
    ended = {("6", "broken"): ("fixed", "7")}
    story.commit("9", "STATE = 'second'\n")
    story.measure("9")
    story.work()
    ended |= {("4", "slower"): ("reverted", "9")}
    for name in ("10", "11", "12"):
        story.commit(name)
    story.measure("12")
    story.work()
    check_everything(story, Expected("12", {}, ended))


def _merge(story: Story) -> None:
    """A branch that is slower is merged: its change is measured on main, and becomes main's only then."""
    ended = {("6", "broken"): ("fixed", "7"), ("4", "slower"): ("reverted", "9")}
    truth = story.machine.truth
    assert isinstance(truth, Planted)
    run_git(story.source, "checkout", "--quiet", "-b", "late")
    story.commit("l1", "STATE = 'late and slow'\n")
    truth.slow |= {story.names["l1"]}
    story.measure("l1")
    story.work()
    late = story.row("l1", "slower")
    assert (late["branch"], late["phase"]) == ("late", "culprit")
    run_git(story.source, "checkout", "--quiet", "main")
    (story.source / "NEWS.md").write_text("news\n")
    run_git(story.source, "add", "--all")
    run_git(story.source, "commit", "--quiet", "--message", "Commit 13")
    story.learn("13")
    run_git(story.source, "merge", "--quiet", "--no-ff", "--no-edit", "late")
    story.learn("merge")
    run_git(story.source, "branch", "--quiet", "-D", "late")
    truth.slow |= {story.names["merge"]}
    story.fetch()
    story.work()
    merged = story.row("merge", "slower")
    assert (merged["branch"], merged["phase"], merged["culprit_sha"]) == ("main", "culprit", story.sha("merge"))
    assert story.row("l1", "slower")["merged_as_id"] == merged["id"]
    story.measure("merge")
    story.work()
    check_everything(story, Expected("merge", {("merge", "slower"): ("culprit", "merge")}, ended))
    _check_reports(story)


def _check_branch(story: Story, name: str, directions: set[str]) -> None:
    """The branch's own pages speak of the branch."""
    report = story.json(f"/branches/{name}", repository="kernels")
    assert {row["direction"] for row in report["changes"]} == directions
    assert {row["branch"] for row in report["changes"]} == {name}
    assert report["base"]["sha"] == story.sha("2")
    listed = story.json("/regressions", repository="kernels", state="open", branch=name)["items"]
    assert {row["id"] for row in listed} == {row["id"] for row in report["changes"]}
    cells = story.json("/overview", repository="kernels", device="test-cpu", branch=name)["items"]
    assert {cell["commit_sha"] for cell in cells if cell["commit_sha"]} <= {story.sha("w1"), story.sha("2")}
    assert [cell["variant"] for cell in cells if cell["check_status"] == "wrong"] == ["v1"]
    assert "1 wrong" in said(story.client, branch=name)
    assert {int(item["regression"]) for item in story.page(f"/branches/{name}") if "regression" in item} == {
        row["id"] for row in report["changes"]
    }


def test_a_rebased_branch_leaves_no_ghosts(story: Story) -> None:
    story.measure("1", "2", "w1")
    story.work()
    ghost = story.row("w1", "slower")
    run_git(story.source, "checkout", "--quiet", "wip")
    run_git(story.source, "reset", "--quiet", "--hard", story.sha("3"))
    story.commit("w2", "STATE = 'rebased'\n")
    run_git(story.source, "checkout", "--quiet", "main")
    story.measure("w2")
    story.work()
    listed = story.json("/commits", repository="kernels", limit=200)["items"]
    assert story.sha("w1") not in {row["sha"] for row in listed}
    (new,) = [row for row in listed if row["sha"] == story.sha("w2")]
    assert new["branches"] == ["wip"]
    assert story.json(f"/regressions/{ghost['id']}")["regression"]["branch"] is None
    for branch in (None, "wip"):
        shown = story.json("/regressions", repository="kernels", state="open", **({"branch": branch} if branch else {}))
        assert shown["items"] == []
    series = story.json("/series", repository="kernels", variant="v3", metric="hot")["items"][0]["id"]
    history = story.json(f"/history/{series}", branches="true")
    assert {point["commit_sha"] for point in history["side"]} == {story.sha("w2")}


def test_commits_show_lanes_and_tags(story: Story) -> None:
    story.measure("1", "2", "w1", "5")
    rows = {row["sha"]: row for row in story.json("/commits", repository="kernels")["items"]}
    assert rows[story.sha("2")]["tags"] == ["v1.0"]
    assert rows[story.sha("w1")]["branches"] == ["wip"]
    assert rows[story.sha("5")]["branches"] == ["main"]
    shown = {item["commit"]: item["branches"] for item in story.page("/commits") if "branches" in item}
    assert shown == {sha: " ".join(row["branches"]) for sha, row in rows.items()}
    only_main = {item["commit"] for item in story.page("/commits", branch="main") if "branches" in item}
    assert only_main == set(rows) - {story.sha("w1")}


def test_the_watched_branch_can_be_chosen_and_must_exist(story: Story) -> None:
    story.measure("1", "2", "w1")
    address = "/api/v1/repositories/kernels"
    refused = story.client.patch(address, json={"branch": "nope"})
    assert refused.status_code == 422
    assert [error["field"] for error in refused.json()["errors"]] == ["branch"]
    assert "wrong" not in said(story.client)
    assert story.client.patch(address, json={"branch": "wip"}).status_code == 200
    assert "1 wrong" in said(story.client)
    cells = story.json("/overview", repository="kernels", device="test-cpu")["items"]
    assert {cell["commit_sha"] for cell in cells if cell["bench_status"] == "ok"} == {story.sha("w1")}
    branches = {row["name"]: row for row in story.json("/branches", repository="kernels")["items"]}
    assert branches["wip"]["is_watched"]
    assert branches.keys() == {"wip", "main"}, "what main has alone is a branch now"


def test_a_change_request_has_a_page(story: Story) -> None:
    run_git(story.source, "update-ref", "refs/pull/7/head", story.sha("w1"))
    run_git(story.source, "branch", "--quiet", "-D", "wip")
    story.measure("1", "2", "w1")
    story.work()
    report = story.json("/branches/pull/7", repository="kernels")
    assert (report["branch"]["kind"], report["branch"]["newest_sha"]) == ("request", story.sha("w1"))
    assert {outcome["outcome"] for outcome in report["outcomes"] if outcome["variant"] == "v3"} == {"slower"}
    statements = [item for item in story.page("/branches/pull/7") if "phase" in item]
    assert {item["branch"] for item in statements} == {"pull/7"}
    assert story.json("/regressions", repository="kernels", state="open")["items"] == []
