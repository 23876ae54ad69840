"""Devices are called by their names; keys stand in tooltips, addresses and commands."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from warpwatch.server.web.render import WEB, DeviceNames

PRINTED = re.compile(r"\{\{\s*[\w.]*device_key\s*\}\}")


@pytest.mark.parametrize("file", sorted((WEB / "templates").rglob("*.html")), ids=lambda file: file.name)
def test_no_template_prints_the_key_of_a_device(file: Path) -> None:
    assert PRINTED.findall(file.read_text()) == [], "write {{ ui.device(…) }}"


def test_a_key_without_a_device_stands_for_itself() -> None:
    assert DeviceNames()["nvidia-h200"] == "nvidia-h200"
