"""The OpenAPI description: complete, and true under requests made up from it."""

from __future__ import annotations

import json
import re
from contextlib import suppress
from functools import cache
from typing import Any

import pytest
import requests
import schemathesis
from fastapi import FastAPI
from fastapi.testclient import TestClient
from hypothesis import HealthCheck, given, settings
from hypothesis.errors import Unsatisfiable
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)
from sqlalchemy import text

from tests.builders import CASES, Lab
from warpwatch.contract.measurement import LONGEST_NS, SHORTEST_NS
from warpwatch.contract.words import Status
from warpwatch.server.http.brief import BRIEF_TYPE
from warpwatch.settings import Settings


def operations(app: FastAPI) -> list[tuple[str, str, dict[str, Any]]]:
    return [
        (path, method, operation) for path, item in app.openapi()["paths"].items() for method, operation in item.items()
    ]


def test_every_operation_says_what_it_answers(app: FastAPI) -> None:
    found = operations(app)
    assert len(found) >= 35
    for path, method, operation in found:
        name = f"{method} {path}"
        assert operation.get("description"), f"{name} has no description"
        assert operation.get("tags"), f"{name} has no tag"
        assert "503" in operation["responses"], f"{name} does not say what a broken database does"
        for status, response in operation["responses"].items():
            if status.startswith(("4", "5")):
                assert list(response["content"]) == ["application/problem+json"], f"{name} {status}"
            elif status not in ("204", "304"):
                (media_type,) = response["content"].keys() - {BRIEF_TYPE}
                assert media_type != "application/json" or response["content"][media_type].get("schema") != {}, (
                    f"{name} {status}"
                )


def test_every_type_that_is_referred_to_is_described(app: FastAPI) -> None:
    description = app.openapi()
    references = set(re.findall(r'"#/components/schemas/([^"]+)"', json.dumps(description)))
    assert {"ProblemBody", "FieldError"} <= references
    assert references <= description["components"]["schemas"].keys()


def test_names_of_operations_are_unique(app: FastAPI) -> None:
    names = [operation["operationId"] for _, _, operation in operations(app)]
    assert len(names) == len(set(names))


Case = schemathesis.Case[Any]


WITHOUT = r"/(events|download\.json|download\.json\.gz)$"
"""Streams, which other tests read."""
CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]


REQUESTS = {GenerationMode.POSITIVE: 2, GenerationMode.NEGATIVE: 1}
"""Per operation, those that the description allows, and those that it does not; `--requests` multiplies them."""


HOSTILE = "<img src=x onerror=alert(1)>\u2028\u202e=1+1,\"'\x07%00{{ 7 * 7 }}\U0001f600"
"""Text that means something to HTML, JavaScript, spreadsheets, templates or a terminal."""


@cache
def make_up(description: str, mode: GenerationMode, times: int) -> dict[str, list[Case]]:
    """Requests made up from a description, by operation; none for an operation that takes none of this mode.

    Tests share them: making one up takes longer than answering it.
    """
    schema = schemathesis.openapi.from_dict(json.loads(description)).exclude(path_regex=WITHOUT)
    operations: list[Any] = [found.ok() for found in schema.get_all_operations()]  # type: ignore[union-attr]
    return {operation.label: _make_up(operation, mode, times) for operation in operations}


def takes_every_text(described: dict[str, Any]) -> bool:
    """Whether an operation has no body, and parameters that may be any text alone."""
    schemas = [parameter["schema"] for parameter in described.get("parameters", ())]
    return "requestBody" not in described and all(
        schema.get("type") == "string" and schema.keys() <= {"type", "title", "description"} for schema in schemas
    )


def _make_up(operation: Any, mode: GenerationMode, times: int) -> list[Case]:
    cases: list[Case] = []
    if mode is GenerationMode.NEGATIVE and takes_every_text(operation.definition.raw):
        # Hypothesis would find that out with 459 tries, which take half a second.
        return cases

    @settings(
        max_examples=REQUESTS[mode] * times,
        deadline=None,
        database=None,
        derandomize=times == 1,
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy(generation_mode=mode))
    def keep(case: Case) -> None:
        cases.append(case)

    with suppress(Unsatisfiable):
        keep()
    return cases


def call_everything(server_url: str, mode: GenerationMode, times: int) -> tuple[list[str], list[str]]:
    """Sends made-up requests to every operation; labels of those that were tried, and of those that take none such."""
    session = requests.Session()
    # Otherwise it looks for proxies and passwords before every request.
    session.trust_env = False
    description = session.get(f"{server_url}/api/v1/openapi.json", timeout=60).text
    tried: list[str] = []
    free: list[str] = []
    for label, cases in make_up(description, mode, times).items():
        for case in cases:
            case.call_and_validate(base_url=server_url, checks=CHECKS, session=session)
        (tried if cases else free).append(label)
    return tried, free


@pytest.mark.parametrize(
    "mode",
    # Every run sends those that are allowed where every text is hostile, below.
    [pytest.param(GenerationMode.POSITIVE, marks=pytest.mark.nightly), GenerationMode.NEGATIVE],
)
def test_made_up_requests_are_answered_as_described(
    served: Settings, lab: Lab, mode: GenerationMode, times: int
) -> None:
    lab.check(0, {("v1", CASES[0]): Status.OK})
    lab.bench(0, {("v1", CASES[0]): 1000.0})
    lab.profile(0)
    tried, free = call_everything(served.server_url, mode, times)
    assert len(tried) >= 60
    assert mode is GenerationMode.NEGATIVE or free == []


@pytest.fixture
def hostile(lab: Lab) -> Lab:
    """A repository whose every text is hostile, whose numbers are extreme, and whose jobs ended in every way."""
    lab.check(0, {("v1", CASES[0]): Status.OK})
    for index in range(3):
        lab.bench(index, {("v1", CASES[0]): 1000.0, (HOSTILE, CASES[1]): 1000.0})
    lab.check(2, {(HOSTILE, CASES[0]): Status.CRASHED, ("v1", CASES[1]): Status.WRONG})
    lab.profile(2)
    lab.submit("bench", 1)
    lab.begin(lab.submit("check", 1))
    for table, column in (
        ("commits", "subject"),
        ("commits", "author"),
        ("operators", "summary"),
        ("variants", "idea"),
        ("all_results", "message"),
        ("jobs", "message"),
        ("runs", "message"),
        ("builds", "log"),
        ("trace_kernels", "name"),
        ("workers", "version"),
    ):
        with lab.database.session() as s:
            s.execute(text(f"UPDATE {table} SET {column} = :hostile"), {"hostile": HOSTILE})
    with lab.database.session() as s:
        s.execute(text("UPDATE commits SET authored_at = 'epoch' WHERE id % 2 = 0"))
        times = {"least": SHORTEST_NS, "most": LONGEST_NS}
        s.execute(text("UPDATE all_points SET noise = 1e300, roofline_share = 1e300"))
        s.execute(text("UPDATE all_points SET low_ns = :least, high_ns = :most"), times)
        s.execute(text("UPDATE all_points SET median_ns = CASE id % 2 WHEN 0 THEN :least ELSE :most END"), times)
        s.execute(text("UPDATE cases SET flops = 0, bytes = 9223372036854775807"))
        s.execute(text("UPDATE all_results SET details = CAST(:details AS jsonb)"), {"details": DETAILS})
    return lab


DETAILS = json.dumps({"flops": 0, "bytes": 0, "health": {HOSTILE: HOSTILE}, "dropped": {HOSTILE: HOSTILE}})


def test_hostile_data_breaks_no_answer(served: Settings, hostile: Lab, times: int) -> None:
    tried, free = call_everything(served.server_url, GenerationMode.POSITIVE, times)
    assert len(tried) >= 60
    assert free == []


PAGES = [
    "/",
    "/overview",
    "/history?operator=square",
    "/history/1",
    "/kernels/square",
    "/commits",
    "/commits/{sha}",
    "/compare?base={base}&head={sha}",
    "/regressions",
    "/jobs",
    "/jobs/1",
    "/jobs/4",
    "/submissions",
    "/submissions/1",
    "/traces",
    "/traces/1",
    "/devices",
    "/alarms",
    "/schedules",
    "/branches",
    "/proofs",
]


def test_hostile_data_breaks_no_page(client: TestClient, hostile: Lab) -> None:
    for path in PAGES:
        answer = client.get(path.format(base=hostile.shas[0], sha=hostile.shas[2]))
        assert answer.status_code == 200, (path, answer.text)
        assert "<img src=x" not in answer.text, path


def test_the_map_for_agents_leads_to_what_answers(app: FastAPI, client: TestClient) -> None:
    answer = client.get("/llms.txt")
    assert answer.headers["content-type"].startswith("text/plain")
    links = set(re.findall(r"\]\((/[^)]+)\)", answer.text)) - {"/mcp"}
    assert len(links) >= 7
    assert {path: status for path in links if (status := client.get(path).status_code) != 200} == {}
    known = {re.sub(r"\{\w+\}", "ID", path) for path, _, _ in operations(app)}
    named = {path.partition("?")[0] for path in re.findall(r"`(/api/v1/[^`]+)`", answer.text)}
    assert (len(named), named - known) == (3, set())
