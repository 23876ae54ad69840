"""The inbox: each regression is in one tab; a row tells what trials decided apart from what people made of it."""

from __future__ import annotations

import re
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import update

from tests.builders import CASES, Lab
from tests.planted import plant
from warpwatch.contract.words import Status
from warpwatch.db.models import RegressionRecord, RegressionSeriesRecord
from warpwatch.db.regressions import attach_compare_job

CELL = ("v1", CASES[0])


def listed(client: TestClient, **filters: Any) -> list[int]:
    answer = client.get("/api/v1/regressions", params={"repository": "kernels"} | filters)
    assert answer.status_code == 200, answer.text
    return sorted(row["id"] for row in answer.json()["items"])


def tabs(page: str) -> dict[str, int]:
    """The number beside each tab."""
    return {name: int(count) for name, count in re.findall(r'>(\w+) <span class="count">(\d+)</span>', page)}


def current(page: str) -> str:
    (name,) = re.findall(r'aria-current="page">(Open|Suspected|Improvements|Closed|All)\b', page)
    return str(name)


def row_of(page: str, regression: int) -> str:
    (row,) = re.findall(rf'<tr data-regression="{regression}".*?</tr>', page, re.DOTALL)
    return str(row)


@pytest.fixture
def everything(lab: Lab) -> dict[str, list[int]]:
    """Regressions of every verdict and state, by the tab that each belongs to."""
    return {
        "open": [plant(lab, 0, 1), plant(lab, 1, 2, None), plant(lab, 2, 3, 1.2, state="acknowledged")],
        "suspected": [plant(lab, 3, 4, 1.2, verdict="suspected"), plant(lab, 2, 4, 0.8, verdict="suspected")],
        "improvements": [plant(lab, 0, 1, 0.8)],
        "closed": [
            *(
                plant(lab, 4, 5, 1.1 + 0.1 * place, operator=f"op{place}", state=state)
                for place, state in enumerate(("accepted", "fixed", "reverted"))
            ),
            plant(lab, 0, 2, 0.7, state="accepted"),
            plant(lab, 0, 3, 1.3, verdict="dismissed"),
            plant(lab, 0, 4, 1.3, verdict="unsure"),
            plant(lab, 1, 5, 1.3, verdict="suspected", state="accepted"),
        ],
    }


def test_each_regression_is_in_one_tab(client: TestClient, everything: dict[str, list[int]]) -> None:
    page = client.get("/regressions").text
    assert current(page) == "Open"
    assert tabs(page) == {name.capitalize(): len(ids) for name, ids in everything.items()}
    for name, ids in everything.items():
        assert listed(client, tab=name) == sorted(ids), name
        shown = client.get("/regressions", params={"tab": name}).text
        assert current(shown) == name.capitalize()
        assert {int(number) for number in re.findall(r'href="/regressions/(\d+)\?', shown)} >= set(ids), name


def test_what_the_server_took_for_another_is_in_no_tab(client: TestClient, lab: Lab) -> None:
    plant(lab, 0, 1, state="invalid", triaged_at=None)
    assert sum(tabs(client.get("/regressions").text).values()) == 0
    assert all(not listed(client, tab=name) for name in ("open", "suspected", "improvements", "closed"))


def test_counts_follow_the_filters_and_no_tab_hides_behind_a_state(
    client: TestClient, everything: dict[str, list[int]]
) -> None:
    assert tabs(client.get("/regressions?tab=closed&operator=op1").text)["Closed"] == 1
    assert tabs(client.get("/regressions?tab=closed&state=fixed&verdict=confirmed").text)["Open"] == 3
    assert listed(client, tab="closed", verdict="dismissed") == [everything["closed"][4]]


@pytest.mark.parametrize(
    ("address", "tab"),
    [
        ("verdict=suspected", "Suspected"),
        ("verdict=dismissed", "Closed"),
        ("state=open", "Open"),
        ("state=open&verdict=confirmed&direction=faster", "Improvements"),
        ("state=any&operator=square", "All"),
        ("state=accepted", "All"),
    ],
)
def test_addresses_from_before_the_tabs_work(
    client: TestClient, everything: dict[str, list[int]], address: str, tab: str
) -> None:
    assert current(client.get(f"/regressions?{address}").text) == tab


def test_changes_of_two_verdicts_are_two_rows(client: TestClient, lab: Lab) -> None:
    fixed, dismissed = plant(lab, 0, 1, state="fixed"), plant(lab, 0, 1, 1.2, operator="cube", verdict="dismissed")
    events = client.get("/api/v1/events", params={"repository": "kernels", "tab": "closed"}).json()["items"]
    assert [[row["id"] for row in event["regressions"]] for event in events] == [[fixed], [dismissed]]


def test_what_is_suspected_is_never_passed_over(client: TestClient, lab: Lab) -> None:
    assert "No open regressions" in client.get("/regressions").text
    number = plant(lab, 0, 1, verdict="suspected", settled_at="2026-01-01")
    page = client.get("/regressions").text
    assert "No open regressions" not in page
    assert "No confirmed regressions; 1 change suspected" in page
    assert "suspected, cannot be confirmed here" in row_of(client.get("/regressions?tab=suspected").text, number)


def test_verdict_and_state_are_two_columns(client: TestClient, lab: Lab) -> None:
    number = plant(lab, 0, 1, state="acknowledged")
    page = client.get("/regressions").text
    assert re.findall(r"<th scope=\"col\">(Verdict|State)</th>", page) == ["Verdict", "State"]
    row = row_of(page, number)
    assert re.search(r'<span class="badge statement slower"[^>]*>confirmed</span>', row)
    assert '<span class="badge live_off">acknowledged</span>' in row


def test_what_broke_has_a_strip_of_its_checks_and_no_times(client: TestClient, lab: Lab) -> None:
    for index in (0, 1, 3):
        lab.check(index, {CELL: Status.OK})
        lab.bench(index, {CELL: 1000.0 * (index + 1)})
    lab.check(2, {CELL: Status.WRONG})
    lab.bench(2, {CELL: 9000.0, ("v2", CASES[0]): 1000.0})
    number = plant(lab, 1, 2, None, [CELL])
    row = row_of(client.get("/regressions").text, number)
    (picture,) = re.findall(r"<svg.*?</svg>", row)
    assert 'class="sparkline checks"' in picture
    assert (picture.count('class="pass"'), picture.count("m0 -7l-7 7")) == (3, 1)
    unchecked = plant(lab, 4, 5, None, [("v2", CASES[0])])
    assert row_of(client.get("/regressions").text, unchecked).count("m0 -7l-7 7") == 1


def test_a_row_is_named_by_what_is_left(client: TestClient, lab: Lab) -> None:
    """Its picture, times and number of cases are those of the worst case that still shows it."""
    second = ("v1", CASES[1])
    for index in range(4):
        lab.bench(index, {CELL: 1000.0 * (index + 1), second: 5000.0})
    number = plant(lab, 1, 2, 2.3, [CELL, second])
    job = lab.submit("compare", 2, base=1)
    lab.compare(job, {CELL: ([1000.0] * 3, [2300.0] * 3), second: ([5000.0] * 3, [5070.0] * 3)})
    fix = lab.commits[lab.shas[3]]
    members = client.get(f"/api/v1/regressions/{number}").json()["series"]
    worst = next(member["series_id"] for member in members if member["case"] == CASES[0])
    with lab.database.session() as s:
        attach_compare_job(s, number, job)
        s.execute(update(RegressionSeriesRecord).values(left_ratio=1.014))
        s.execute(update(RegressionSeriesRecord).filter_by(series_id=worst).values(fixed_by_commit_id=fix))
        s.execute(update(RegressionRecord).values(left_ratio=1.014, partly_fixed_by_commit_id=fix))
    row = row_of(client.get("/regressions").text, number).replace("\u2009", " ")
    assert "+1.4 % slower" in row
    assert f"1 of 2 cases; 1 fixed by {lab.shas[3][:8]}" in row
    assert "1 of 2 cases</span>" in row
    assert CASES[1] in row
    assert "2.30 µs" not in row


def test_filters_need_no_button_where_scripts_run(client: TestClient, everything: dict[str, list[int]]) -> None:
    page = client.get("/regressions").text
    (form,) = re.findall(r'<form class="filters".*?</form>', page, re.DOTALL)
    outside = re.sub(r"<noscript>.*?</noscript>", "", form, flags=re.DOTALL)
    assert "<button" not in outside
    assert "<noscript><button>" in form
    controls = re.findall(r"<(?:select|input)(?! type=\"hidden\")[^>]*>", outside)
    assert len(controls) >= 6
    assert all("data-submit" in control for control in controls), controls


def test_quality_of_detection_is_not_here(client: TestClient, everything: dict[str, list[int]]) -> None:
    assert "Detection quality" not in client.get("/regressions?whole=true").text
