"""What regressed between two commits and is still open: grouped by cause, worst first, with what is common."""

from __future__ import annotations

import csv
import io
import re
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import update

from tests.builders import CASES, GPU, Lab, run_git
from tests.planted import plant, try_out
from tests.rewording import stored
from tests.server.test_code import problem
from warpwatch import git
from warpwatch.contract.words import Status
from warpwatch.db.models import CommitRecord, JobRecord, RegressionRecord, RepositoryRecord, SubmissionRecord
from warpwatch.settings import Settings

CELLS = [(variant, case) for variant in ("v1", "v2", "v3") for case in CASES]


def events(client: TestClient, **filters: Any) -> list[dict[str, Any]]:
    answer = client.get("/api/v1/events", params={"repository": "kernels"} | filters)
    assert answer.status_code == 200, answer.text
    items: list[dict[str, Any]] = answer.json()["items"]
    return items


def ids(rows: list[dict[str, Any]]) -> list[list[int]]:
    """Ids of the regressions of every event."""
    return [[row["id"] for row in event["regressions"]] for event in rows]


def listed(client: TestClient, **filters: Any) -> list[int]:
    answer = client.get("/api/v1/regressions", params={"repository": "kernels"} | filters)
    assert answer.status_code == 200, answer.text
    return [row["id"] for row in answer.json()["items"]]


def test_one_range_and_direction_is_one_event(client: TestClient, lab: Lab) -> None:
    square = plant(lab, 1, 2, 1.2)
    cube = plant(lab, 1, 2, 1.5, operator="cube")
    faster = plant(lab, 1, 2, 0.5)
    lab.switch(GPU)
    gpu = plant(lab, 1, 2, 1.3)
    later = plant(lab, 2, 3, 1.9)
    broken = plant(lab, 3, 4, None)
    found = events(client)
    assert ids(found) == [[broken], [later], [cube, gpu, square], [faster]]
    assert (found[2]["ratio"], found[2]["operators"], found[2]["devices"]) == (
        1.5,
        ["cube", "square"],
        ["test-cpu", "test-gpu"],
    )
    assert (found[0]["ratio"], found[0]["direction"]) == (None, "broken")
    assert [event["id"] for event in found] == [broken, later, cube, faster]


def test_wide_ranges_belong_to_what_lies_inside_them(client: TestClient, lab: Lab) -> None:
    narrow = plant(lab, 2, 3, 1.3)
    lab.switch(GPU)
    wide = plant(lab, 0, 5, 1.25, settled_at=None)
    beside = plant(lab, 0, 5, 1.1, operator="cube", settled_at=None)
    same_head = plant(lab, 1, 3, 1.2, operator="cube")
    elsewhere = plant(lab, 0, 2, 1.4, operator="cube")
    other_way = plant(lab, 0, 5, 0.7)
    found = events(client)
    # Of one range and direction, so together; and the narrowest inside it is what they are one with.
    assert ids(found) == [[elsewhere], [narrow, wide, same_head, beside], [other_way]]
    event = next(event for event in found if narrow in [row["id"] for row in event["regressions"]])
    assert (event["base_sha"], event["head_sha"], event["commits_between"]) == (lab.shas[2], lab.shas[3], 0)


def test_an_event_is_shown_whole_whatever_was_filtered(client: TestClient, lab: Lab) -> None:
    square = plant(lab, 1, 2, 1.2, state="fixed")
    cube = plant(lab, 1, 2, 1.5, operator="cube")
    plant(lab, 1, 2, 1.6, operator="cube", direction="faster", state="accepted")
    suspected = plant(lab, 3, 4, 1.7, verdict="suspected")
    assert ids(events(client, state="open")) == [[cube, square]]
    assert [event["open"] for event in events(client, state="open")] == [1]
    assert listed(client, state="open") == [cube]
    assert ids(events(client, operator="square")) == [[cube, square]]
    assert ids(events(client, verdict="suspected")) == [[suspected]]


def test_between_two_commits_and_days(client: TestClient, lab: Lab, settings: Settings) -> None:
    first, second, wide = plant(lab, 0, 1, 1.1), plant(lab, 2, 3, 1.2), plant(lab, 1, 4, 1.3, operator="cube")
    shas = lab.shas
    assert listed(client, **{"from": shas[0], "to": shas[1]}) == [first]
    assert listed(client, **{"from": shas[1][:8]}) == [wide, second]
    assert listed(client, to=shas[2]) == [wide, first]
    assert listed(client, **{"from": shas[4]}) == []
    git.update_mirror(str(lab.source), settings.home)
    assert listed(client, **{"from": "main~3"}) == [wide, second]
    with lab.database.session() as s:
        for number, sha in enumerate(shas):
            when = datetime(2026, 3, 1, 12, tzinfo=UTC) + timedelta(days=number)
            s.execute(update(CommitRecord).where(CommitRecord.sha == sha).values(authored_at=when))
    assert listed(client, **{"from": "2026-03-03"}) == [wide, second]
    assert listed(client, to="2026-03-02") == [first]
    assert listed(client, to="2026-03-03") == [wide, first]
    assert listed(client, **{"from": "2025-01-01"}) == [wide, second, first]
    assert listed(client, to="2025-01-01") == [], "no commit was written before that day"
    fault = problem(
        client.get("/api/v1/events", params={"repository": "kernels", "from": "gone", "to": "2026-13-01"}), 422
    )
    assert [
        (error["field"], "gone" in error["message"] or "not a date" in error["message"]) for error in fault["errors"]
    ] == [
        ("from", True),
        ("to", True),
    ]


def test_a_commit_that_nobody_measured_bounds_too(client: TestClient, lab: Lab, settings: Settings) -> None:
    early = Lab(lab.database, lab.source, lab.shas[:3], lab.folder)
    assert early.commits
    plant(lab, 1, 2, 1.3)
    with lab.database.session() as s:
        s.query(CommitRecord).where(CommitRecord.sha == lab.shas[4]).delete()
    answer = problem(client.get("/api/v1/regressions", params={"repository": "kernels", "from": lab.shas[4]}), 422)
    assert "was not fetched yet" in answer["errors"][0]["message"]
    git.update_mirror(str(lab.source), settings.home)
    assert listed(client, **{"from": lab.shas[4]}) == []
    assert len(listed(client, to=lab.shas[4])) == 1
    assert run_git(lab.source, "rev-parse", "main").strip() == lab.shas[5]


def test_who_has_it_and_what_is_overdue(client: TestClient, lab: Lab) -> None:
    today = datetime.now(UTC).date()
    late = plant(lab, 0, 1, assignee="ann", due_on=today - timedelta(days=1))
    plant(lab, 1, 2, assignee="ann", due_on=today - timedelta(days=1), state="fixed")
    due = plant(lab, 2, 3, assignee="bea", due_on=today + timedelta(days=1))
    free = plant(lab, 3, 4)
    assert listed(client, overdue=True) == [late]
    assert listed(client, assignee="bea") == [due]
    assert listed(client, assignee="nobody") == [free]
    page = client.get("/regressions", params={"assignee": "ann", "overdue": "true"}).text
    assert f'href="/regressions/{late}?' in page
    assert f'href="/regressions/{due}?' not in page
    assert re.search(r'<option value="ann" selected>', page)


@pytest.mark.parametrize(
    ("field", "text"),
    [
        ("to", "9999-12-31"),
        ("from", "2026-02-30"),
        ("from", "--all"),
        ("from", "main..main"),
        ("to", "\0"),
        ("from", "ffffffff"),
    ],
)
def test_what_is_no_commit_and_no_day_is_named(
    client: TestClient, lab: Lab, settings: Settings, field: str, text: str
) -> None:
    git.update_mirror(str(lab.source), settings.home)
    plant(lab, 0, 1)
    for path in ("events", "regressions", "regressions.csv"):
        fault = problem(client.get(f"/api/v1/{path}", params={"repository": "kernels", field: text}), 422)
        assert [error["field"] for error in fault["errors"]] == [field]
    page = client.get("/regressions", params={field: text})
    assert page.status_code == 200
    assert f'id="{field}-error"' in page.text
    assert "/regressions/1?" not in page.text, "a filter that cannot be used must not show everything"


def test_a_form_without_scripts_sends_its_blanks(client: TestClient, lab: Lab) -> None:
    number = plant(lab, 0, 1)
    blanks = dict.fromkeys(("from", "to", "direction", "operator", "device", "assignee", "overdue"), "")
    page = client.get("/regressions", params=blanks | {"state": "open", "verdict": "confirmed"})
    assert page.status_code == 200
    assert f"/regressions/{number}?" in page.text
    assert '<option value="zoe" selected>zoe</option>' in client.get("/regressions?assignee=zoe").text


def test_pages_hold_their_filters(client: TestClient, lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = [
        plant(lab, place % 5, place % 5 + 1, 1.1 + place / 100, operator=f"op{place:02}", state="acknowledged")
        for place in range(60)
    ]
    assert len(numbers) == 60
    first = client.get(
        "/api/v1/regressions", params={"repository": "kernels", "state": "acknowledged", "limit": 25}
    ).json()
    second = client.get(
        "/api/v1/regressions",
        params={"repository": "kernels", "state": "acknowledged", "limit": 50, "before": first["next_before"]},
    ).json()
    assert [row["id"] for row in [*first["items"], *second["items"]]] == numbers[::-1]
    assert second["next_before"] is None
    monkeypatch.setattr("warpwatch.db.regressions.MAX_PAGE", 20)
    answer = client.get("/api/v1/regressions.csv", params={"repository": "kernels", "state": "acknowledged"})
    assert [int(row["id"]) for row in csv.DictReader(io.StringIO(answer.text))] == numbers[::-1]
    assert len(events(client, limit=3)) == 3
    older = client.get("/api/v1/events", params={"repository": "kernels", "limit": 3, "before": 3}).json()
    assert len(older["items"]) == 2
    assert older["next_before"] is None
    page = client.get("/regressions", params={"state": "acknowledged", "direction": "slower", "from": lab.shas[0]}).text
    for link in re.findall(r'href="(/api/v1/(?:events|regressions\.csv)[^"]+)"', page):
        assert f"from={lab.shas[0]}" in link
        assert "state=acknowledged" in link
        assert client.get(link.replace("&amp;", "&")).status_code == 200


def test_csv_has_a_row_per_regression(client: TestClient, lab: Lab) -> None:
    plant(lab, 0, 1, None, assignee="=HYPERLINK(1)")
    plant(lab, 1, 2, 1.5, due_on=datetime(2026, 3, 1).date())
    answer = client.get("/api/v1/regressions.csv", params={"repository": "kernels", "state": "open"})
    broken, slower = csv.DictReader(io.StringIO(answer.text))
    assert (broken["direction"], broken["ratio"], broken["assignee"]) == ("broken", "", "'=HYPERLINK(1)")
    assert (slower["ratio"], slower["due_on"]) == ("1.5", "2026-03-01")


# --- what is common -------------------------------------------------------------------------------------------


def medians(factor: float, slow: list[tuple[str, str]]) -> dict[tuple[str, str], float]:
    return {cell: 10_000.0 * (factor if cell in slow else 1.0) for cell in CELLS}


@pytest.mark.parametrize(
    ("holds", "words"),
    [
        (lambda variant, case: variant == "v3", "only v3"),
        (lambda variant, case: case.endswith("bwd"), "only backward"),
        (lambda variant, case: True, "every case of square"),
        (lambda variant, case: (variant, case) in (CELLS[0], CELLS[4], CELLS[8]), ""),
    ],
)
def test_what_is_common_comes_from_what_was_measured_around(
    client: TestClient, lab: Lab, holds: Any, words: str
) -> None:
    slow = [cell for cell in CELLS if holds(*cell)]
    lab.bench(0, medians(1.4, []))
    lab.bench(2, medians(1.4, slow))
    number = plant(lab, 0, 2, 1.4, slow)
    (event,) = events(client, common=True)
    assert event["common"] == words
    page = client.get(f"/regressions/{number}").text
    assert words in page
    assert ("every affected case" in page) == bool(words)
    # The list stands at once and asks for it later.
    assert "whole=true" in client.get("/regressions").text
    assert words in client.get("/regressions", params={"whole": True}).text


def test_a_cell_that_may_have_changed_too_keeps_it_silent(client: TestClient, lab: Lab) -> None:
    slow = [cell for cell in CELLS if cell[0] == "v3"]
    lab.bench(0, medians(1.4, []))
    lab.bench(2, medians(1.4, slow) | {("v1", CASES[0]): 12_000.0})
    plant(lab, 0, 2, 1.4, slow)
    assert events(client, common=True)[0]["common"] == ""


def test_what_broke_is_told_by_checks(client: TestClient, lab: Lab) -> None:
    lab.check(0, dict.fromkeys(CELLS, Status.OK))
    bad = [cell for cell in CELLS if cell[1].endswith("bwd")]
    lab.check(1, {cell: Status.WRONG if cell in bad else Status.OK for cell in CELLS})
    number = plant(lab, 0, 1, None, bad)
    (event,) = events(client, common=True)
    assert event["common"] == "only backward"
    detail = client.get(f"/api/v1/regressions/{number}").json()
    (one, *_), row = detail["series"], detail["regression"]
    assert (row["ratio"], one["base_status"], one["head_status"], one["message"]) == (
        None,
        "ok",
        "wrong",
        stored("it was wrong"),
    )
    assert one["replay"].startswith(f"warpwatch run --commits {lab.shas[1]} --kinds check")
    page = client.get(f"/regressions/{number}").text
    assert stored("it was wrong") in page
    assert "warpwatch run --commits" in page
    assert "broken" in client.get("/overview").text
    assert "broken" in client.get("/regressions").text


# --- how it was found out, and how good the alarms are ---------------------------------------------------------


def test_trials_are_told_in_their_order(client: TestClient, lab: Lab) -> None:
    number = plant(lab, 2, 3, 1.3)
    jobs = [lab.submit("compare", 3, base=0), lab.submit("check", 1), lab.submit("compare", 3, base=2)]
    try_out(lab, number, jobs[0], "confirm", 0, 5, "changed", ratio=1.31, low=1.3, high=1.32)
    try_out(lab, number, jobs[1], "bisect", 0, 1, "skipped", message="kron.cu does not compile")
    try_out(lab, number, jobs[2], "prove", 2, 3, "pending")
    told = client.get(f"/api/v1/regressions/{number}").json()["trials"]
    assert [(one["job_id"], one["purpose"], one["answer"], one["job_kind"]) for one in told] == [
        (jobs[0], "confirm", "changed", "compare"),
        (jobs[1], "bisect", "skipped", "check"),
        (jobs[2], "prove", "pending", "compare"),
    ]
    page = client.get(f"/regressions/{number}").text
    assert stored("kron.cu does not compile") in page
    assert "Verify culprit" in page


def quality(client: TestClient) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = client.get("/api/v1/quality", params={"repository": "kernels"}).json()["items"]
    return items


def test_the_quality_of_alarms(client: TestClient, lab: Lab) -> None:
    assert quality(client) == []
    assert "No suspicions yet" in client.get("/verdicts").text
    lab.bench(2, {CELLS[0]: 1000.0})
    now = datetime.now(UTC)
    measured = now - timedelta(days=40)
    with lab.database.session() as s:
        s.execute(update(JobRecord).values(finished_at=measured))
    old: dict[str, Any] = {"created_at": measured + timedelta(hours=1), "decided_at": measured + timedelta(hours=2)}
    plant(lab, 1, 2, 1.3, **old, triaged_at=measured + timedelta(hours=5))
    plant(lab, 1, 2, 1.001, operator="cube", verdict="dismissed", created_at=now, decided_at=now)
    plant(lab, 2, 3, 1.1, operator="cube", verdict="suspected")
    everything, newest, older = quality(client)
    assert (everything["since"], everything["suspected"], everything["waiting"]) == (None, 3, 1)
    assert (everything["confirmed"], everything["dismissed"], everything["unsure"], everything["triaged"]) == (
        1,
        1,
        0,
        1,
    )
    assert everything["triage_seconds"] == pytest.approx(3 * 3600)
    assert (newest["suspected"], newest["confirmed"], newest["triage_seconds"]) == (2, 0, None)
    assert (older["suspected"], older["decide_seconds"]) == (1, pytest.approx(2 * 3600))
    assert "All time" in client.get("/verdicts").text
    with lab.database.session() as s:
        s.execute(update(RegressionRecord).values(triaged_at=None))
    assert quality(client)[0]["triage_seconds"] is None
    assert "no confirmed change has been triaged yet" in client.get("/verdicts").text
    with lab.database.session() as s:
        s.execute(update(RepositoryRecord).values(is_example=True))
    assert "Detection quality" not in client.get("/verdicts").text


def test_what_the_service_superseded_is_no_alarm_of_its_own(client: TestClient, lab: Lab) -> None:
    found = plant(lab, 1, 2, 1.3)
    wider = plant(lab, 0, 2, 1.3, state="invalid")
    refused = plant(lab, 1, 2, 1.2, operator="cube", state="invalid", triaged_at=datetime.now(UTC))
    assert ids(events(client, state="open")) == [[found, refused]]
    assert quality(client)[0]["confirmed"] == 2
    assert listed(client, state="invalid") == [wider, refused]


def test_what_belongs_to_a_submission(client: TestClient, lab: Lab) -> None:
    """Its own commit, the end of the range where it was first suspected, and what lies behind the commit it is held
    against."""
    job = lab.bench(4, {CELLS[0]: 1000.0})
    number = client.get(f"/api/v1/jobs/{job}").json()["job"]["submission_id"]
    url = f"/api/v1/submissions/{number}/verdicts"
    with lab.database.session() as s:
        s.execute(update(JobRecord).values(judged_at=datetime.now(UTC)))
    own, narrowed, earlier = plant(lab, 3, 4, 1.2), plant(lab, 1, 2, 1.3), plant(lab, 0, 1, 1.5)
    plant(lab, 4, 5, 1.4)
    lab.check(2, {CELLS[0]: Status.OK})
    trial = lab.submit("compare", 4, base=0)
    try_out(lab, narrowed, trial, "confirm", 0, 4, "changed")
    assert [row["id"] for row in client.get(url).json()["regressions"]] == [narrowed, own]
    with lab.database.session() as s:
        s.execute(
            update(SubmissionRecord)
            .where(SubmissionRecord.id == number)
            .values(base_commit_id=lab.commits[lab.shas[0]])
        )
    assert [row["id"] for row in client.get(url).json()["regressions"]] == [earlier, narrowed, own]
    assert client.get(url).json()["pending"] == 0
    plant(lab, 2, 3, 1.1, verdict="suspected")
    assert client.get(url).json()["pending"] == 1, "bisecting does not keep anybody waiting, a suspicion does"
