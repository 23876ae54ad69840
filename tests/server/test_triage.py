"""What people make of regressions: one or a whole event, through the API and the form, with everything kept."""

from __future__ import annotations

import html
import re
from typing import Any

import pytest
from fastapi.testclient import TestClient

from tests.builders import CASES, GPU, Lab
from tests.planted import plant
from tests.server.test_code import problem
from warpwatch.db import regressions

LINK = "https://example.com/issues/7"


def row(client: TestClient, number: int) -> dict[str, Any]:
    found: dict[str, Any] = client.get(f"/api/v1/regressions/{number}").json()["regression"]
    return found


def test_a_patch_changes_what_it_names(client: TestClient, lab: Lab) -> None:
    number = plant(lab, 0, 1)
    url = f"/api/v1/regressions/{number}"
    body = {
        "author": "ann",
        "state": "acknowledged",
        "assignee": "bea",
        "link": LINK,
        "due_on": "2026-03-31",
        "note": "mine",
    }
    told = client.patch(url, json=body).json()["regression"]
    assert {name: told[name] for name in ("state", "assignee", "link", "due_on")} == {
        name: body[name] for name in ("state", "assignee", "link", "due_on")
    }
    assert told["triaged_at"]
    told = client.patch(url, json={"author": "bea", "due_on": None}).json()
    assert (told["regression"]["state"], told["regression"]["assignee"], told["regression"]["due_on"]) == (
        "acknowledged",
        "bea",
        None,
    )
    assert [(note["author"], note["changes"]) for note in told["notes"]] == [
        (
            "ann",
            {
                "state": ["new", "acknowledged"],
                "assignee": [None, "bea"],
                "link": [None, LINK],
                "due_on": [None, "2026-03-31"],
            },
        ),
        ("bea", {"due_on": ["2026-03-31", None]}),
    ]


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"state": "gone"}, "state"),
        ({"link": "javascript:alert(1)"}, "link"),
        ({"link": "example.com/7"}, "link"),
        ({"link": "https://"}, "link"),
        ({"link": "https://example.com/a b"}, "link"),
        ({"due_on": "2026-02-30"}, "due_on"),
        ({"due_on": "tomorrow"}, "due_on"),
        ({"assignee": ""}, "assignee"),
        ({"author": ""}, "author"),
        ({"verdict": "dismissed"}, "verdict"),
        ({}, "body"),
        ({"state": None}, "body"),
    ],
)
def test_what_cannot_be_used_is_named(client: TestClient, lab: Lab, change: dict[str, Any], field: str) -> None:
    number = plant(lab, 0, 1)
    fault = problem(client.patch(f"/api/v1/regressions/{number}", json={"author": "ann"} | change), 422)
    assert [error["field"] for error in fault["errors"]] == [field]
    assert client.get(f"/api/v1/regressions/{number}").json()["notes"] == []


def test_an_event_is_triaged_whole_or_not_at_all(client: TestClient, lab: Lab) -> None:
    first, second = plant(lab, 0, 1), plant(lab, 0, 1, operator="cube")
    body = {"author": "ann", "state": "accepted", "note": "worth it"}
    problem(client.post("/api/v1/triage", json=body | {"regressions": [first, 999]}), 404)
    assert row(client, first)["state"] == "new"
    told = client.post("/api/v1/triage", json=body | {"regressions": [first, second, first]}).json()["items"]
    assert [(one["regression"]["id"], one["regression"]["state"]) for one in told] == [
        (first, "accepted"),
        (second, "accepted"),
    ]
    assert [len(one["notes"]) for one in told] == [1, 1]
    problem(client.post("/api/v1/triage", json=body | {"regressions": []}), 422)


def test_what_is_faster_or_broken_is_triaged_too(client: TestClient, lab: Lab) -> None:
    for number in (plant(lab, 0, 1, 0.7), plant(lab, 0, 1, None)):
        client.post(f"/api/v1/regressions/{number}/triage", json={"author": "ann", "state": "accepted"})
        assert row(client, number)["state"] == "accepted"
        assert client.get(f"/regressions/{number}").status_code == 200


def test_one_form_triages_a_whole_event(client: TestClient, lab: Lab) -> None:
    first, second = plant(lab, 0, 1, 1.5), plant(lab, 0, 1, 1.4, operator="cube")
    lab.switch(GPU)
    third = plant(lab, 0, 1, 1.3, state="accepted")
    apart = plant(lab, 1, 2, 1.3)
    page = client.get(f"/regressions/{first}").text
    assert re.findall(r'name="also" value="(\d+)"( checked)?', page) == [(str(second), ""), (str(third), "")], (
        "what a button of the bar does to others is never hidden"
    )
    assert len(re.findall(r'<form[^>]* action="/regressions/\d+/triage"', page)) == 1
    form = {
        "state": "acknowledged",
        "author": " Ann ",
        "assignee": "Bea",
        "link": LINK,
        "due_on": "2026-03-31",
        "note": "mine",
    }
    answer = client.post(f"/regressions/{first}/triage", data=form | {"also": [second]}, follow_redirects=False)
    assert answer.status_code == 303
    for number in (first, second):
        told = row(client, number)
        assert (told["state"], told["assignee"], told["link"], told["due_on"]) == (
            "acknowledged",
            "Bea",
            LINK,
            "2026-03-31",
        )
    assert (row(client, third)["state"], row(client, apart)["assignee"]) == ("accepted", None)
    page = client.get(f"/regressions/{first}").text
    assert 'value="2026-03-31"' in page
    assert "assignee: none → Bea" in page
    assert f'<a href="{LINK}" rel="noopener noreferrer">' in page
    # A field that was emptied is taken away.
    client.post(f"/regressions/{first}/triage", data={"state": "acknowledged", "author": "Ann"})
    assert (row(client, first)["assignee"], row(client, first)["link"]) == (None, None)


def test_the_form_comes_back_with_what_was_entered(client: TestClient, lab: Lab) -> None:
    first, second = plant(lab, 0, 1, 1.5), plant(lab, 0, 1, 1.4, operator="cube")
    form = {
        "state": "nothing",
        "author": "",
        "assignee": "<b>",
        "link": "javascript:alert(1)",
        "due_on": "soon",
        "note": "why",
    }
    answer = client.post(f"/regressions/{first}/triage", data=form)
    assert answer.status_code == 422
    page = html.unescape(answer.text)
    for name in ("state", "author", "link", "due_on"):
        assert f'id="{name}-error"' in page
    assert 'value="<b>"' in page
    assert "&lt;b&gt;" in answer.text
    assert 'href="javascript' not in answer.text
    assert re.findall(r'name="also" value="(\d+)"( checked)?', page) == [(str(second), "")]
    assert row(client, first)["state"] == "new"


def test_the_bar_changes_the_state_and_keeps_the_rest(client: TestClient, lab: Lab) -> None:
    number = plant(lab, 0, 1)
    fields = {"author": "ann", "assignee": "bea", "link": LINK, "due_on": "2026-03-31"}
    client.patch(f"/api/v1/regressions/{number}", json=fields)
    page = client.get(f"/regressions/{number}").text
    bar = page[page.index('class="triage-bar"') :]
    hidden = dict(re.findall(r'<input id="(assignee|link|due_on)"[^>]* value="([^"]*)"', bar))
    assert hidden == {"assignee": "bea", "link": LINK, "due_on": "2026-03-31"}
    client.post(f"/regressions/{number}/triage", data=hidden | {"author": "cyd", "state": "acknowledged"})
    told = row(client, number)
    assert {name: told[name] for name in ("state", *hidden)} == {"state": "acknowledged", **hidden}


def test_somebody_takes_a_regression(client: TestClient, lab: Lab) -> None:
    number = plant(lab, 0, 1)
    client.post(f"/regressions/{number}/triage", data={"author": "ann", "take": "true"})
    assert (row(client, number)["assignee"], row(client, number)["state"]) == ("ann", "new")
    answer = client.post(f"/regressions/{number}/triage", data={"author": "", "take": "true"})
    assert answer.status_code == 422
    assert "author-error" in answer.text


def test_ticked_events_are_triaged_together(client: TestClient, lab: Lab) -> None:
    first, second = plant(lab, 0, 1), plant(lab, 2, 3, operator="cube")
    left = plant(lab, 4, 5)
    client.patch(f"/api/v1/regressions/{second}", json={"author": "bea", "assignee": "bea", "link": LINK})
    page = client.get("/regressions?direction=slower").text
    assert page.count('name="chosen"') == 3
    (filters,) = re.findall(r'name="filters" value="([^"]*)"', page)
    body = {
        "chosen": [str(first), f"{second}"],
        "author": "ann",
        "state": "acknowledged",
        "filters": html.unescape(filters),
    }
    answer = client.post("/regressions/triage", data=body, follow_redirects=False)
    assert answer.status_code == 303
    assert "direction=slower" in answer.headers["location"]
    assert [row(client, number)["state"] for number in (first, second, left)] == ["acknowledged", "acknowledged", "new"]
    assert (row(client, second)["assignee"], row(client, second)["link"]) == ("bea", LINK), "other fields stay"
    client.post("/regressions/triage", data={"chosen": f"{first},{second}", "author": "ann", "take": "true"})
    assert [row(client, number)["assignee"] for number in (first, second, left)] == ["ann", "ann", None]
    assert row(client, first)["state"] == "acknowledged"


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"author": "ann", "state": "accepted"}, "chosen"),
        ({"author": " ", "chosen": "1", "state": "accepted"}, "author"),
        ({"author": "ann", "chosen": "1x", "state": "accepted"}, "chosen"),
    ],
)
def test_a_bulk_triage_names_what_is_missing(client: TestClient, lab: Lab, body: dict[str, str], field: str) -> None:
    number = plant(lab, 0, 1)
    answer = client.post("/regressions/triage", data=body)
    assert f'id="{field}-error"' in answer.text
    assert row(client, number)["state"] == "new"
    assert client.post("/regressions/triage", data={"chosen": "999", "author": "ann"}).status_code == 404
    assert client.post("/regressions/triage", data={"chosen": "1", "author": "a", "state": "no"}).status_code == 422


def test_a_list_never_leads_elsewhere(client: TestClient, lab: Lab) -> None:
    number = plant(lab, 0, 1)
    body = {"chosen": str(number), "author": "ann", "state": "accepted", "filters": "\r\nX-Other: 1//example.com"}
    answer = client.post("/regressions/triage", data=body, follow_redirects=False)
    assert answer.headers["location"].startswith("/regressions?")
    assert "x-other" not in answer.headers


def test_the_list_shows_trend_times_and_share_of_cases(client: TestClient, lab: Lab) -> None:
    for index, median in enumerate((20_000.0, 20_000.0, 26_000.0, 26_000.0)):
        lab.bench(index, {("v1", CASES[0]): median, ("v1", CASES[1]): 20_000.0, ("v2", CASES[0]): 20_000.0})
    number = plant(lab, 1, 2, 1.3, [("v1", CASES[0])])
    page = client.get("/regressions").text
    assert "1 of 2 cases" in page.replace("\u2009", " ")
    (picture,) = re.findall(r'<svg class="sparkline slower".*?</svg>', page)
    assert picture.count("L") == 3, "four points"
    assert "<circle" in picture
    job = lab.submit("compare", 2, base=1)
    lab.compare(job, {("v1", CASES[0]): ([20_000.0] * 12, [26_000.0] * 12)})
    with lab.database.session() as s:
        regressions.attach_compare_job(s, number, job)
    assert "20.0\u2009µs → 26.0\u2009µs" in client.get("/regressions").text


def test_the_list_is_narrowed_down_to_a_case(client: TestClient, lab: Lab) -> None:
    lab.bench(0, {("v1", CASES[0]): 20_000.0, ("v1", CASES[1]): 20_000.0})
    first = plant(lab, 0, 1, 1.3, [("v1", CASES[0]), ("v1", CASES[1])])
    second = plant(lab, 2, 3, 1.3, [("v1", CASES[1])])

    def listed(**filters: str) -> set[int]:
        rows = client.get("/api/v1/regressions", params={"repository": "kernels", **filters}).json()["items"]
        assert len(client.get("/api/v1/events", params={"repository": "kernels", **filters}).json()["items"]) == len(
            rows
        )
        return {entry["id"] for entry in rows}

    assert listed() == {first, second}
    assert listed(case=CASES[0]) == {first}
    assert listed(case=CASES[1]) == {first, second}
    assert listed(case="n=1") == set()
    page = client.get("/regressions", params={"case": CASES[0]}).text
    assert f'name="case" value="{CASES[0]}"' in page
