"""Plays the CI of a team: push, webhook, jobs, report, commit status, exit code; with real git, a real server and a
real listener."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import parse

import jsonschema_rs
import pytest
from typer.testing import Result

from tests.builders import CASES, Lab, commit, make_repository, run_git
from tests.server.forms import SARIF_SCHEMA
from tests.server.listener import Heard, listening, send_hook
from tests.server.test_command import FakeWorker, command
from tests.waiting import wait_until
from warpwatch.cli.repository import place_of
from warpwatch.contract.words import Status
from warpwatch.db import registry
from warpwatch.db.database import Database
from warpwatch.settings import Settings

SECRET = "a-secret-of-some-length"
TOKEN = "a-token-of-the-code-host"
ROUNDS = [10_000.0 + number for number in range(12)]
FINE = {"check": Status.OK, "bench": 10_000.0, "compare": (ROUNDS, ROUNDS)}
SLOWER = {"check": Status.OK, "bench": 13_000.0, "compare": (ROUNDS, [1.3 * value for value in ROUNDS])}


@dataclass
class Team:
    """A code host (a bare repository and what it hears), a developer's clone, and the server that watches it."""

    served: Settings
    lab: Lab
    host: Path
    clone: Path
    heard: Heard

    def push(self, branch: str) -> str:
        """Push what the clone has; the commit's id."""
        run_git(self.clone, "push", "--quiet", "--force", "origin", branch)
        return run_git(self.clone, "rev-parse", "HEAD").strip()

    def tell(self, event: str, message: dict[str, Any]) -> dict[str, Any]:
        """Send a webhook the way GitHub does; the answer."""
        return send_hook(f"{self.served.server_url}/api/v1/hooks/kernels", SECRET, event, message)

    def propose(self, head: str, base: str, action: str = "opened") -> int:
        """A pull request; the submission that came of it."""
        answer = self.tell(
            "pull_request", {"action": action, "pull_request": {"head": {"sha": head}, "base": {"sha": base}}}
        )
        return int(answer["submission_id"])

    def status_of(self, sha: str, state: str) -> dict[str, Any]:
        """The newest status of a commit once it is `state`."""

        def newest() -> dict[str, Any] | None:
            statuses = [body for path, _, body in self.heard.messages if path == f"/statuses/{sha}"]
            return statuses[-1] if statuses and statuses[-1]["state"] == state else None

        return wait_until(newest, 30, explain=lambda: f"{sha[:8]} did not become {state}; heard {self.heard.messages}")

    def arrived(self, submission: int) -> list[dict[str, Any]]:
        """Its commit statuses, once the newest one was taken."""
        address = f"{self.served.server_url}/api/v1/submissions/{submission}/callbacks"

        def rows() -> list[dict[str, Any]]:
            with urllib.request.urlopen(address) as answer:
                return json.load(answer)["items"]

        def taken() -> list[dict[str, Any]] | None:
            found = rows()
            return found if found[-1]["outcome"] == "sent" else None

        return wait_until(taken, 30, pause=0.1, explain=rows)

    def ci(self, answer: dict[str, Any], *more: str) -> Result:
        """What a CI job runs in its checkout."""
        with FakeWorker(self.lab, answer):
            return command(
                self.served, "submit", "--wait", "--base", "merge-base", "--device", "cpu", *more, cwd=self.clone
            )


@pytest.fixture
def lease() -> float:
    """The laboratory's worker says once that it lives."""
    return 300.0


@pytest.fixture
def team(served: Settings, database: Database, tmp_path: Path) -> Iterator[Team]:
    source, host, clone = tmp_path / "first", tmp_path / "kernels.git", tmp_path / "clone"
    shas = make_repository(source, 2)
    run_git(tmp_path, "clone", "--quiet", "--bare", str(source), str(host))
    run_git(tmp_path, "clone", "--quiet", str(host), str(clone))
    lab = Lab(database, source, shas, tmp_path)
    with listening() as heard:
        # The laboratory knows the repository by the path of its first clone.
        with database.session() as session:
            registry.ensure_repository(session, "kernels", str(host))
        address = f"{heard.url}/statuses/{{sha}}"
        options = ("--branch", "main", "--webhook-secret", SECRET, "--status-url", address, "--status-token", TOKEN)
        done = command(served, "repository", "set", "kernels", *options)
        assert done.exit_code == 0, done.stderr
        assert SECRET not in done.stdout + done.stderr
        assert TOKEN not in done.stdout + done.stderr
        yield Team(served, lab, host, clone, heard)


@pytest.mark.timeout(120)
def test_from_a_push_to_an_exit_code(team: Team, tmp_path: Path) -> None:
    # A push to main: everything is new, all is fine. The code host stumbles at first.
    before = run_git(team.clone, "rev-parse", "HEAD").strip()
    commit(team.clone, "Unroll the loop")
    main = team.push("main")
    team.heard.answers = [500, 500]
    with FakeWorker(team.lab, FINE):
        answer = team.tell("push", {"ref": "refs/heads/main", "before": before, "after": main})
        assert answer["reason"] == f"compared with {before}"
        told = team.status_of(main, "success")
    arrived = team.arrived(answer["submission_id"])
    assert (arrived[-1]["state"], sum(row["attempts"] for row in arrived)) == ("success", 3)
    assert told["target_url"] == f"{team.served.server_url}/runs/{answer['submission_id']}"
    assert all(headers["authorization"] == f"Bearer {TOKEN}" for _, headers, _ in team.heard.messages)

    # Someone proposes a change that is slower.
    run_git(team.clone, "checkout", "--quiet", "-b", "idea")
    commit(team.clone, "An idea")
    head = team.push("idea")
    with FakeWorker(team.lab, SLOWER):
        number = team.propose(head, main)
        assert team.propose(head, main) == number
        assert "1 slower" in team.status_of(head, "failure")["description"]

    # The CI job of the same change says the same, in every form.
    files = {form: tmp_path / f"out/{form}" for form in ("json", "junit", "markdown", "sarif", "github")}
    reports = [word for form, file in files.items() for word in ("--report", f"{form}={file}")]
    done = team.ci(SLOWER, *reports)
    assert done.exit_code == 1, done.stdout + done.stderr
    assert f"slower +30.0\u2009%: square v1 {CASES[0]} on Test CPU at {head[:8]} vs {main[:8]}" in done.stdout
    body = json.loads(files["json"].read_text())
    assert (body["conclusion"], body["head_sha"], body["base_sha"]) == ("failure", head, main)
    assert [case.get("type") for case in parse(files["junit"]).getroot().iter("failure")] == ["slower"]
    assert "**slower**" in files["markdown"].read_text()
    jsonschema_rs.validator_for(SARIF_SCHEMA).validate(json.loads(files["sarif"].read_text()))
    assert json.loads(files["github"].read_text())["conclusion"] == "failure"

    # It is made faster again, and pushed over the old commit.
    (team.clone / "kernels" / "square.py").write_text("better = True\n")
    run_git(team.clone, "commit", "--quiet", "--all", "--amend", "--message", "A better idea")
    better = team.push("idea")
    with FakeWorker(team.lab, FINE):
        assert team.propose(better, main, "synchronize") != number
        team.status_of(better, "success")
    done = team.ci(FINE)
    assert done.exit_code == 0, done.stdout + done.stderr
    assert team.heard.states.count("error") == 0


def test_a_ci_job_that_could_not_measure(team: Team, tmp_path: Path) -> None:
    commit(team.clone, "Another")
    sha = team.push("main")
    done = team.ci(
        {"check": Status.OK, "bench": "no compiler", "compare": "no compiler"},
        "--report",
        f"junit={tmp_path / 'junit.xml'}",
    )
    assert done.exit_code == 2, done.stdout + done.stderr
    assert "not run: square on Test CPU" in done.stdout
    assert list(parse(tmp_path / "junit.xml").getroot().iter("error"))
    assert "not run" in team.status_of(sha, "error")["description"]


def test_a_wait_that_was_cut_short_leaves_a_report(team: Team, tmp_path: Path) -> None:
    done = command(
        team.served,
        "submit",
        "--wait",
        "--base",
        "parent",
        "--timeout",
        "0.1",
        "--report",
        f"json={tmp_path / 'r.json'}",
        cwd=team.clone,
    )
    assert done.exit_code == 2
    assert json.loads((tmp_path / "r.json").read_text())["conclusion"] == "pending"


@pytest.mark.parametrize("wanted", ["junit", "pdf=x", "junit=", "=x"])
def test_reports_that_there_are_not(served: Settings, wanted: str) -> None:
    done = command(served, "submit", "--commit", "main", "--report", wanted)
    assert done.exit_code == 2
    assert "FORMAT=FILE" in done.stderr


def test_a_forged_webhook_makes_nothing(team: Team) -> None:
    request = urllib.request.Request(
        f"{team.served.server_url}/api/v1/hooks/kernels", b"{}", {"X-Hub-Signature-256": "sha256=0"}
    )
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(request)
    assert refused.value.code == 403
    assert team.heard.messages == []


@pytest.mark.parametrize(
    ("url", "place"),
    [
        ("https://github.com/Acme/kernels.git", "github.com/acme/kernels"),
        ("https://x-access-token:abc@github.com/acme/kernels", "github.com/acme/kernels"),
        ("git@github.com:acme/kernels.git", "github.com/acme/kernels"),
        ("ssh://git@host.example:2222/acme/deep/kernels/", "host.example/acme/deep/kernels"),
        ("/srv/kernels.git", None),
        ("../kernels", None),
        ("file:///srv/kernels", None),
    ],
)
def test_a_clone_knows_where_it_comes_from(url: str, place: str | None) -> None:
    assert place_of(url) == place
