"""The settings: three pages with tabs, lists with a form that a button opens, and presets in place of syntax."""

from __future__ import annotations

from typing import Any

import pytest
from fastapi.testclient import TestClient

from tests.builders import CASES, CPU, Lab
from warpwatch.server.web.tabs import AREAS

V1 = ("v1", CASES[0])
SCHEDULE = {"repository": "kernels", "name": "nightly", "kind": "suite", "budget_minutes": "30", "suite": "quick"}


@pytest.mark.parametrize(("path", "tab"), [(area.path, tab) for area in AREAS for tab in area.tabs])
def test_every_tab_names_itself(client: TestClient, lab: Lab, path: str, tab: str) -> None:
    lab.bench(0, {V1: 10_000.0})
    answer = client.get(path, params={"tab": tab})
    assert answer.status_code == 200
    (title,) = [area.tabs[tab] for area in AREAS if area.path == path]
    assert f"<title>{title} · Settings" in answer.text
    assert f'aria-current="page">{title}</a>' in answer.text


@pytest.mark.parametrize("tab", ["notifications", "schedules", "ci", "views", "watches", "code-host"])
def test_an_empty_list_is_a_line_and_its_form_is_closed(client: TestClient, lab: Lab, tab: str) -> None:
    page = client.get("/settings/repository", params={"tab": tab}).text
    assert '<details class="adding" id="add">' in page
    assert 'class="empty"' not in page


@pytest.mark.parametrize(
    ("path", "data"),
    [
        ("/channels", {"repository": "kernels", "name": "Zoë", "url": "nothing"}),
        ("/schedules", SCHEDULE | {"name": "Zoë", "every": "custom", "cron": "at night"}),
        ("/repositories/kernels/ci", {"issuer": "Zoë", "subject": "*"}),
        ("/repositories/kernels/forge", {"forge": "gitlab", "project": "Zoë"}),
        ("/watches", {"repository": "kernels", "person": "Zoë", "operator": "nothing"}),
        ("/views", {"repository": "kernels", "name": "Zoë", "path": "/nowhere"}),
        ("/repositories/kernels", {"branch": "Zoë"}),
        ("/repositories/kernels/retention", {"logs": "Zoë"}),
        ("/accounts", {"name": "Zoë", "role": "king"}),
        ("/tokens", {"person": "Zoë", "days": "many"}),
        ("/devices/keys", {"name": "Zoë"}),
    ],
)
def test_what_is_refused_stands_in_its_open_form(client: TestClient, lab: Lab, path: str, data: dict[str, str]) -> None:
    lab.bench(0, {V1: 10_000.0})
    client.get("/api/v1/repositories/kernels/commits")
    answer = client.post(path, data=data)
    assert answer.status_code == 422, path
    assert 'value="Zoë"' in answer.text
    assert 'class="error"' in answer.text
    if "adding" in answer.text:
        assert '<details class="adding" id="add" open>' in answer.text


def schedule(client: TestClient, **fields: str) -> dict[str, Any]:
    answer = client.post("/schedules", data=SCHEDULE | fields, follow_redirects=False)
    assert answer.status_code == 303, answer.text
    rows: list[dict[str, Any]] = client.get("/api/v1/schedules").json()["items"]
    return rows[0]


@pytest.mark.parametrize(
    ("fields", "cron"),
    [
        ({"every": "night", "hour": "4", "cron": "1 1 1 1 1"}, "0 4 * * *"),
        ({"every": "hour", "cron": "1 1 1 1 1"}, "0 * * * *"),
        ({"every": "custom", "hour": "4", "cron": "*/20 * * * *"}, "*/20 * * * *"),
        ({"cron": "*/20 * * * *"}, "*/20 * * * *"),
    ],
)
def test_a_preset_is_a_cron_expression(client: TestClient, lab: Lab, fields: dict[str, str], cron: str) -> None:
    assert schedule(client, **fields)["cron"] == cron


def test_hours_and_time_zones_are_chosen(client: TestClient, lab: Lab) -> None:
    page = client.get("/settings/repository?tab=notifications").text
    assert '<option value="22">22:00</option>' in page
    assert "<option>Europe/Berlin</option>" in page


def test_a_device_is_called_by_its_name(client: TestClient, lab: Lab) -> None:
    lab.bench(0, {V1: 10_000.0})
    page = client.get("/settings/devices").text
    assert f'<span title="{CPU.device_key}">{CPU.device_name}</span>' in page


def test_the_watched_branch_is_shown_and_set(client: TestClient, lab: Lab) -> None:
    client.post("/repositories/kernels", data={"branch": "main"})
    assert client.get("/api/v1/repositories/kernels").json()["branch"] == "main"
    assert 'name="branch" class="mono" value="main"' in client.get("/settings/repository").text
