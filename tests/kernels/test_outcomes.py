"""Outcomes of variants say why: figures and ranks come from stored results of the device that is shown."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from warpwatch.server.reports.formats import states_result

from .conftest import ROOT

FILES = sorted(path for path in (ROOT / "kernels").glob("*.py") if not path.name.startswith("_"))


def strings(node: ast.expr) -> Iterator[str]:
    return (part.value for part in ast.walk(node) if isinstance(part, ast.Constant) and isinstance(part.value, str))


def outcomes(source: str) -> list[str]:
    """The texts passed as `outcome=`, and those of tables called `_OUTCOMES`."""
    texts: list[str] = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.keyword) and node.arg == "outcome":
            texts += strings(node.value)
        if (
            isinstance(node, ast.Assign)
            and ast.unparse(node.targets[0]) == "_OUTCOMES"
            and isinstance(node.value, ast.Dict)
        ):
            texts += [text for value in node.value.values for text in strings(value)]
    return texts


def test_every_outcome_is_read() -> None:
    assert sum(len(outcomes(path.read_text(encoding="utf-8"))) for path in FILES) > 40


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_an_outcome_holds_no_result(path: Path) -> None:
    assert [text for text in outcomes(path.read_text(encoding="utf-8")) if states_result(text)] == []


@pytest.mark.parametrize(
    "text",
    [
        "156 µs there",
        "a third of v1's time",
        "960 ms for 256 samples",
        "costs 7 %",
        "1.4x faster than v1",
        "3.2× over v1",
        "ten times faster",
        "4.5 s and 186 MB",
        "off by 2e-6",
        "beats v3; reads are coalesced",
        "the fastest with one row",
        "as fast as copy_",
        "close behind compile",
        "few tiles on an H200",
    ],
)
def test_a_result_is_recognized(text: str) -> None:
    assert states_result(text)


@pytest.mark.parametrize("text", ["128 x 128 results", "tl.dot computes 16 rows", "3xtf32"])
def test_a_size_is_no_result(text: str) -> None:
    assert not states_result(text)
