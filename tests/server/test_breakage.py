"""What was right and is broken now: suspected from checks, confirmed and bisected by checks."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import redirect_stdout
from dataclasses import replace
from io import StringIO
from pathlib import Path
from xml.etree.ElementTree import fromstring

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import text

from tests.builders import CPU, Lab
from tests.planted import plant
from tests.server.simulated import V1, V2, V3, Machine, Truth, write_history
from warpwatch import git
from warpwatch.cli.findings import show_findings
from warpwatch.contract.words import BranchKind, Status
from warpwatch.db.branches import NewBranch, replace_branches
from warpwatch.db.database import Database
from warpwatch.server.judge import Judge
from warpwatch.settings import Settings

Build = Callable[[Truth], Machine]
FORMS = ("md", "junit.xml", "sarif", "github.json")


@pytest.fixture
def build(client: TestClient, settings: Settings, database: Database, tmp_path: Path) -> Build:
    def make(truth: Truth) -> Machine:
        source = tmp_path / "history" / "kernels"
        shas = write_history(source, dict.fromkeys(range(8), "kernels/square.py"), 8)
        git.update_mirror(str(source), settings.home)
        return Machine(client, Lab(database, source, shas, tmp_path), Judge(settings, database), truth)

    return make


def test_all_that_broke_at_once_is_one_regression(build: Build) -> None:
    worker = build(Truth(broken={V1: (3, Status.WRONG), V2: (3, Status.CRASHED)}, unbuildable=frozenset({2, 4})))
    for number in (0, 7):
        worker.check(number)
        worker.work()
    # Commit 2 does not build, so nobody can tell whether it broke there or in commit 3.
    assert worker.found() == {("broken", 1, 3)}
    (row,) = worker.rows()
    assert (row["ratio"], row["series"], row["cause"]) == (None, 2, "status")
    detail = worker.client.get(f"/api/v1/regressions/{row['id']}").json()
    statuses = {(one["variant"], one["base_status"], one["head_status"]) for one in detail["series"]}
    assert statuses == {("v1", "ok", "wrong"), ("v2", "ok", "crashed")}
    assert f"Not measurable: {worker.lab.shas[2][:8]}" in worker.notes(row["id"])[-1]


def test_what_broke_later_is_found_too(build: Build) -> None:
    worker = build(Truth(broken={V1: (2, Status.WRONG), V2: (5, Status.TIMED_OUT)}))
    for number in (0, 7):
        worker.check(number)
        worker.work()
    assert worker.found() == {("broken", 1, 2), ("broken", 4, 5)}


def test_a_build_that_fails_from_a_commit_on_is_the_thing_itself(build: Build) -> None:
    worker = build(Truth(broken=dict.fromkeys((V1, V2, V3), (4, Status.BUILD_FAILED))))
    for number in (7, 0):
        worker.check(number)
        worker.work()
    assert worker.found() == {("broken", 3, 4)}


def test_what_fails_once_is_flaky(build: Build) -> None:
    worker = build(Truth())
    worker.check(0)
    worker.lab.check(7, {V1: Status.WRONG, V2: Status.OK})
    worker.work()
    assert worker.found() == set()
    (row,) = worker.rows("dismissed")
    assert len(worker.notes(row["id"])) == 1
    worker.check(6)
    assert worker.waiting() == []


def test_a_new_environment_breaks_nothing(build: Build) -> None:
    """From a new driver on commit 7 is wrong, and so would be every commit before it."""
    worker = build(Truth())
    worker.check(0)
    worker.lab.environment = replace(CPU, key="e" * 64, facts={"torch": "2.14.0"})
    worker.truth = Truth(broken={V1: (0, Status.WRONG)})
    worker.check(7)
    worker.work()
    assert worker.found() == set()
    (row,) = worker.rows("dismissed")
    assert "the environment changed, not the code" in " ".join(worker.notes(row["id"]))


def test_what_breaks_in_a_new_environment_by_a_commit_is_found(build: Build) -> None:
    worker = build(Truth(broken={V1: (5, Status.WRONG)}))
    worker.check(0)
    worker.lab.environment = replace(CPU, key="e" * 64, facts={"torch": "2.14.0"})
    worker.check(7)
    worker.work()
    assert worker.found() == {("broken", 4, 5)}


def test_what_says_nothing_alarms_nobody(build: Build) -> None:
    worker = build(Truth())
    for number, status in enumerate((Status.OK, Status.UNSUPPORTED, Status.SKIPPED, Status.OK)):
        worker.lab.check(number, {V1: status})
    worker.lab.check(5, {V2: Status.WRONG})
    worker.judge.sweep()
    assert worker.waiting() == []


def test_a_report_over_several_commits_says_where_what_failed_is_right_again(client: TestClient, lab: Lab) -> None:
    """The page of the repository says that all checks pass, which a report of its newest commit must not hide."""
    jobs = [lab.check(index, {V1: status}) for index, status in ((1, Status.WRONG), (2, Status.WRONG), (3, Status.OK))]
    run = {"jobs": jobs, "run": jobs[0]}
    sql = "UPDATE jobs SET judged_at = now(), submission_id = (SELECT submission_id FROM jobs WHERE id = :run) "
    with lab.database.session() as s:
        s.execute(text(sql + "WHERE id = ANY(:jobs)"), run)
        number = s.scalar(text("SELECT submission_id FROM jobs WHERE id = :run"), run)
    right = lab.shas[3]
    report = client.get(f"/api/v1/submissions/{number}/report").json()
    assert [(row["head_sha"], row["right_at"]) for row in report["rows"]] == [
        (sha, right) for sha in (lab.shas[1], lab.shas[2])
    ]
    passing = ("success", 0, "Checks pass · 2 fixed later"), 0, "success", 0, "plain", ["wrong, fixed later"] * 2
    assert conclusions(client, number) == passing, "what counts is how the range ends"
    for path in (f"/runs/{number}", *(f"/api/v1/submissions/{number}/report.{form}" for form in FORMS)):
        assert re.sub(r"<[^>]+>", "", client.get(path).text).count(f"right again at {right[:8]}") >= 2, path
    failing = ("failure", 1, "2 wrong"), 1, "failure", 1, "failing", ["wrong"] * 2
    with lab.database.session() as s:
        branch = NewBranch("other", BranchKind.BRANCH, True, lab.shas[2], places={lab.shas[1]: 1, lab.shas[2]: 2})
        replace_branches(s, lab.repository, [branch], {}, key="1", earlier_key=None)
    assert conclusions(client, number) == failing, "another branch repairs nothing"
    with lab.database.session() as s:
        branch = replace(branch, name="main", places=branch.places | {right: 3})
        replace_branches(s, lab.repository, [branch], {}, key="2", earlier_key="1")
    assert conclusions(client, number) == passing
    with lab.database.session() as s:
        s.execute(text("DELETE FROM jobs WHERE id = :id"), {"id": jobs[2]})
    assert conclusions(client, number) == failing, "wrong at the newest commit"


def test_a_slow_down_that_the_end_of_a_range_does_not_show_is_history(client: TestClient, lab: Lab) -> None:
    jobs = [lab.bench(index, {V1: times}) for index, times in ((0, 1000.0), (1, 1500.0), (2, 1000.0))]
    change = {"id": plant(lab, 0, 1, 1.5, [V1]), "fix": lab.commits[lab.shas[2]], "jobs": jobs[:2], "last": jobs[2]}
    sql = "UPDATE jobs SET judged_at = now(), submission_id = (SELECT submission_id FROM jobs WHERE id = :last) "
    with lab.database.session() as s:
        s.execute(text("UPDATE regression_series SET fixed_by_commit_id = :fix WHERE regression_id = :id"), change)
        number = s.scalar(text("SELECT submission_id FROM jobs WHERE id = :last"), change)
    assert "is known at the end" in client.get(f"/api/v1/submissions/{number}/report.md").text, "it is not judged yet"
    with lab.database.session() as s:
        other = s.scalar(text("SELECT min(submission_id) FROM jobs WHERE id <> :last"), change)
        s.execute(
            text("UPDATE jobs SET judged_at = now(), submission_id = :other WHERE id = ANY(:jobs)"),
            change | {"other": other},
        )
    words = f"submission {other} ends at the slow-down"
    assert conclusions(client, other) == (("failure", 1, "1 slower"), 1, "failure", 1, "plain", ["slower"]), words
    with lab.database.session() as s:
        s.execute(text(sql + "WHERE id = :last OR id = ANY(:jobs)"), change)
    over = ("success", 0, "Checks pass · 1 fixed later"), 0, "success", 0, "plain", ["slower, fixed later"]
    assert conclusions(client, number) == over


def test_a_range_that_is_compared_with_a_base_ends_as_its_newest_commit(client: TestClient, lab: Lab) -> None:
    times = [1000.0 + number for number in range(12)]
    slower = {V1: (times, [1.5 * time for time in times])}
    jobs = [lab.submit("compare", index, base=0) for index in (1, 2)]
    for job, rounds in zip(jobs, (slower, {V1: (times, times)}), strict=True):
        lab.compare(job, rounds)
    with lab.database.session() as s:
        number = s.scalar(text("SELECT max(submission_id) FROM jobs"))
        s.execute(text("UPDATE jobs SET judged_at = now(), submission_id = :number"), {"number": number})
    over = "No slow-downs in 1 comparison · 1 fixed later"
    assert conclusions(client, number) == (("success", 0, over), 0, "success", 0, "plain", ["slower, fixed later"])


def conclusions(client: TestClient, number: int) -> tuple[object, ...]:
    """What each form of a report says of the whole, and the words of the command line about its findings."""
    report = client.get(f"/api/v1/submissions/{number}/report").json()
    forms = {form: client.get(f"/api/v1/submissions/{number}/report.{form}") for form in FORMS}
    icon = {"success": "✅", "failure": "❌"}[report["conclusion"]]
    assert f"### {icon} Warpwatch: {report['summary']}" in forms["md"].text
    invocation = forms["sarif"].json()["runs"][0]["invocations"][0]
    page = client.get(f"/runs/{number}").text
    assert f'data-state="{report["conclusion"]}"' in page
    (tone,) = set(re.findall(r'<th scope="row"><span class="statement (\w+) badge"', page))
    with redirect_stdout(StringIO()) as printed:
        show_findings(report)
    return (
        (report["conclusion"], report["exit_code"], report["summary"]),
        len(fromstring(forms["junit.xml"].text).findall(".//failure")),
        forms["github.json"].json()["conclusion"],
        invocation["exitCode"],
        tone,
        [name.strip() for name in re.findall(r"^  ([a-z ,]+)[^:]*: square v1", printed.getvalue(), re.MULTILINE)],
    )


def test_pages_and_reports_name_the_same_cause_of_a_suspicion(client: TestClient, lab: Lab) -> None:
    for index in (0, 1):
        job = lab.bench(index, {V1: 1000.0})
    number = plant(lab, 0, 1, 1.3, [V1], cause="code")
    with lab.database.session() as s:
        submission = s.scalar(text("SELECT submission_id FROM jobs WHERE id = :id"), {"id": job})
    (row,) = client.get(f"/api/v1/submissions/{submission}/report").json()["rows"]
    assert row["decided_by"].startswith("suspected from a change of code, then ")
    assert "from a change of code" in client.get(f"/regressions/{number}").text
