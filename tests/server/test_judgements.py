"""Judgements: what a client sends chooses nothing, what it is told names no hidden case, and what is signed holds."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from tests.apps import create_app
from tests.builders import CASES, Lab, catalogue, write_commits
from tests.server.test_submissions import jobs
from warpwatch.contract.activities import RunTimes
from warpwatch.contract.outcome import Comparison, Finding, Outcome
from warpwatch.contract.spec import JobRequest
from warpwatch.contract.words import JobKind, Status
from warpwatch.db import registry, runs
from warpwatch.db.database import Database
from warpwatch.server.threads.judgement_keeper import JudgementKeeper
from warpwatch.settings import Settings

API = "/api/v1"
PUBLIC, HIDDEN = CASES[0], "n=8191,f32,fwd"
OPERATOR = """
from warpwatch.operator import Operator

def scale(x):
    return x

def reference(x):
    return scale(x)

def helper(x):
    return x

operator = Operator("square", "About square.", reference=reference)

@operator.variant("v1")
def v1(x):
    return helper(x)
"""
FASTER = {"kernels/square.py": OPERATOR.replace("return helper(x)", "return helper(x) + 0")}
RULES = f"""
seconds = 60
per_day = 4
open = 2
[[judged]]
repository = "kernels"
operator = "square"
device = "test-cpu"
variants = ["v1"]
public = ["{PUBLIC}"]
hidden = ["{HIDDEN}"]
"""


@pytest.fixture
def settings(settings: Settings, tmp_path: Path) -> Settings:
    (tmp_path / "judgements.toml").write_text(RULES)
    return replace(settings, judgements=tmp_path / "judgements.toml")


@pytest.fixture
def lab(database: Database, tmp_path: Path) -> Lab:
    source = tmp_path / "kernels"
    shas = write_commits(source, [("Add square", {"kernels/square.py": OPERATOR, "csrc/square/a.cpp": "int a;\n"})])
    made = Lab(database, source, shas, folder=tmp_path)
    with database.session() as session:
        registry.record_catalogue(session, made.commits[shas[0]], catalogue(("square",)))
    return made


@pytest.fixture
def keeper(settings: Settings, lab: Lab) -> JudgementKeeper:
    return JudgementKeeper(settings, lab.database)


@pytest.fixture
def client(settings: Settings, lab: Lab) -> Iterator[TestClient]:
    app = create_app(settings, lab.database, judge=False)
    with TestClient(app, base_url="http://127.0.0.1:8321", raise_server_exceptions=False) as client:
        yield client


def ask(client: TestClient, **fields: Any) -> Any:
    body = {"repository": "kernels", "operator": "square", "files": FASTER} | fields
    return client.post(f"{API}/judgements", json={name: value for name, value in body.items() if value is not None})


def run_of(lab: Lab, job: int) -> tuple[int, JobRequest]:
    """A run of the job, and the request that its worker gets."""
    with lab.database.session() as session:
        claimed = runs.begin_run(session, job, lab.worker)
    assert claimed is not None
    return claimed.run_id, claimed.request


def measured(lab: Lab, request: JobRequest, times: float = 0.5, **wrong: Any) -> Outcome:
    """What a worker finds that measures everything it was asked for; wrong: fields of the first finding."""
    spec = request.spec
    if request.kind is JobKind.COMPARE:
        base = [10_000.0 + number for number in range(12)]
        rounds = [
            Comparison(*pair, "hot", "1", Status.OK, "", base, [time * times for time in base])
            for pair in spec.pairs or ()
        ]
        return replace(lab.outcome([]), comparisons=rounds)
    found = [Finding("v1", case, Status.OK, f"at {case}") for case in spec.cases or ()]
    return lab.outcome([replace(found[0], **wrong), *found[1:]])


def finish(lab: Lab, client: TestClient, row: dict[str, Any], times: float = 0.5, **wrong: Any) -> None:
    """Runs all jobs of a judgement; wrong: fields of the first finding on hidden cases."""
    for job in jobs(client, row["submission_id"]):
        if job["state"] == "queued":
            run_id, request = run_of(lab, job["id"])
            outcome = measured(lab, request, times, **(wrong if request.spec.sealed else {}))
            with lab.database.session() as session:
                runs.finish_patch_run(session, run_id, outcome, RunTimes())


def judged(client: TestClient, lab: Lab, keeper: JudgementKeeper, times: float = 0.5, **wrong: Any) -> dict[str, Any]:
    """A judgement that has ended."""
    row = ask(client).json()
    finish(lab, client, row, times, **wrong)
    keeper.sweep()
    answer: dict[str, Any] = client.get(f"{API}/judgements/{row['id']}").json()
    return answer


def test_a_patch_is_judged_and_its_receipt_verifies(client: TestClient, lab: Lab, keeper: JudgementKeeper) -> None:
    answer = ask(client)
    assert answer.status_code == 201, answer.text
    row = answer.json()
    assert (row["state"], row["verdict"], row["receipt"]) == ("pending", None, None)
    keeper.sweep()
    assert client.get(f"{API}/judgements/{row['id']}").json() == row, "nothing is decided before the jobs have run"
    finish(lab, client, row)
    keeper.sweep()
    ended = client.get(f"{API}/judgements/{row['id']}").json()
    assert (ended["state"], ended["verdict"], ended["at_least"]) == ("ended", "faster", 2.0)
    statement = client.post(f"{API}/receipts/verify", json={"receipt": ended["receipt"]}).json()["statement"]
    assert statement["base"] == lab.shas[0]
    assert [(time["case"], time["outcome"]) for time in statement["public"]["times"]] == [(PUBLIC, "faster")]
    assert statement["hidden"]["verdict"] == "faster"
    assert len(statement["hidden"]["cases"]) == 1
    assert statement["device"]["key"] == "test-cpu"
    assert statement["environment"]["facts"]["torch"] == "2.13.0"
    shown = client.post("/receipts/verify", data={"receipt": ended["receipt"]})
    assert "This server signed exactly this" in shown.text
