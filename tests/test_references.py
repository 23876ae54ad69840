"""docs/reference says what the code says; `make references` writes it."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

import pytest
import typer.main

from tests.references import FOLDER, references
from warpwatch import operator
from warpwatch.cli.app import app
from warpwatch.cli.findings import REASONS
from warpwatch.project import KNOWN_KEYS, MEASURED_KEYS
from warpwatch.server.intake.preview import UnmeasuredReason
from warpwatch.server.intake.submission_request import SubmissionRequest
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


def test_the_page_on_operators_holds_the_whole_interface(texts: dict[str, str]) -> None:
    text = texts["operators.md"]
    fields = [field.name for kind in (operator.Operator, operator.Variant) for field in dataclasses.fields(kind)]
    assert {name for name in fields if not re.search(rf"\| `{name}\b", text)} == set()
    assert "make.integers(low, high, *shape)" in text
    assert "make.normal(*shape, scale=1.0)" in text
    assert {"by_torch", "no_special_values", "timeout_factor"} <= set(fields)
    keys = {*KNOWN_KEYS - {"container", "program", "measured"}, *(f"measured.{key}" for key in MEASURED_KEYS)}
    assert {key for key in keys if f"| `{key}` |" not in text} == set()


def test_the_document_tells_whether_unchanged_operators_are_measured() -> None:
    """The default that the documents state is that of the command and of the REST API."""
    texts = [" ".join((ROOT / "docs" / name).read_text().split()) for name in ("any-repository.md", "submitting.md")]
    assert SubmissionRequest.model_fields["skip_unchanged"].default is True
    assert "whose sources did not change is not measured again; `--all` measures it, too" in texts[0]
    assert '`"skip_unchanged": false`' in texts[1]
    command: Any = typer.main.get_command(app)
    (option,) = [row for row in command.commands["submit"].params if "--all" in row.opts]
    assert (option.default, set(option.opts), option.secondary_opts) == (
        False,
        {"--all", "--no-skip-unchanged"},
        ["--skip-unchanged"],
    )


def test_the_document_lists_every_reason_to_leave_out_a_commit() -> None:
    text = (ROOT / "docs" / "submitting.md").read_text()
    assert set(REASONS) == set(UnmeasuredReason)
    assert [words for words in REASONS.values() if f"| {words} |" not in text] == []
