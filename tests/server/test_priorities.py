"""What goes first: what somebody waits for, with the trials that its answer depends on, before everything else."""

from __future__ import annotations

from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import text

from tests.builders import CASES, Lab
from warpwatch import git
from warpwatch.contract.priorities import AWAITED, CONFIRM, CONFIRM_CODE, HURRIED, ORDINARY, SCHEDULED
from warpwatch.contract.spec import JobSpec
from warpwatch.contract.words import Purpose, Verdict
from warpwatch.db import regressions, runs, submissions, trials
from warpwatch.db.models import JobRecord
from warpwatch.server.history.branches import follow_branches
from warpwatch.settings import SettingError, Settings, load_settings

V1 = ("v1", CASES[0])


def suspect(lab: Lab) -> int:
    """A suspicion between the first two commits, both measured; its id."""
    lab.bench(0, {V1: 1000.0})
    lab.bench(1, {V1: 1500.0})
    with lab.database.session() as session:
        series = session.scalars(text("SELECT id FROM series ORDER BY id LIMIT 1")).one()
        operator = session.scalars(text("SELECT operator_id FROM jobs LIMIT 1")).one()
        number = regressions.open_suspicion(
            session,
            operator_id=operator,
            device_id=lab.device,
            direction="slower",
            ratio=1.5,
            series=[(series, 1.5)],
            base_commit_id=lab.commits[lab.shas[0]],
            head_commit_id=lab.commits[lab.shas[1]],
        )
    assert number is not None
    return number


def ask(lab: Lab, regression: int, purpose: Purpose = Purpose.CONFIRM, priority: int = CONFIRM) -> int:
    """The job of a trial of the suspicion."""
    ends = (lab.commits[lab.shas[0]], lab.commits[lab.shas[1]])
    with lab.database.session() as session:
        operator = session.scalars(text("SELECT operator_id FROM regressions")).one()
        place = (regression, lab.repository, operator, lab.device)
        return trials.ask(session, trials.NewTrial(*place, "compare", purpose, *ends, JobSpec(pairs=[V1]), priority))


def priority(lab: Lab, job_id: int) -> int:
    with lab.database.session() as session:
        return session.get_one(JobRecord, job_id).priority


def claim(lab: Lab) -> int:
    """The job that a worker of the device gets next."""
    with lab.database.session() as session:
        claimed = runs.claim_next(session, lab.device, lab.worker)
    assert claimed is not None
    return claimed.job_id


def hurry(lab: Lab, expected: int | None) -> None:
    """Trials may take all of the device: this job is put in front of ordinary work, or none."""
    with lab.database.session() as session:
        assert trials.keep_share(session, lab.device, 1.0) == expected


@pytest.mark.parametrize(
    ("asked", "expected"),
    [({}, ORDINARY), ({"base": "parent"}, AWAITED), ({"base": "parent", "priority": -2}, -2), ({"priority": 7}, 7)],
)
def test_what_is_held_against_a_baseline_goes_first(
    client: TestClient, lab: Lab, asked: dict[str, Any], expected: int
) -> None:
    body = {"repository": "kernels", "commits": "main", "device": "cpu", "kinds": ["check"], "operators": ["square"]}
    made = client.post("/api/v1/submissions", json=body | asked).json()["id"]
    jobs = client.get("/api/v1/jobs", params={"submission": made}).json()["items"]
    assert {job["priority"] for job in jobs} == {expected}


@pytest.mark.parametrize(("waiting", "expected"), [(ORDINARY, CONFIRM), (SCHEDULED, CONFIRM), (AWAITED, AWAITED)])
def test_a_trial_inherits_the_priority_of_who_waits_for_it(lab: Lab, waiting: int, expected: int) -> None:
    regression = suspect(lab)
    with lab.database.session() as session:
        session.execute(
            text("UPDATE submissions SET priority = :priority WHERE id = (SELECT max(id) FROM submissions)"),
            {"priority": waiting},
        )
    assert priority(lab, ask(lab, regression)) == expected


def test_more_rounds_of_an_unsure_suspicion_wait_for_what_was_asked_for_before(lab: Lab) -> None:
    regression = suspect(lab)
    with lab.database.session() as session:
        session.execute(text("UPDATE submissions SET priority = :priority"), {"priority": AWAITED})
    head = lab.submit("bench", 1)
    first, again = ask(lab, regression), ask(lab, regression, Purpose.RETRY)
    assert [claim(lab) for _ in range(3)] == [first, head, again]


def test_a_repeat_waits_for_the_checks_and_benches_of_its_head(lab: Lab) -> None:
    """A comparison that CI waits for left pairs unsure; the same commit has yet to be benched, with all its signals."""
    lab.bench(0, {V1: 1000.0})
    compared = lab.submit("compare", 1, base=0)
    with lab.database.session() as session:
        session.execute(text("UPDATE jobs SET priority = :priority"), {"priority": AWAITED})
    assert claim(lab) == compared
    own, other = lab.submit("bench", 1), lab.submit("bench", 2)
    with lab.database.session() as session:
        submissions.repeat(session, compared, [V1], 36)
    repeated, later = other + 1, lab.submit("bench", 3)
    hurry(lab, None)
    assert claim(lab) == own
    hurry(lab, repeated)
    assert [claim(lab) for _ in range(3)] == [repeated, other, later]


def test_a_repeat_needs_no_share_to_get_its_turn(lab: Lab) -> None:
    compared = lab.submit("compare", 1, base=0)
    with lab.database.session() as session:
        session.execute(text("UPDATE jobs SET priority = :priority"), {"priority": AWAITED})
    assert claim(lab) == compared
    earlier = lab.submit("bench", 2)
    with lab.database.session() as session:
        submissions.repeat(session, compared, [V1], 36)
    later = lab.submit("bench", 3)
    assert [claim(lab) for _ in range(3)] == [earlier, compared + 2, later]


@pytest.mark.parametrize(("purpose", "goes_first"), [(Purpose.CONFIRM, True), (Purpose.PROVE, False)])
def test_a_trial_that_nobody_waits_for_stays_behind_the_newest_commit(
    lab: Lab, settings: Settings, purpose: Purpose, goes_first: bool
) -> None:
    git.update_mirror(str(lab.source), settings.home)
    regression = suspect(lab)
    follow_branches(lab.database, settings, lab.repository)
    newest, other = lab.submit("bench", len(lab.shas) - 1), lab.submit("bench", 2)
    trial = ask(lab, regression, purpose)
    hurry(lab, trial if goes_first else None)
    assert claim(lab) == (trial if goes_first else newest)
    hurry(lab, None if goes_first else trial)
    assert {claim(lab), claim(lab)} == {trial, newest, other} - {trial if goes_first else newest}


def test_nobody_waits_for_a_bisection(lab: Lab) -> None:
    regression = suspect(lab)
    with lab.database.session() as session:
        session.execute(text("UPDATE submissions SET priority = :priority"), {"priority": AWAITED})
        regressions.decide(session, regression, Verdict.CONFIRMED, ratio=1.5, low=1.4, high=1.6, series=[])
    assert priority(lab, ask(lab, regression, Purpose.BISECT)) == CONFIRM


@pytest.mark.parametrize(("share", "is_hurried"), [(0.0, False), (0.2, True), (1.0, True)])
def test_trials_get_their_share_of_a_busy_device(lab: Lab, share: float, is_hurried: bool) -> None:
    trial = ask(lab, suspect(lab))
    with lab.database.session() as session:
        assert trials.keep_share(session, lab.device, share) is None, "nothing else waits, so it is next anyway"
    lab.submit("bench", 2)
    with lab.database.session() as session:
        assert trials.keep_share(session, lab.device, share) == (trial if is_hurried else None)
    assert priority(lab, trial) == (HURRIED if is_hurried else CONFIRM)


def test_a_trial_of_changed_code_alone_waits_for_an_idle_device(lab: Lab) -> None:
    regression = suspect(lab)
    of_code = ask(lab, regression, priority=CONFIRM_CODE)
    lab.submit("bench", 2)
    with lab.database.session() as session:
        assert trials.keep_share(session, lab.device, 1.0) is None
    of_times = ask(lab, regression)
    with lab.database.session() as session:
        assert trials.keep_share(session, lab.device, 1.0) == of_times
    assert priority(lab, of_code) == CONFIRM_CODE


def test_the_share_is_a_setting() -> None:
    assert load_settings({}).trial_share == 0.2
    assert load_settings({"WARPWATCH_TRIAL_SHARE": "0.5"}).trial_share == 0.5
    with pytest.raises(SettingError):
        load_settings({"WARPWATCH_TRIAL_SHARE": "1.5"})
