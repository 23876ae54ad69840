"""A branch of three commits is merged, and the second of them is wrong: checks of real code name it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.e2e.conftest import Running
from tests.e2e.repositories import TEN_COMMITS, commit, create, git

pytestmark = pytest.mark.timeout(1200)


def test_the_wrong_commit_of_a_merged_branch_is_named(running: Running, source: Path) -> None:
    good, wrong = TEN_COMMITS[0], TEN_COMMITS[3]
    create(source)
    commit(source, good, 0)
    git(source, "checkout", "--quiet", "-b", "side")
    before = commit(source, replace(good, subject="Prepare"), 1)
    culprit = commit(source, wrong, 2)
    commit(source, replace(wrong, subject="Go on"), 3)
    git(source, "checkout", "--quiet", "main")
    (source / "NEWS.md").write_text("news\n")
    git(source, "add", "--all")
    git(source, "commit", "--quiet", "--message", "Tell the news")
    git(source, "merge", "--quiet", "--no-ff", "--message", "Merge the side branch", "side")
    git(source, "branch", "--quiet", "-D", "side")
    merge = git(source, "rev-parse", "HEAD")
    running.client.post("/repositories", {"name": "cubes", "url": str(source)})
    request = {"repository": "cubes", "commits": f"{merge}~2..{merge}", "kinds": ["check"], "device": "cpu"}
    answer = running.client.post("/submissions", request)
    running.wait(lambda: running.has_ended(answer["id"]), 600)

    def settled() -> list[dict[str, object]]:
        rows = running.client.get("/regressions", repository="cubes", state="any")["items"]
        return [row for row in rows if row["settled_at"]]

    (row,) = running.wait(settled, 600)
    assert (row["direction"], row["culprit_sha"], row["merge_cause"]) == ("broken", merge, "branch")
    assert (row["merged_base_sha"], row["merged_culprit_sha"]) == (before, culprit)
