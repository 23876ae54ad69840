"""A change that is 30 % slower, from its pull request to a red commit, measured by a real worker."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import Running
from tests.e2e.repositories import TEN_COMMITS, commit, create, git
from tests.server.listener import listening, send_hook
from warpwatch.contract.rounds import FEWEST_ROUNDS

pytestmark = pytest.mark.timeout(900)
SECRET = "a-secret-of-some-length"


def tell(running: Running, event: str, message: dict[str, Any]) -> dict[str, Any]:
    """Send a webhook the way GitHub does; the answer."""
    return send_hook(f"{running.settings.server_url}/api/v1/hooks/cubes", SECRET, event, message)


def test_a_slower_change_turns_its_commit_red(running: Running, source: Path, tmp_path: Path) -> None:
    create(source)
    main = commit(source, TEN_COMMITS[0], 0)
    git(source, "checkout", "--quiet", "-b", "idea")
    head = commit(source, TEN_COMMITS[1], 1)
    git(source, "checkout", "--quiet", "main")
    running.client.post("/repositories", {"name": "cubes", "url": str(source)})
    with listening() as heard:
        body = {"webhook_secret": SECRET, "status_url": f"{heard.url}/{{sha}}", "branch": "main"}
        running.client.patch("/repositories/cubes", body)
        pushed = tell(running, "push", {"ref": "refs/heads/main", "before": "0" * 40, "after": main})
        running.wait(lambda: running.has_ended(pushed["submission_id"]), 300)

        change = {"head": {"sha": head}, "base": {"sha": main}}
        proposed = tell(running, "pull_request", {"action": "opened", "pull_request": change})["submission_id"]
        told = running.wait(lambda: [body["state"] for path, _, body in heard.messages if path == f"/{head}"][1:], 600)

    report = running.client.get(f"/submissions/{proposed}/report")
    slower = [row for row in report["rows"] if row["kind"] == "slower"]
    assert told == ["failure"], report["rows"]
    assert [(row["variant"], row["case"].split(",")[-1]) for row in slower] == [("v3", "fwd")]
    assert 1.2 < slower[0]["ratio"] < 1.4
    assert slower[0]["rounds"] >= FEWEST_ROUNDS
    # The change is native, so both directions of v3 are compared, and v1 in torch, which it cannot reach, is not.
    assert (report["base_sha"], report["compared"], report["exit_code"]) == (main, 2, 1)

    command = [
        sys.executable,
        "-m",
        "warpwatch",
        "status",
        str(proposed),
        "--report",
        f"junit={tmp_path / 'junit.xml'}",
    ]
    environment = os.environ | {"WARPWATCH_URL": running.settings.server_url}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "slower: cube v3" in done.stdout
    assert (tmp_path / "junit.xml").read_text().count("<failure") == 1
