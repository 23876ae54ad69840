"""docs/reference says what the code says; `make references` writes it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import typer.main

from tests.references import FOLDER, references
from warpwatch.cli.app import app
from warpwatch.settings import VARIABLES

ROOT = Path(__file__).parent.parent
INTERNAL = {
    "WARPWATCH_REPLY_FD": "a worker passes it to its child process",
    "WARPWATCH_BUILD": "a program finds what its build left there",
    "WARPWATCH_OUTPUT": "a program writes its results there",
    "WARPWATCH_NO_CUDA": "a macro of the compiler",
}
FILES = {file.relative_to(FOLDER).as_posix(): file for file in sorted(FOLDER.rglob("*.md"))}


@pytest.fixture(scope="module")
def texts() -> dict[str, str]:
    """Made for these tests alone and not when tests are collected, which every process does."""
    return references()


@pytest.mark.parametrize("name", FILES)
def test_references_are_fresh(texts: dict[str, str], name: str) -> None:
    assert FILES[name].read_text(encoding="utf-8") == texts[name], "run `make references`"


def test_each_has_a_file_and_nothing_else_has(texts: dict[str, str]) -> None:
    assert set(FILES) == set(texts)


def test_every_variable_that_is_read_is_listed() -> None:
    folders = ("warpwatch", "worker", "db", "server", "kernels")
    code = "".join(path.read_text() for folder in folders for path in (ROOT / folder).rglob("*.py"))
    assert set(re.findall(r"\bWARPWATCH_[A-Z_]+\b", code)) - set(INTERNAL) == {row.name for row in VARIABLES}


def test_the_page_on_operations_names_commands_that_exist() -> None:
    text = (ROOT / "docs" / "operations.md").read_text()
    command: Any = typer.main.get_command(app)
    named = set(re.findall(r"(?:`|bin/|^)warpwatch (\w[\w-]*)", text, re.MULTILINE))
    assert {"up", "serve", "worker", "migrate", "retry", "cancel"} <= named <= set(command.commands)
    assert set(re.findall(r"\bWARPWATCH_[A-Z_]+\b", text)) <= {row.name for row in VARIABLES}
