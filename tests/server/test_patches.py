"""Working trees that were sent to a server: stored once, measured in line, in no history, and gone after a while."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import text
from typer.testing import CliRunner, Result

from tests.builders import CASES, VARIANTS, Lab, count, run_git
from tests.server.test_submissions import errors, jobs, know
from warpwatch.cli.app import app as commands
from warpwatch.contract.activities import RunTimes
from warpwatch.contract.messages import BuildReply, KernelResources
from warpwatch.contract.outcome import Comparison, Finding, Outcome
from warpwatch.contract.words import Status
from warpwatch.db import patches, runs
from warpwatch.db.reads.work import JobFilter, list_jobs
from warpwatch.git import mirror_path
from warpwatch.patches import MAX_BYTES
from warpwatch.server.history.branches import follow_branches
from warpwatch.server.judge import Judge
from warpwatch.server.threads.upkeep import RepositoryCleaner
from warpwatch.settings import Settings

API = "/api/v1"
OF_PATCH = "commit_id IN (SELECT id FROM commits WHERE patch_id IS NOT NULL)"
TABLES = ("patches", "patch_outcomes", "jobs", "submissions", "runs")


@pytest.fixture
def clone(lab: Lab, tmp_path: Path) -> Path:
    """A checkout of the repository with an uncommitted change of `square`."""
    know(lab)
    path = tmp_path / "clone"
    run_git(tmp_path, "clone", "--quiet", str(lab.source), str(path))
    (path / "kernels" / "square.py").write_text("changed = True\n")
    return path


def patch_of(clone: Path) -> bytes:
    return run_git(clone, "diff", "--binary", "HEAD").encode()


def send(client: TestClient, content: bytes, base: str = "main", **more: Any) -> Any:
    return client.post(f"{API}/patches", params={"repository": "kernels", "base": base, **more}, content=content)


def submit(client: TestClient, sha: str, **fields: Any) -> Any:
    body = {"repository": "kernels", "commits": sha, "device": "cpu", "operators": ["square"]}
    return client.post(f"{API}/submissions", json=body | {"kinds": ["check", "compare"], "base": "main"} | fields)


def end(lab: Lab, job_id: int, outcome: Outcome) -> None:
    """Ends a job as a worker ends that of a patch."""
    run_id = lab.begin(job_id)
    with lab.database.session() as session:
        runs.finish_patch_run(session, run_id, outcome, RunTimes())


def slow(lab: Lab, variant: str = "v1", times: float = 1.3) -> Outcome:
    base = [10_000.0 + number for number in range(12)]
    rounds = Comparison(variant, CASES[0], "hot", "1", Status.OK, "", base, [time * times for time in base])
    kernels = [
        [KernelResources("square", "sm_90", registers, 0, 0, code_hash=f"{registers}")] for registers in (32, 40)
    ]
    builds = [BuildReply(Status.OK, "", "key", False, 1.0, "", resources) for resources in kernels]
    return replace(lab.outcome([]), comparisons=[rounds], base_build=builds[0], build=builds[1])


def checked(lab: Lab, status: Status = Status.OK) -> Outcome:
    return lab.outcome([Finding(variant, CASES[0], status, "off by one") for variant in VARIANTS])


def test_a_patch_is_stored_once_and_says_what_differs(client: TestClient, lab: Lab, clone: Path) -> None:
    answers = [send(client, patch_of(clone)) for _ in range(2)]
    assert [answer.status_code for answer in answers] == [201, 201]
    stored = answers[0].json()
    assert stored == answers[1].json()
    assert (stored["base_sha"], stored["files"], stored["operators"]) == (
        lab.shas[-1],
        ["kernels/square.py"],
        ["square"],
    )
    assert count(lab.database, "patches") == 1


def test_what_cannot_be_taken_names_its_field(client: TestClient, lab: Lab, clone: Path) -> None:
    content = patch_of(clone)
    assert errors(send(client, b"hello\n")).keys() == {"patch"}
    assert errors(send(client, content, base="nowhere")).keys() == {"base"}
    assert errors(send(client, content, base=lab.shas[0])).keys() == {"patch"}, "it does not apply there"
    assert errors(send(client, b"x" * (MAX_BYTES + 1))).keys() == {"patch"}
    (clone / "link").symlink_to("/etc/passwd")
    run_git(clone, "add", "--all")
    assert errors(send(client, patch_of(clone))).keys() == {"patch"}
    assert count(lab.database, "patches") == 0
    sha = send(client, content).json()["sha"]
    assert errors(send(client, content, base=sha)).keys() == {"base"}


def test_a_working_tree_is_checked_and_compared_and_nothing_else(client: TestClient, lab: Lab, clone: Path) -> None:
    sha = send(client, patch_of(clone)).json()["sha"]
    assert errors(submit(client, sha, kinds=["bench"])).keys() == {"kinds"}
    assert errors(submit(client, sha, kinds=["check", "profile"])).keys() == {"kinds"}
    assert errors(submit(client, sha, kinds=["check"])).keys() == {"base"}, "its commit status would go to nobody"
    assert errors(submit(client, "main", base=sha)).keys() >= {"base"}
    made = submit(client, sha)
    assert made.status_code == 201, made.text
    assert [(job["kind"], job["commit_sha"], job["base_sha"]) for job in jobs(client, made.json()["id"])] == [
        ("check", sha, None),
        ("compare", sha, lab.shas[-1]),
    ]


def test_a_working_tree_is_measured_whatever_is_unchanged(client: TestClient, lab: Lab, clone: Path) -> None:
    """Its commit has the sources of `cube` that the base was checked with."""
    body = {"repository": "kernels", "commits": "main", "device": "cpu", "operators": ["cube"], "kinds": ["check"]}
    client.post(f"{API}/submissions", json=body)
    sha = send(client, patch_of(clone)).json()["sha"]
    made = submit(client, sha, operators=["cube"])
    assert [(job["kind"], job["state"]) for job in jobs(client, made.json()["id"])] == [
        ("check", "queued"),
        ("compare", "queued"),
    ]


def test_a_worker_gets_the_patch_with_the_job(client: TestClient, lab: Lab, clone: Path) -> None:
    content = patch_of(clone)
    sha = send(client, content).json()["sha"]
    (check, _) = jobs(client, submit(client, sha).json()["id"])
    with lab.database.session() as session:
        claimed = runs.begin_run(session, check["id"], lab.worker)
    assert claimed is not None
    patch = claimed.request.patch
    assert patch is not None
    assert (claimed.request.sha, patch.base_sha, patch.content) == (sha, lab.shas[-1], content)


@pytest.fixture
def measured(client: TestClient, lab: Lab, clone: Path, settings: Settings) -> str:
    """A working tree that is wrong and slower, measured beside a measured history; its commit."""
    cells = {(variant, CASES[0]): 10_000.0 for variant in VARIANTS}
    for number in range(len(lab.shas)):
        lab.bench(number, cells)
        lab.check(number, dict.fromkeys(cells, Status.OK))
    sha = str(send(client, patch_of(clone)).json()["sha"])
    made = jobs(client, submit(client, sha).json()["id"])
    end(lab, made[0]["id"], checked(lab, Status.WRONG))
    end(lab, made[1]["id"], slow(lab))
    Judge(settings, lab.database).sweep()
    follow_branches(lab.database, settings, lab.repository)
    return sha


def test_its_outcome_is_told_at_its_jobs_and_enters_no_history(client: TestClient, lab: Lab, measured: str) -> None:
    """One test, because measuring a history and the working tree takes longer than all that is read here."""
    assert_enters_no_history(client, lab, measured)
    assert_is_at_its_jobs(client, measured)
    assert_is_reported(client, measured)


def assert_enters_no_history(client: TestClient, lab: Lab, measured: str) -> None:
    def get(path: str, **query: Any) -> Any:
        answer = client.get(f"{API}{path}", params={"repository": "kernels", **query})
        assert answer.status_code == 200, answer.text
        return answer.json()

    assert measured not in {row["sha"] for row in get("/commits", limit=200)["items"]}
    assert get("/search", q=measured[:12])["items"] == []
    assert get("/search", q="Working tree")["items"] == []
    cells = get("/overview", device="test-cpu")["items"]
    assert {cell["check_status"] for cell in cells if cell["commit_sha"]} <= {"ok", None}
    assert measured not in {cell["commit_sha"] for cell in cells}
    for verdict in ("suspected", "confirmed"):
        rows = get("/regressions", state="any", branch="*", verdict=verdict)["items"]
        assert measured not in {sha for row in rows for sha in (row["base_sha"], row["head_sha"])}
    assert measured not in client.get(f"{API}/export", params={"repository": "kernels", "format": "csv"}).text
    assert all(measured not in str(row) for row in get("/traces")["items"])
    for table in ("results", "points", "comparisons", "traces", "builds"):
        with lab.database.session() as session:
            sql = {
                "results": "SELECT count(*) FROM results JOIN commits ON commits.id = commit_id WHERE sha = :sha",
                "points": "SELECT count(*) FROM points JOIN commits ON commits.id = commit_id WHERE sha = :sha",
                "comparisons": "SELECT count(*) FROM comparisons",
                "traces": "SELECT count(*) FROM traces",
                "builds": "SELECT count(*) FROM builds JOIN commits ON commits.id = commit_id WHERE sha = :sha",
            }[table]
            assert session.scalar(text(sql), {"sha": measured}) == 0, table


def assert_is_at_its_jobs(client: TestClient, measured: str) -> None:
    (check, compare) = sorted(
        job["id"]
        for job in client.get(f"{API}/jobs", params={"limit": 200}).json()["items"]
        if job["commit_sha"] == measured
    )
    outcome = client.get(f"{API}/jobs/{check}/outcome").json()["outcome"]
    assert {finding["status"] for finding in outcome["findings"]} == {"wrong"}
    assert outcome["catalogue"] is None
    assert len(client.get(f"{API}/jobs/{compare}/outcome").json()["outcome"]["comparisons"]) == 1
    assert client.get(f"{API}/jobs/1/outcome").status_code == 404, "other jobs have results"
    pages = [client.get(f"/jobs/{number}", params={"repository": "kernels"}) for number in (check, compare)]
    assert [page.text.count('data-finding="wrong"') for page in pages] == [len(VARIANTS), 0]
    assert [page.text.count("data-patch") for page in pages] == [1, 1]
    assert CASES[0].split(",")[0] in pages[1].text
    assert client.get(f"/commits/{measured}", params={"repository": "kernels"}).status_code == 200


def assert_is_reported(client: TestClient, measured: str) -> None:
    submissions = client.get(f"{API}/submissions", params={"repository": "kernels", "limit": 200}).json()["items"]
    (own,) = (row["id"] for row in submissions if row["request"].get("commits") == measured)
    report = client.get(f"{API}/submissions/{own}/report").json()
    assert (report["exit_code"], report["counts"]) == (1, {"wrong": len(VARIANTS), "slower": 1})
    assert report["results"] == {"wrong": len(VARIANTS)}
    assert client.get(f"/runs/{own}", params={"repository": "kernels"}).status_code == 200


def test_it_is_deleted_some_days_after_its_last_use(
    client: TestClient, lab: Lab, measured: str, settings: Settings
) -> None:
    cleaner = RepositoryCleaner(settings, lab.database)
    before = {table: count(lab.database, table) for table in TABLES}
    cleaner.sweep()
    assert {table: count(lab.database, table) for table in TABLES} == before
    with lab.database.session() as session:
        session.execute(text("UPDATE patches SET used_at = now() - interval '8 days'"))
        session.execute(text(f"UPDATE jobs SET state = 'running' WHERE {OF_PATCH}"))
    cleaner.sweep()
    assert count(lab.database, "patches") == 1, "a job still needs it"
    with lab.database.session() as session:
        session.execute(text(f"UPDATE jobs SET state = 'done' WHERE {OF_PATCH}"))
    cleaner.sweep()
    after = {table: count(lab.database, table) for table in TABLES}
    gone = {"patches": 1, "patch_outcomes": 2, "jobs": 2, "submissions": 1, "runs": 2}
    assert {table: before[table] - after[table] for table in TABLES} == gone
    assert client.get(f"{API}/commits/{measured}", params={"repository": "kernels"}).status_code == 404


def test_using_a_patch_again_keeps_it(client: TestClient, lab: Lab, clone: Path) -> None:
    sha = send(client, patch_of(clone)).json()["sha"]
    for use in (lambda: send(client, patch_of(clone)), lambda: submit(client, sha)):
        with lab.database.session() as session:
            session.execute(text("UPDATE patches SET used_at = now() - interval '8 days'"))
        use()
        with lab.database.session() as session:
            assert patches.delete_expired(session, 7 * 86_400) == 0


def test_a_commit_that_git_deleted_is_made_again(client: TestClient, lab: Lab, clone: Path, settings: Settings) -> None:
    sha = send(client, patch_of(clone)).json()["sha"]
    shutil.rmtree(mirror_path(str(lab.source), settings.home))
    assert submit(client, sha).status_code == 201


class PatchWorker:
    """Ends every job of a patch with the outcome of its kind."""

    def __init__(self, lab: Lab, outcomes: dict[str, Outcome | None]) -> None:
        self.lab, self.outcomes = lab, outcomes
        self.stop = threading.Event()
        self.thread = threading.Thread(target=self.run)

    def run(self) -> None:
        while not self.stop.wait(0.05):
            with self.lab.database.session() as session:
                waiting = list_jobs(session, JobFilter(state="queued")).items
            for job in waiting:
                outcome = self.outcomes[job.kind]
                if outcome is not None:
                    end(self.lab, job.id, outcome)
                    continue
                run_id = self.lab.begin(job.id)
                with self.lab.database.session() as session:
                    runs.fail_run(session, run_id, "it could not run", retry=False)


@pytest.fixture
def worker(lab: Lab) -> Iterator[PatchWorker]:
    """A worker whose comparison is slower; its check passes."""
    worker = PatchWorker(lab, {"check": checked(lab), "compare": slow(lab)})
    worker.thread.start()
    yield worker
    worker.stop.set()
    worker.thread.join()


def attempt(settings: Settings, clone: Path, *words: str) -> Result:
    environment = {"WARPWATCH_URL": settings.server_url, "WARPWATCH_TOKEN": "", "COLUMNS": "200"}
    return CliRunner().invoke(commands, ["try", "--repository", str(clone), *words], env=environment)


def test_the_command_prints_the_verdict_of_the_servers_device(
    served: Settings, clone: Path, lab: Lab, worker: PatchWorker
) -> None:
    slower = attempt(served, clone, "--device", "test-cpu")
    assert slower.exit_code == 1, slower.output
    assert f"{CASES[0]}  v1" in slower.output
    assert "0 wrong, 1 slower" in slower.output
    assert "32 → 40" in slower.output, "what changed in machine code"
    worker.outcomes["compare"] = slow(lab, times=1.0)
    same = attempt(served, clone, "square", "--server", served.server_url)
    assert same.exit_code == 0, same.output
    worker.outcomes["check"] = checked(lab, Status.WRONG)
    assert attempt(served, clone, "--device", "test-cpu").exit_code == 1
    worker.outcomes["check"] = None
    assert attempt(served, clone, "--device", "test-cpu").exit_code == 2


def test_the_command_says_what_it_cannot_do(served: Settings, clone: Path, worker: PatchWorker) -> None:
    assert "test-cpu" in attempt(served, clone, "--device", "no-such-device").output
    assert attempt(served, clone, "--device", "no-such-device").exit_code == 2
    assert attempt(served, clone, "--device", "test-cpu", "--definitions", str(clone)).exit_code == 2
    assert attempt(served, clone, "--device", "test-cpu", "--case", "rows=3").exit_code == 2
    run_git(clone, "checkout", "--quiet", ".")
    assert attempt(served, clone, "--device", "test-cpu").exit_code == 2, "nothing differs"
