"""Every picture that a document shows is there, `make shots` takes every picture, and together they stay small."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.shots import FOLDER, LARGEST_BYTES, SHOTS, file_names
from tests.test_documents import documents, name_of

ROOT = Path(__file__).parents[1]
_PICTURES = re.compile(r"(?:src|srcset)=\"([^\"]+)\"|!\[[^\]]*\]\(([^)\s]+)\)")


def pictures_of(document: Path) -> list[Path]:
    """The local files that a document shows."""
    matches = _PICTURES.findall(document.read_text(encoding="utf-8"))
    return [(document.parent / (first or second)).resolve() for first, second in matches if "://" not in first + second]


@pytest.mark.parametrize("document", documents(), ids=name_of)
def test_the_pictures_of_a_document_are_there(document: Path) -> None:
    assert [picture for picture in pictures_of(document) if not picture.is_file()] == []


def test_the_command_takes_every_picture_and_no_other() -> None:
    assert sorted(file.name for file in FOLDER.iterdir()) == file_names()
    assert sum(file.stat().st_size for file in FOLDER.iterdir()) <= LARGEST_BYTES


def test_every_picture_is_shown_in_both_themes() -> None:
    shown = {picture for document in documents() for picture in pictures_of(document)}
    assert {file for file in FOLDER.iterdir() if file not in shown} == set()
    tour = [picture.name for picture in pictures_of(ROOT / "docs" / "tour.md")]
    assert tour == [f"{name}-{theme}.webp" for name in SHOTS for theme in ("dark", "light")]


@pytest.mark.parametrize("document", documents(), ids=name_of)
def test_every_picture_says_what_it_shows(document: Path) -> None:
    text = document.read_text(encoding="utf-8")
    assert [tag for tag in re.findall(r"<img[^>]*>", text) if not re.search(r'alt="[^"]{20,}"', tag)] == []
