"""Lines of first parents: what a merge brings to a branch is not on its line, whether they share a root or not."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.builders import commit, make_repository, run_git
from warpwatch import git
from warpwatch.server.history.mirror import Mirror
from warpwatch.sources import Sources


@pytest.mark.parametrize("is_related", [True, False])
def test_a_merged_commit_is_not_on_the_line_of_first_parents(tmp_path: Path, is_related: bool) -> None:
    path = tmp_path / "repository"
    main = make_repository(path, commits=3)
    run_git(path, "checkout", "--quiet", *(["-b", "side", main[0]] if is_related else ["--orphan", "side"]))
    side = [commit(path, "Side 1"), commit(path, "Side 2")]
    run_git(path, "checkout", "--quiet", "main")
    run_git(path, "merge", "--quiet", "--allow-unrelated-histories", "-s", "ours", "-m", "Merge", "side")
    merge = run_git(path, "rev-parse", "HEAD").strip()
    path = git.update_mirror(str(path), tmp_path / "home")
    assert git.first_parents_since(path, merge, main[0]) == {*main, merge}
    assert git.first_parents_since(path, merge, side[1]).isdisjoint(side)
    assert git.first_parents_since(path, side[1], side[0]) == set(side)
    assert git.first_parents_since(path, merge, merge) == {merge}
    ordinals = {info.sha: info.ordinal for info in git.describe_many(path, [merge, *main[::-1], *side[::-1]])}
    others = [(ordinal, sha) for sha, ordinal in ordinals.items() if sha != side[1]]
    line = Mirror(path, Sources(path)).line(side[1], others, ordinals[side[1]], merge)
    assert line == {*side, *([main[0]] if is_related else [])}
