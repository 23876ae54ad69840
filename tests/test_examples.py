"""Documents quote the files in examples, which are tested, word for word."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

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
