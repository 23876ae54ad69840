"""Schedules and alarms as people meet them: pages and commands."""

from __future__ import annotations

import html
import re
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import text

from tests.builders import CASES, Lab
from tests.server.test_command import command
from tests.server.test_schedules import add, made, show
from warpwatch.settings import Settings

V1 = ("v1", CASES[0])
FORM: dict[str, Any] = {
    "repository": "kernels",
    "name": "nightly",
    "kind": "suite",
    "cron": "0 2 * * *",
    "budget_minutes": "30",
    "suite": "quick",
    "device": "all",
    "operators": ["square"],
}


def page(client: TestClient, path: str) -> str:
    answer = client.get(path)
    assert answer.status_code == 200, answer.text
    return html.unescape(answer.text)


def test_an_empty_page_names_the_command(client: TestClient, lab: Lab) -> None:
    assert "warpwatch schedule add nightly suite --repository kernels" in page(client, "/schedules")


def test_the_form_makes_a_schedule(client: TestClient, lab: Lab) -> None:
    answer = client.post("/schedules", data=FORM, follow_redirects=False)
    assert (answer.status_code, answer.headers["location"]) == (
        303,
        "/settings/repository?repository=kernels&tab=schedules",
    )
    row = show(client, 1)
    assert (row["kind"], row["budget_minutes"], row["request"]["operators"]) == ("suite", 30, ["square"])
    shown = page(client, "/schedules")
    assert "suite of square, quick, all devices" in shown
    assert "0.0 of 30 min" in shown
    assert 'max="30" value="0"' in shown.replace('value="0.0"', 'value="0"')


def test_the_form_comes_back_with_messages_by_the_field(client: TestClient, lab: Lab) -> None:
    lab.bench(0, {V1: 1e4})
    for wrong, message in (
        ({"cron": "at night"}, "'at night' has 2 fields, not 5; enter minute hour day month weekday"),
        ({"budget_minutes": "-1"}, "use at least 1"),
        ({"device": "abacus"}, "There is no device 'abacus'; choose from: all, cpu, cuda, test-cpu"),
        ({"operators": ["sqare"]}, "There is no operator 'sqare'; did you mean: square"),
        ({"name": ""}, "Enter a name."),
    ):
        answer = client.post("/schedules", data=FORM | wrong)
        assert answer.status_code == 422
        shown = html.unescape(answer.text)
        (field,) = wrong
        assert message in re.sub("</?code>", "'", shown)
        assert f'id="{field}-error"' in shown
        assert 'value="30"' in shown or field == "budget_minutes"
    assert client.get("/api/v1/schedules").json()["items"] == []


@pytest.mark.words
def test_buttons_run_switch_and_remove(client: TestClient, lab: Lab) -> None:
    schedule = add(client, "suite", kinds=["bench"])
    assert client.post(f"/schedules/{schedule}/disable", follow_redirects=False).status_code == 303
    assert not show(client, schedule)["is_enabled"]
    assert "disabled" in page(client, "/schedules")
    client.post(f"/schedules/{schedule}/enable")
    assert show(client, schedule)["next_at"]
    client.post(f"/schedules/{schedule}/run")
    assert made(client) == [("bench", "square", lab.shas[-1])]
    assert "submission 1: 1 job at 1 commit" in page(client, "/schedules")
    client.post(f"/schedules/{schedule}/remove")
    assert client.get(f"/api/v1/schedules/{schedule}").status_code == 404
    assert client.post(f"/schedules/{schedule}/run").status_code == 404


def test_alarms_are_counted_in_the_navigation_and_shown(client: TestClient, lab: Lab) -> None:
    assert "No problems" in page(client, "/alarms")
    job = lab.submit("bench", 0)
    with lab.database.session() as session:
        session.execute(text("UPDATE workers SET stopped_at = now(), heartbeat_at = now() - interval '1 hour'"))
        session.execute(text("UPDATE jobs SET created_at = now() - interval '1 hour'"))
    shown = page(client, "/alarms")
    assert "1 job waits for Test CPU" in shown
    assert "<code>warpwatch worker --device cpu</code>" in shown
    assert f'href="/jobs/{job}' in shown
    assert 'aria-label="Settings, 1 health problem"' in page(client, "/runs/jobs")
    assert "1 job waits" not in page(client, "/alarms?kind=missing")


@pytest.mark.words
def test_commands(served: Settings, lab: Lab) -> None:
    def say(*words: str, code: int = 0) -> str:
        result = command(served, "schedule", *words)
        assert result.exit_code == code, result.output
        return result.output

    added = say(
        "add", "nightly", "suite", "--cron", "0 3 * * *", "--budget", "9", "--operators", "square", "--kinds", "bench"
    )
    assert added.startswith("1\tkernels\tnightly\tsuite\t0 3 * * *\tnext ")
    assert added.rstrip().endswith("03:00 UTC\t0.0 of 9 min")
    assert say("list", "--repository", "kernels") == added
    assert "\tdisabled\t" in say("disable", "nightly")
    assert say("run", "1").startswith("submission 1: 1 job at 1 commit")
    assert "submission 1" in say("enable", "nightly")
    assert "cron: '61 * * * *' is not a cron expression" in say("add", "x", "rerun", "--cron", "61 * * * *", code=2)
    assert "use at least 1" in say("add", "x", "rerun", "--budget", "-3", code=2).replace("\n", " ")
    assert "no schedule 'weekly'; choose from: 1 (kernels: nightly)" in say("remove", "weekly", code=2).replace(
        "\n", " "
    )
    assert say("remove", "nightly") == "schedule 1 nightly is removed\n"
    assert say("list") == ""
