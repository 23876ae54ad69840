"""Compiled templates are kept in a folder, where that can be written."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from jinja2 import DictLoader, Environment

from warpwatch.server.web.render import PageCache


def render(folder: Path, source: str) -> str:
    pages = Environment(loader=DictLoader({"page.html": source}), bytecode_cache=PageCache(str(folder)))
    return pages.get_template("page.html").render(number=2)


def test_a_page_is_compiled_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    assert render(tmp_path / "pages", "{{ number }}") == "2"
    with monkeypatch.context() as patch:
        patch.setattr(Environment, "compile", None)
        assert render(tmp_path / "pages", "{{ number }}") == "2"
    assert render(tmp_path / "pages", "{{ number + 1 }}") == "3", "its source was changed"


def test_pages_are_rendered_where_nothing_can_be_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    assert render(tmp_path / "no" / "folder", "{{ number }}") == "2"
