"""`warpwatch submit` and its siblings against a real server: what they print and how they exit."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from tests.builders import CASES, Lab, write_commits
from tests.rewording import stored
from warpwatch import git
from warpwatch.cli.app import app
from warpwatch.contract.words import Status
from warpwatch.db import runs
from warpwatch.db.reads.work import JobFilter, list_jobs
from warpwatch.settings import Settings

V1 = ("v1", CASES[0])


def command(settings: Settings, *arguments: str, cwd: Path | None = None) -> Result:
    """One `warpwatch …` in this process, whose start would be most of the time."""
    environment = {"WARPWATCH_URL": settings.server_url, "WARPWATCH_TOKEN": ""}
    with contextlib.chdir(cwd or Path.cwd()):
        return CliRunner().invoke(app, arguments, env=environment)


class FakeWorker:
    """Ends every job that comes, the way `answer` says; the command waits for a real server with real rows."""

    def __init__(self, lab: Lab, answer: dict[str, Any]) -> None:
        self.lab, self.answer = lab, answer
        self.stop = threading.Event()
        self.thread = threading.Thread(target=self.run)

    def __enter__(self) -> None:
        self.thread.start()

    def __exit__(self, *_: object) -> None:
        self.stop.set()
        self.thread.join()

    def run(self) -> None:
        while not self.stop.wait(0.05):
            with self.lab.database.session() as session:
                waiting = list_jobs(session, JobFilter(state="queued")).items
            for job in waiting:
                result = self.answer[job.kind]
                if job.kind == "compare":
                    self.lab.compare(job.id, {V1: result})
                elif isinstance(result, str) and result not in list(Status):
                    run = self.lab.begin(job.id)
                    with self.lab.database.session() as session:
                        runs.fail_run(session, run, result, retry=False)
                else:
                    self.lab.finish(job.id, self.lab.outcome([self.lab._timed(*V1, result, 0.002)]))


def submit(settings: Settings, lab: Lab, answer: dict[str, Any], *more: str) -> Result:
    arguments = (
        "submit",
        "--repository",
        "kernels",
        "--commit",
        "main",
        "--operators",
        "square",
        "--device",
        "cpu",
        *more,
    )
    with FakeWorker(lab, answer):
        return command(settings, *arguments)


ROUNDS = [10_000.0] * 12


def test_waiting_names_what_is_wrong_and_how_to_see_it_again(served: Settings, lab: Lab) -> None:
    done = submit(served, lab, {"check": Status.WRONG, "bench": "no compiler"}, "--wait")
    assert done.exit_code == 1, done.stdout + done.stderr
    assert "failed: 1 wrong" in done.stdout
    assert f"wrong: square v1 {CASES[0]} on Test CPU at {lab.shas[5][:8]}: {stored('it was wrong')}" in done.stdout
    assert "warpwatch submit --repository kernels" in done.stdout
    assert f"not run: square on Test CPU at {lab.shas[5][:8]}: {stored('no compiler')}" in done.stdout


def test_waiting_for_a_verdict(served: Settings, lab: Lab) -> None:
    git.update_mirror(str(lab.source), served.home)
    lab.bench(4, {V1: 10_000.0})
    answer = {"bench": 13_000.0, "compare": (ROUNDS, [13_000.0 + number for number in range(12)])}
    done = submit(served, lab, answer, "--kinds", "bench", "--wait", "--json")
    assert done.exit_code == 1, done.stdout + done.stderr
    body = json.loads(done.stdout)
    assert (body["exit_code"], body["results"], body["origin"]) == (1, {"ok": 1}, "cli")
    assert [(row["direction"], row["head_sha"]) for row in body["regressions"]] == [("slower", lab.shas[5])]
    number = str(body["regressions"][0]["id"])
    given = command(
        served,
        "triage",
        number,
        "acknowledged",
        "--assignee",
        "bea",
        "--due",
        "2031-03-31",
        "--link",
        "https://example.com/7",
    )
    assert given.stdout == f"regression {number} is acknowledged\n"
    refused = command(served, "triage", number, "fixed", "--link", "example.com/7")
    assert refused.exit_code != 0
    assert "link" in refused.stdout + refused.stderr
    assert (
        command(served, "triage", number, "accepted", "--note", "more exact").stdout
        == f"regression {number} is accepted\n"
    )
    assert command(served, "status", str(body["id"])).exit_code == 0


def test_faster_is_fine(served: Settings, lab: Lab) -> None:
    git.update_mirror(str(lab.source), served.home)
    lab.bench(4, {V1: 10_000.0})
    done = submit(
        served,
        lab,
        {"bench": 7_000.0, "compare": (ROUNDS, [7_000.0 + n for n in range(12)])},
        "--kinds",
        "bench",
        "--wait",
    )
    assert done.exit_code == 0, done.stdout + done.stderr
    assert f"faster −29.9\u2009%: square v1 {CASES[0]} on Test CPU" in done.stdout


def test_without_waiting_cancel_status_and_retry(served: Settings, lab: Lab) -> None:
    done = command(
        served,
        "submit",
        "--commit",
        "HEAD~1",
        "--kinds",
        "check",
        "--operators",
        "square,cube",
        "--json",
        cwd=lab.source,
    )
    assert done.exit_code == 0, done.stderr
    body = json.loads(done.stdout)
    assert body["request"]["commits"] == lab.shas[4], "in the repository's own checkout a ref means what it means there"
    assert body["counts"] == {"queued": 2}
    number = str(body["id"])
    assert "is cancelled" in command(served, "cancel", number).stdout
    status = command(served, "status")
    assert (status.exit_code, status.stdout.splitlines()[0]) == (2, f"submission {number} cancelled: no results")
    assert "is queued" in command(served, "retry", number).stdout
    job = command(served, "cancel", "1", "--job")
    assert job.stdout == "job 1 is cancelled\n"


def test_a_plan_comes_before_the_work_and_a_dry_run_ends_with_it(served: Settings, lab: Lab) -> None:
    lab.bench(3, {V1: 10_000.0})
    asked = ("--commit", "main~2..main", "--operators", "square", "--kinds", "bench", "--device", "cpu")
    words = ("submit", "--repository", "kernels", *asked)
    planned = command(served, *words, "--dry-run", "--json")
    assert planned.exit_code == 0, planned.stderr
    lines = planned.stderr.splitlines()
    assert lines[0] == "plan: 2 jobs (2 bench) at 2 commits, 1 operator"
    assert lines[1].startswith("  Test CPU: 2 jobs, about ")
    assert f"  first: {lab.shas[5][:8]} (1), {lab.shas[4][:8]} (1)" in lines
    assert f"    {lab.shas[3][:8]} Change 4" in lines
    assert json.loads(planned.stdout)["jobs"] == 2
    with lab.database.session() as session:
        assert list_jobs(session, JobFilter(state="queued")).items == []
    made = command(served, *words, "--json")
    assert made.stderr.splitlines()[: len(lines)] == lines
    assert json.loads(made.stdout)["counts"] == {"queued": 2}


def test_unchanged_operators_are_skipped_unless_all_are_asked_for(served: Settings, lab: Lab, tmp_path: Path) -> None:
    first, second = ({"kernels/square.py": "NUMBER = 1\n"}, {"README.md": "words\n"})
    measured, _ = write_commits(tmp_path / "words", [("Begin", first), ("Write words", second)])
    command(served, "repository", "add", "words", str(tmp_path / "words"))
    asked = ("--operators", "square", "--kinds", "bench", "--device", "cpu", "--json")
    words = ("submit", "--repository", "words", *asked)
    command(served, *words, "--commit", "main~1")
    skipped = command(served, *words, "--commit", "main")
    assert json.loads(skipped.stdout)["counts"] == {"done": 1}
    assert "1 job skipped: operators unchanged; --all measures them, too" in skipped.stderr
    assert f"left out: 1 commit unchanged. The results of {measured[:8]} count, where" in skipped.stderr
    for option, counts in (
        ("--all", {"queued": 1}),
        ("--no-skip-unchanged", {"queued": 1}),
        ("--skip-unchanged", {"done": 1}),
    ):
        assert json.loads(command(served, *words, "--commit", "main", option).stdout)["counts"] == counts, option


def test_refusals_say_what_to_do(served: Settings, lab: Lab) -> None:
    done = command(
        served, "submit", "--repository", "kernels", "--commit", "nope", "--operators", "sqare", "--device", "cpu"
    )
    assert done.exit_code == 2
    assert "commits: no commit, branch or tag 'nope'" in done.stderr
    assert command(served, "cancel", "77").exit_code == 2
    assert command(served, "status", "77").exit_code == 2
    assert command(served, "submit", "--repository", "nobody", "--commit", "main").exit_code == 2


def test_waiting_can_be_cut_short(served: Settings, lab: Lab) -> None:
    done = command(
        served, "submit", "--repository", "kernels", "--commit", "main", "--device", "cpu", "--wait", "--timeout", "0.1"
    )
    assert done.exit_code == 2
    assert "is not finished after 0.1 s" in done.stderr


def test_no_server(settings: Settings) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "warpwatch", "status"],
        env=os.environ | {"WARPWATCH_URL": "http://127.0.0.1:1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert "no Warpwatch server at" in done.stderr
    assert "Traceback" not in done.stderr


def test_repositories(served: Settings, lab: Lab, source: tuple[Path, list[str]]) -> None:
    assert "repository again at" in command(served, "repository", "add", "again", ".", cwd=source[0]).stdout
    listed = command(served, "repository", "list").stdout.splitlines()
    assert [line.split("\t")[0] for line in listed] == ["again", "kernels"]
    assert command(served, "repository", "add", "bad name", str(source[0])).exit_code == 2


def test_serve_refuses_a_port_that_is_taken_and_the_open_network(
    served: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    # It would change how this process logs and ends.
    monkeypatch.setattr("warpwatch.cli.serve.configure_logs", lambda *_: None)
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    monkeypatch.setenv("WARPWATCH_HOME", str(served.home))
    monkeypatch.setenv("WARPWATCH_PORT", str(served.port))
    monkeypatch.setenv("WARPWATCH_DATABASE_URL", served.database_url or "")
    taken = CliRunner().invoke(app, ["serve"])
    assert (taken.exit_code, "choose another port with WARPWATCH_PORT" in taken.stderr) == (2, True)
    exposed = CliRunner().invoke(app, ["serve"], env={"WARPWATCH_HOST": "0.0.0.0", "WARPWATCH_TOKEN": ""})
    assert (exposed.exit_code, "set WARPWATCH_TOKEN" in exposed.stderr) == (2, True)
