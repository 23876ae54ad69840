"""The culprit inside a merged branch, over real git histories.

main  1 ─ 2 ─ 3 ─────────── merge ─ 4
side      └─ s1 ─ s2 ─ s3 ─ s4 ┘
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from tests.builders import Lab, run_git
from tests.server.simulated import Machine
from tests.server.story import Planted, Story
from warpwatch import git_branches
from warpwatch.db.database import Database
from warpwatch.server.judge import Judge
from warpwatch.settings import Settings


@pytest.fixture
def story(client: TestClient, settings: Settings, database: Database, tmp_path: Path) -> Story:
    source = tmp_path / "merges" / "kernels"
    (source / "kernels").mkdir(parents=True)
    run_git(source, "init", "--quiet", "--initial-branch", "main")
    machine = Machine(client, Lab(database, source, [], tmp_path), Judge(settings, database), Planted())
    told = Story(source, machine, settings, database)
    told.commit("1", "STATE = 'first'\n")
    commit(told, "2", "NEWS.md", "two\n")
    run_git(source, "checkout", "--quiet", "-b", "side")
    for number in range(1, 5):
        commit(told, f"s{number}", "kernels/square.py", f"STATE = 'side {number}'\n")
    run_git(source, "checkout", "--quiet", "main")
    commit(told, "3", "NEWS.md", "three\n")
    return told


def commit(story: Story, name: str, path: str, text: str) -> None:
    (story.source / path).write_text(text)
    run_git(story.source, "add", "--all")
    run_git(story.source, "commit", "--quiet", "--message", f"Commit {name}")
    story.learn(name)


def merge(story: Story, operator: str | None = None) -> None:
    """Merges the branch and deletes it. operator: what the merge makes of the operator's file itself."""
    run_git(story.source, "merge", "--quiet", "--no-ff", "--no-commit", "side")
    if operator is not None:
        (story.source / "kernels" / "square.py").write_text(operator)
    run_git(story.source, "add", "--all")
    run_git(story.source, "commit", "--quiet", "--message", "Merge side")
    story.learn("merge")
    run_git(story.source, "branch", "--quiet", "-D", "side")
    commit(story, "4", "kernels/square.py", "STATE = 'four'\n")


def slow_from(story: Story, *names: str) -> None:
    truth = story.machine.truth
    assert isinstance(truth, Planted)
    truth.slow = {story.names[name] for name in names}


def search(story: Story) -> dict[str, Any]:
    """Measures both ends of the history and everything that follows; the regression at the merge commit."""
    for name in ("1", "4"):
        story.fetch()
        story.machine.bench(story.names[name])
    story.work()
    return story.row("merge", "slower")


@pytest.mark.parametrize("culprit", [1, *(pytest.param(number, marks=pytest.mark.nightly) for number in (3, 4))])
def test_the_culprit_is_named_on_every_page(story: Story, culprit: int) -> None:
    merge(story)
    slow_from(story, *(f"s{number}" for number in range(culprit, 5)), "merge", "4")
    row = search(story)
    before = "2" if culprit == 1 else f"s{culprit - 1}"
    inside = story.sha(f"s{culprit}")
    assert (row["phase"], row["branch"], row["culprit_sha"]) == ("culprit", "main", story.sha("merge"))
    assert (row["merge_cause"], row["merged_culprit_sha"], row["merged_commits"]) == ("branch", inside, 1)
    assert (row["merged_base_sha"], row["merged_subject"]) == (story.sha(before), f"Commit s{culprit}")
    detail = story.json(f"/regressions/{row['id']}")
    assert {trial["merge_sha"] for trial in detail["trials"]} == {None, story.sha("merge")}
    assert {(trial["base_sha"], trial["head_sha"]) for trial in detail["trials"] if trial["merge_sha"] is not None} >= {
        (story.sha("2"), story.sha("s4")),
        (story.sha(before), inside),
    }
    (statement,) = [item for item in story.page(f"/regressions/{row['id']}") if "merge" in item]
    assert (statement["merge"], statement["merged-culprit"]) == ("branch", inside)
    for name in (f"s{culprit}", "merge"):
        roles = [item["role"] for item in story.page(f"/commits/{story.sha(name)}") if "role" in item]
        assert roles == ["cause"], name
    assert [item for item in story.page(f"/commits/{story.sha('s2')}") if "role" in item] == []


def test_reports_name_the_commit_inside(story: Story) -> None:
    merge(story)
    slow_from(story, "s2", "s3", "s4", "merge", "4")
    row = search(story)
    submissions = story.json("/submissions", repository="kernels", limit=200)["items"]
    reports = [story.json(f"/submissions/{item['id']}/report") for item in submissions]
    (finding,) = [item for report in reports for item in report["rows"] if item["url"].endswith(f"/{row['id']}")]
    assert (finding["head_sha"], finding["merged_sha"]) == (story.sha("merge"), story.sha("s2"))


def test_a_merge_that_changes_the_operator_itself_is_the_culprit(story: Story) -> None:
    merge(story, "STATE = 'resolved wrongly'\n")
    slow_from(story, "merge", "4")
    row = search(story)
    assert (row["phase"], row["culprit_sha"]) == ("culprit", story.sha("merge"))
    assert (row["merge_cause"], row["merged_culprit_sha"]) == ("merge", None)
    (statement,) = [item for item in story.page(f"/regressions/{row['id']}") if "merge" in item]
    assert statement["merge"] == "merge"


def test_no_branch_is_searched_where_the_culprit_is_no_merge(story: Story) -> None:
    merge(story)
    slow_from(story, "4")
    for name in ("1", "4"):
        story.fetch()
        story.machine.bench(story.names[name])
    story.work()
    row = story.row("4", "slower")
    assert (row["merge_cause"], row["merged_head_sha"]) == (None, None)
    assert {trial["merge_sha"] for trial in story.json(f"/regressions/{row['id']}")["trials"]} == {None}


def test_a_branch_without_a_common_commit_is_not_searched(story: Story) -> None:
    """Two histories that were merged with --allow-unrelated-histories have nothing that both sides come from."""
    run_git(story.source, "branch", "--quiet", "-D", "side")
    run_git(story.source, "checkout", "--quiet", "--orphan", "side")
    run_git(story.source, "rm", "--quiet", "-rf", ".")
    (story.source / "kernels").mkdir(exist_ok=True)
    commit(story, "root", "kernels/other.py", "STATE = 'other'\n")
    run_git(story.source, "checkout", "--quiet", "main")
    run_git(
        story.source, "merge", "--quiet", "--no-ff", "--allow-unrelated-histories", "--message", "Merge root", "side"
    )
    commit_text = "STATE = 'merged'\n"
    (story.source / "kernels" / "square.py").write_text(commit_text)
    run_git(story.source, "commit", "--quiet", "--all", "--amend", "--no-edit")
    story.learn("merge")
    commit(story, "4", "kernels/square.py", "STATE = 'four'\n")
    slow_from(story, "merge", "4")
    row = search(story)
    assert (row["culprit_sha"], row["merge_cause"]) == (story.sha("merge"), "unknown")


def test_parents_are_listed_with_the_first_one_first(story: Story) -> None:
    merge(story)
    mirror = story.source / ".git"
    assert git_branches.parents_of(mirror, story.sha("merge")) == [story.sha("3"), story.sha("s4")]
    assert git_branches.parents_of(mirror, story.sha("1")) == []
