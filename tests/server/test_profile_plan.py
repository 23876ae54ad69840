"""How a profile is taken is asked for: over REST, by the form, on the command line."""

from __future__ import annotations

import json
import shlex
from typing import Any

import pytest
import typer
from fastapi.testclient import TestClient
from sqlalchemy import text

from tests.builders import CASES, Lab, trace
from tests.server.test_submissions import ask, errors, jobs
from warpwatch.cli.plans import profile_plan
from warpwatch.contract.codec import from_json
from warpwatch.contract.outcome import Finding
from warpwatch.contract.spec import PLAN_LIMITS, ProfilePlan
from warpwatch.contract.words import Status
from warpwatch.db import runs
from warpwatch.server.intake.submission_request import ProfileOptions

PLAN: dict[str, Any] = {"wait": 3, "warm_up": 1, "active": 4, "repeat": 2, "counters": True}


def spec(client: TestClient, submission: int) -> dict[str, Any]:
    (job,) = jobs(client, submission)
    found: dict[str, Any] = client.get(f"/api/v1/jobs/{job['id']}").json()
    return found


def test_a_plan_travels_with_the_job_and_its_replay(client: TestClient, lab: Lab) -> None:
    answer = ask(client, kinds=["profile"], operators=["square"], profile=PLAN)
    detail = spec(client, answer.json()["id"])
    assert from_json(ProfilePlan, detail["spec"]["profile"]) == ProfilePlan(**PLAN)
    words = shlex.split(detail["replay"])
    at = words.index("--profile")
    assert profile_plan(words[at + 1], "--counters" in words) == ProfilePlan(**PLAN)


def test_the_usual_plan_is_not_mentioned(client: TestClient, lab: Lab) -> None:
    detail = spec(client, ask(client, kinds=["profile"], operators=["square"]).json()["id"])
    assert "profile" not in detail["spec"]
    assert "--profile" not in detail["replay"]
    assert (
        "profile"
        not in spec(client, ask(client, kinds=["check"], operators=["cube"], profile=PLAN).json()["id"])["spec"]
    )


def test_the_form_asks_for_it_too(client: TestClient, lab: Lab) -> None:
    form = {"repository": "kernels", "commits": "main", "kinds": "profile", "operators": "square", "device": "cpu"}
    plan = {f"profile.{name}": "true" if value is True else str(value) for name, value in PLAN.items()}
    made = client.post("/runs/new", data=form | plan, follow_redirects=False)
    assert made.status_code == 303, made.text
    assert spec(client, int(made.headers["location"].rsplit("/", 1)[1]))["spec"]["profile"] == PLAN
    refused = client.post("/runs/new", data=form | plan | {"profile.active": "0"})
    assert refused.status_code == 422
    assert 'id="profile.active-error"' in refused.text
    assert refused.text.count('aria-describedby="profile.') == 1, "the field at fault alone is marked"
    assert '<details class="more" open>' in refused.text
    assert 'value="3"' in refused.text, "what was entered is kept"


@pytest.mark.parametrize("plan", [{"wait": 3}, {"counters": True}, {"wait": "three", "pause": 1}, None])
def test_a_stored_plan_that_is_not_whole_takes_defaults(client: TestClient, lab: Lab, plan: Any) -> None:
    job = lab.submit("profile", 0)
    lab.finish(job, lab.outcome([Finding("v1", CASES[0], Status.OK, profile=trace(lab.folder))]))
    with lab.database.session() as session:
        session.execute(
            text("UPDATE jobs SET spec = jsonb_set(spec, '{profile}', CAST(:plan AS jsonb)) WHERE id = :id"),
            {"plan": json.dumps(plan), "id": job},
        )
    assert client.get(f"/jobs/{job}").status_code == 200
    replay = client.get(f"/api/v1/jobs/{job}").json()["replay"]
    assert ("--profile" in replay) == (plan in ({"wait": 3}, {"counters": True}))


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"kinds": ["check"], "sanitize": "address", "seed": 7}, "--seed 7 --sanitize address"),
        ({"kinds": ["profile"], "profile": PLAN}, "--profile 3,1,4,2 --counters"),
    ],
)
def test_the_replay_command_in_a_report_drops_no_option(
    client: TestClient, lab: Lab, fields: dict[str, Any], words: str
) -> None:
    number = ask(client, operators=["square"], **fields).json()["id"]
    (job,) = jobs(client, number)
    run_id = lab.begin(job["id"])
    with lab.database.session() as session:
        runs.fail_run(session, run_id, "it cannot be run", retry=False)
    (row,) = client.get(f"/api/v1/submissions/{number}/report").json()["rows"]
    assert words in row["replay"]


@pytest.mark.parametrize("name", PLAN_LIMITS)
def test_limits_are_those_of_the_harness(client: TestClient, lab: Lab, name: str) -> None:
    low, high = PLAN_LIMITS[name]
    for value, good in ((low, True), (high, True), (low - 1, False), (high + 1, False)):
        answer = ask(client, kinds=["profile"], operators=["square"], profile={name: value})
        assert (answer.status_code == 201) is good, (name, value)
        if not good:
            assert any(field.startswith("profile") for field in errors(answer))
    assert ProfileOptions().model_dump() == {
        field: getattr(ProfilePlan(), field) for field in ProfileOptions.model_fields
    }


@pytest.mark.parametrize(
    ("words", "counters", "plan"),
    [
        (None, False, {}),
        (None, True, {"counters": True}),
        ("3,1,4", False, {"wait": 3, "warm_up": 1, "active": 4}),
        ("0,0,1,5", True, {"wait": 0, "warm_up": 0, "active": 1, "repeat": 5, "counters": True}),
    ],
)
def test_words_of_the_command_line(words: str | None, counters: bool, plan: dict[str, Any]) -> None:
    assert profile_plan(words, counters) == ProfilePlan(**plan)


@pytest.mark.parametrize("words", ["", "1", "1,2", "1,2,3,4,5", "1,x,3", "-1,1,1"])
def test_other_words_are_refused(words: str) -> None:
    with pytest.raises(typer.BadParameter, match="such as 3,1,4"):
        profile_plan(words, counters=False)
