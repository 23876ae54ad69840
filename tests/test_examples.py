"""Documents quote the files in examples, which are tested, word for word."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.builders import make_repository, run_git
from warpwatch.project import parse_project

ROOT = Path(__file__).parent.parent
QUOTED = re.compile(r"<!-- file: (\S+) -->\n```\w+\n(.*?)```", re.DOTALL)


def test_the_walk_through_quotes_the_example() -> None:
    quoted = dict(QUOTED.findall((ROOT / "docs" / "adding-a-kernel.md").read_text()))
    example = ROOT / "examples" / "softsign"
    files = {str(path.relative_to(example)): path.read_text() for path in example.rglob("*") if path.is_file()}
    assert quoted == {name: text for name, text in files.items() if "__pycache__" not in name}


def test_the_page_on_any_repository_quotes_the_examples() -> None:
    page = (ROOT / "docs" / "any-repository.md").read_text()
    quoted = dict(QUOTED.findall(page))
    assert quoted == {"warpwatch.toml": (ROOT / "examples" / "einops" / "warpwatch.toml").read_text()}
    table = (ROOT / "examples" / "pytorch_scatter" / "warpwatch.toml").read_text().partition("[measured]")[2]
    assert f"[measured]{table}" in page


@pytest.mark.parametrize(("name", "operators"), [("einops", 1), ("pytorch_scatter", 1), ("liger", 10)])
def test_definitions_of_other_projects_are_short(name: str, operators: int) -> None:
    folder = ROOT / "examples" / name
    text = (folder / "warpwatch.toml").read_text()
    assert len(text.splitlines()) <= 10
    assert parse_project(text).measured is not None
    assert len(list((folder / "operators").glob("[a-z]*.py"))) == operators


@pytest.mark.parametrize("name", ["google-benchmark", "pytest-benchmark"])
def test_a_history_gets_the_files_of_an_example(name: str, tmp_path: Path) -> None:
    clone, folder = tmp_path / "clone", ROOT / "examples" / name
    shas = make_repository(clone, 3)
    overlay = [str(ROOT / "examples" / "overlay.sh"), str(folder), str(clone), shas[0], shas[2]]
    # People may have told git no name.
    nameless = {**os.environ, "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull}
    made, again = (subprocess.run(overlay, check=True, env=nameless, stdout=subprocess.PIPE).stdout for _ in range(2))
    assert made == again
    measured = run_git(clone, "rev-list", "--reverse", "measured").split()
    assert [run_git(clone, "show", "-s", "--format=%s", sha).split(" (")[0] for sha in measured] == [
        "Change 1",
        "Change 3",
    ]
    files = run_git(clone, "ls-tree", "--name-only", "measured").split()
    assert set(files) == {"kernels"} | {path.name for path in folder.iterdir() if path.name != "README.md"}
    assert run_git(clone, "show", "measured:kernels/square.py") == "NUMBER = 3\n"
    (program,) = parse_project(run_git(clone, "show", "measured:warpwatch.toml")).programs
    assert program.format == name
    assert (clone / "kernels" / "square.py").read_text() == "NUMBER = 3\n", "the clone itself stays as it was"
    assert run_git(clone, "status", "--porcelain") == ""
