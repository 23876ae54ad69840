"""The page of a regression: what is left of it comes first, and no picture says the opposite of the verdict."""

from __future__ import annotations

import gzip
import json
import re
from typing import Any

import pytest
import sqlalchemy
from fastapi.testclient import TestClient
from sqlalchemy import select, update

from tests.builders import CASES, Lab, measurement
from tests.builders import bench as bench_reply
from tests.planted import plant, try_out
from tests.server.test_timelines import event
from warpwatch.contract.chrome_trace import CALL
from warpwatch.contract.measurement import TraceKernel
from warpwatch.contract.messages import ProfileReply
from warpwatch.contract.outcome import Finding
from warpwatch.contract.words import Status
from warpwatch.db import regressions
from warpwatch.db.models import RegressionRecord, RegressionSeriesRecord

CELL, SECOND, THIRD = (("v1", case) for case in CASES[:3])


def page_of(client: TestClient, number: int, **query: str) -> str:
    answer = client.get(f"/regressions/{number}", params=query)
    assert answer.status_code == 200, answer.text
    return answer.text.replace("\u2009", " ").replace("\u202f", " ")


def group(page: str, name: str) -> str:
    """The rows of a group of cases; empty where there is none."""
    found = re.findall(rf'<tbody data-group="{name}">.*?</tbody>', page, re.DOTALL)
    return "".join(found)


def stage(page: str, purpose: str) -> str:
    """The step of the investigation with this name."""
    steps = re.findall(r"<li(?: [^>]*)?>(?:(?!<li).)*?</li>", page[page.index('class="stages') :], re.DOTALL)
    return str(next(step for step in steps if purpose in step))


def test_a_page_asks_few_questions(client: TestClient, lab: Lab) -> None:
    for index in range(3):
        lab.bench(index, {CELL: 1000.0, SECOND: 1000.0})
        lab.check(index, {CELL: Status.OK, SECOND: Status.OK})
    number = plant(lab, 0, 1, 1.3, [CELL, SECOND])
    page_of(client, number)  # The first page looks at the schema as well.
    statements: list[str] = []

    def count(_connection: Any, _cursor: Any, statement: str, *_rest: Any) -> None:
        statements.append(statement)

    sqlalchemy.event.listen(lab.database.engine, "before_cursor_execute", count)
    page_of(client, number)
    sqlalchemy.event.remove(lab.database.engine, "before_cursor_execute", count)
    assert 10 < len(statements) <= 25


# --- cases ----------------------------------------------------------------------------------------------------


def test_a_dismissed_change_is_called_no_change_throughout(client: TestClient, lab: Lab) -> None:
    lab.bench(0, {CELL: 1000.0})
    page = page_of(client, plant(lab, 0, 1, 1.004, [CELL], verdict="dismissed"))
    assert "No change (+0.4 %)" in page
    assert ">no change</span>" in group(page, "undecided")
    assert "not told apart<" not in page


def test_cases_stand_by_what_became_of_them(client: TestClient, lab: Lab) -> None:
    lab.bench(0, {CELL: 1000.0, SECOND: 1000.0, THIRD: 1000.0})
    number = plant(lab, 0, 1, 2.3, {CELL: "confirmed", SECOND: "confirmed", THIRD: "dismissed"})
    fix = lab.commits[lab.shas[3]]
    with lab.database.session() as s:
        first = s.scalars(select(RegressionSeriesRecord.series_id).order_by(RegressionSeriesRecord.series_id)).first()
        s.execute(update(RegressionSeriesRecord).values(left_ratio=1.014))
        s.execute(update(RegressionSeriesRecord).filter_by(series_id=first).values(fixed_by_commit_id=fix))
        s.execute(update(RegressionRecord).values(left_ratio=1.014, partly_fixed_by_commit_id=fix))
    page = page_of(client, number)
    assert f"+1.4 % slower, 1 of 2 cases; 1 fixed by {lab.shas[3][:8]}" in page
    assert "<s>" not in group(page, "affected")
    assert "+1.4 % slower" in group(page, "affected")
    fixed = group(page, "fixed")
    assert re.search(r"<s><a class=\"case\"", fixed)
    assert "slower" not in fixed
    assert lab.shas[3][:8] in fixed
    assert "no change" in group(page, "unaffected")
    assert "slower" not in group(page, "unaffected")
    assert "Not affected: 1 case" in page
    assert "<s " in page[page.index("data-fixed") : page.index('id="evidence"')], "on the first screen, too"
    brief = client.get(f"/api/v1/regressions/{number}?brief").json()["items"][:2]
    ends = sorted(item["statement"].partition(", ")[2] for item in brief)
    assert ends == [f"fixed by {lab.shas[3][:8]}", "of which +1.4\N{THIN SPACE}% is left"], (
        "beside the times of the trial"
    )


def test_what_is_suspected_is_neither_affected_nor_red(client: TestClient, lab: Lab) -> None:
    lab.bench(0, {CELL: 1000.0})
    number = plant(lab, 0, 1, 1.3, [CELL], verdict="suspected", settled_at="2026-01-01")
    page = page_of(client, number)
    assert group(page, "affected") == ""
    assert "suspected" in group(page, "undecided")
    assert 'class="statement slower"' not in page
    assert "suspected, cannot be confirmed here" in page


# --- words ----------------------------------------------------------------------------------------------------


def test_a_change_between_neighbours_says_so_or_nothing(client: TestClient, lab: Lab) -> None:
    suspected = plant(lab, 0, 1, None, verdict="suspected")
    page = page_of(client, suspected)
    assert "Between adjacent commits" in page
    assert "In adjacent" not in page
    assert "in adjacent" not in client.get("/regressions?tab=suspected").text
    wide = plant(lab, 1, 4, 1.3, settled_at=None)
    assert "In 3 commits, bisecting" in page_of(client, wide)


def test_the_culprit_is_named_with_its_author(client: TestClient, lab: Lab) -> None:
    slower, faster = plant(lab, 0, 1), plant(lab, 1, 2, 0.8)
    assert re.search(r"Culprit</span> <a class=\"sha\".*?<span class=\"badge\">", page_of(client, slower), re.DOTALL)
    assert "Culprit" not in page_of(client, faster)
    for name in ("Change per case", "Worst case", "Most changed case", "head over base"):
        shown = name in page_of(client, slower)
        assert not shown or name in ("Change per case", "Worst case")


# --- the investigation ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("ratio", "tone"), [(1.3, "slower"), (0.7, "faster")])
def test_steps_have_the_colour_of_what_they_found(client: TestClient, lab: Lab, ratio: float, tone: str) -> None:
    number = plant(lab, 0, 1, ratio)
    job = lab.submit("compare", 1, base=0)
    try_out(lab, number, job, "confirm", 0, 1, "changed", ratio=ratio, low=ratio * 0.99, high=ratio * 1.01)
    again = lab.submit("compare", 1, base=0)
    try_out(lab, number, again, "bisect", 0, 1, "same", ratio=1.001, low=0.99, high=1.01)
    page = page_of(client, number)
    assert f'<li class="{tone}"' in stage(page, "Confirm")
    other = {"slower": "faster", "faster": "slower"}[tone]
    assert f'class="{other}' not in page
    assert f'class="statement {other}' not in page
    assert '<li class="plain"' in stage(page, "Bisect 1"), "no change is no good news"
    assert f'<span class="badge {"bad" if tone == "slower" else "good"}' in page or f"badge statement {tone}" in page


def test_a_trial_has_the_rounds_of_the_series_that_it_tells_of(client: TestClient, lab: Lab) -> None:
    lab.bench(0, {CELL: 1000.0, SECOND: 1000.0})
    number = plant(lab, 0, 1, 1.5, [CELL, SECOND])
    job = lab.submit("compare", 1, base=0)
    lab.compare(job, {CELL: ([1000.0] * 3, [1500.0] * 3), SECOND: ([1000.0] * 12, [1010.0] * 12)})
    try_out(lab, number, job, "confirm", 0, 1, "changed", ratio=1.5, low=1.49, high=1.51, message="+50.0 %, 3 rounds")
    (trial,) = client.get(f"/api/v1/regressions/{number}").json()["trials"]
    assert trial["rounds"] == 3
    assert "3 rounds" in stage(page_of(client, number), "Confirm")
    assert "12 rounds" not in page_of(client, number)


# --- pictures and the host ----------------------------------------------------------------------------------------


def traced(client: TestClient, lab: Lab, index: int, calls: list[int], kernel_ns: float) -> int:
    """The id of a trace whose calls last so many microseconds."""
    events = [
        item
        for call, length in enumerate(calls)
        for item in (
            event(CALL, "user_annotation", call * 1000, length),
            event("aten::mm", "cpu_op", call * 1000, length),
        )
    ]
    text = json.dumps({"traceEvents": events})
    path = lab.folder / f"{index}-{kernel_ns}.json.gz"
    path.write_bytes(gzip.compress(text.encode()))
    kernels = [TraceKernel("gemm", len(calls), kernel_ns * len(calls), kernel_ns, 1.0)]
    reply = ProfileReply(Status.OK, "", str(path), len(text), kernels, {}, {"calls": len(calls)})
    job = lab.submit("profile", index)
    lab.finish(job, lab.outcome([Finding(*CELL, Status.OK, profile=reply)]))
    return int(client.get(f"/api/v1/jobs/{job}").json()["results"][0]["trace_id"])


def compared(client: TestClient, lab: Lab, base: list[int], head: list[int], kernels: tuple[float, float]) -> int:
    """A regression from 100 to 150 µs with a trace of each commit."""
    lab.bench(0, {CELL: 100_000.0})
    traces = traced(client, lab, 0, base, kernels[0]), traced(client, lab, 1, head, kernels[1])
    number = plant(lab, 0, 1, 1.5, [CELL], base_trace_id=traces[0], head_trace_id=traces[1])
    job = lab.submit("compare", 1, base=0)
    lab.compare(job, {CELL: ([100_000.0] * 12, [150_000.0] * 12)})
    with lab.database.session() as s:
        regressions.attach_compare_job(s, number, job)
    return number


def test_the_calls_nearest_to_the_rounds_are_drawn(client: TestClient, lab: Lab) -> None:
    number = compared(client, lab, [100, 400], [150, 90], (90e3, 140e3))
    page = page_of(client, number, evidence="trace")
    assert 'class="timeline"' in page
    assert "A: call 1 of 2, 100 µs" in page
    assert "B: call 1 of 2, 150 µs" in page
    pair = client.get("/traces/compare", params={"a": 1, "b": 2}).text.replace("\u2009", " ")
    assert "A: call 1 of 2, 100 µs" in pair
    assert "Pictures left out" not in pair


@pytest.mark.parametrize("is_swapped", [False, True])
def test_a_picture_that_contradicts_its_verdict_is_not_drawn(client: TestClient, lab: Lab, is_swapped: bool) -> None:
    number = compared(client, lab, [900, 800], [120, 130], (800e3, 100e3))
    page = page_of(client, number, evidence="trace")
    assert 'data-picture="contradicting"' in page
    assert 'class="timeline"' not in page
    assert "in kernels per call" not in page
    order = {"a": 2, "b": 1} if is_swapped else {"a": 1, "b": 2}
    pair = client.get("/traces/compare", params=order).text
    assert 'data-picture="contradicting"' in pair
    assert 'class="timeline"' not in pair
    assert 'class="waterfall"' not in pair


def test_kernels_may_contradict_alone(client: TestClient, lab: Lab) -> None:
    number = compared(client, lab, [100], [150], (140e3, 90e3))
    page = page_of(client, number, evidence="trace")
    assert 'class="timeline"' in page
    assert "in kernels per call" not in page


def test_traces_without_a_comparison_are_drawn_and_not_judged(client: TestClient, lab: Lab) -> None:
    traced(client, lab, 0, [900], 800e3)
    traced(client, lab, 1, [100], 90e3)
    page = client.get("/traces/compare", params={"a": 1, "b": 2}).text
    assert 'class="waterfall"' in page
    main = page[page.index("<main") : page.index("</main>")]
    assert not re.search(r'class="[^"]*\b(good|bad|slower|faster)\b', main)


def benched(lab: Lab, index: int, **health: Any) -> None:
    reading = {"before": health, "after": health}
    row = Finding(*CELL, Status.OK, bench=bench_reply(measurement(1000.0 + index, "hot"), health=reading))
    lab.finish(lab.submit("bench", index), lab.outcome([row]))


def test_a_busy_host_is_a_banner_and_no_row(client: TestClient, lab: Lab) -> None:
    benched(lab, 0, load=17.5, cores=2, pressure=0.996, celsius=40)
    benched(lab, 1, load=2.1, cores=2, pressure=0.1, celsius=50)
    page = page_of(client, plant(lab, 0, 1, 1.3, [CELL]), evidence="host")
    banner = page[page.index("data-busy") : page.index('id="history"')]
    assert "load 17.5 on 2 cores while the base was benchmarked. Paired rounds decided; times" in banner
    for undecided in (plant(lab, 0, 1, None, [CELL]), plant(lab, 0, 1, 0.7, [CELL], verdict="suspected")):
        banner = page_of(client, undecided)
        banner = banner[banner.index("data-busy") : banner.index('class="tabs')]
        assert "benchmarked. Times of single runs" in banner, "no round decided a failed check, or anything yet"
    assert "CPU pressure" not in page
    assert "temperature" in page


def test_a_quiet_host_has_no_banner_and_no_rows_that_say_nothing(client: TestClient, lab: Lab) -> None:
    for index in (0, 1):
        benched(lab, index, load=1.0, cores=2, pressure=0.0)
    page = page_of(client, plant(lab, 0, 1, 1.3, [CELL]), evidence="host")
    assert "data-busy" not in page
    assert "CPU pressure" not in page
    assert "Clocks and load were the same on both sides." in page
    assert "The environments are identical." in page


def test_a_diff_without_files_has_no_stray_separator(client: TestClient, lab: Lab) -> None:
    number = plant(lab, 0, 1)
    assert not re.search(r'<span class="note">\s*·', page_of(client, number))
