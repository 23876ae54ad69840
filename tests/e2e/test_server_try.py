"""Uncommitted changes on a real service: sent as a patch, measured by its worker, printed as if measured here."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.e2e.conftest import Running
from tests.e2e.repositories import TEN_COMMITS, commit, create
from warpwatch.cli.app import app

pytestmark = pytest.mark.timeout(900)


def test_an_uncommitted_slow_down_is_measured_on_the_server(running: Running, source: Path) -> None:
    create(source)
    main = commit(source, TEN_COMMITS[0], 0)
    running.client.post("/repositories", {"name": "cubes", "url": str(source)})
    checked = running.client.post("/submissions", {"repository": "cubes", "commits": main, "kinds": ["check"]})
    running.wait(lambda: running.has_ended(checked["id"]), 300)
    slow = TEN_COMMITS[1]
    native = source / "csrc" / "cube" / "cube.cpp"
    native.write_text(native.read_text().replace(slow.old, slow.new))
    words = ["try", "--repository", str(source), "--server", running.settings.server_url, "--case-limit", "1"]
    slower = CliRunner().invoke(app, words, env={"WARPWATCH_TOKEN": "", "COLUMNS": "200"})
    assert slower.exit_code == 1, slower.output
    assert "0 wrong, 1 slower" in slower.output
    assert running.client.get("/regressions", repository="cubes", state="any")["items"] == []
