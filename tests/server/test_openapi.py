"""The OpenAPI description: complete, and true under requests made up from it."""

from __future__ import annotations

from typing import Any

import pytest
import schemathesis
from fastapi import FastAPI
from hypothesis import HealthCheck, given, settings
from hypothesis.errors import Unsatisfiable
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from tests.builders import CASES, Lab
from warpwatch.contract.words import Status
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
                (media_type,) = response["content"]
                assert media_type != "application/json" or response["content"][media_type].get("schema") != {}, (
                    f"{name} {status}"
                )


def test_names_of_operations_are_unique(app: FastAPI) -> None:
    names = [operation["operationId"] for _, _, operation in operations(app)]
    assert len(names) == len(set(names))


WITHOUT = r"/(events|download\.json|download\.json\.gz)$"
"""Streams, which other tests read."""
CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]


POSITIVE, NEGATIVE = 20, 14
"""Requests per operation that the description allows, and that it does not."""


@pytest.mark.timeout(240)
@pytest.mark.parametrize(
    ("mode", "examples"), [(GenerationMode.POSITIVE, POSITIVE), (GenerationMode.NEGATIVE, NEGATIVE)]
)
def test_made_up_requests_are_answered_as_described(
    served: Settings, lab: Lab, mode: GenerationMode, examples: int
) -> None:
    lab.check(0, {("v1", CASES[0]): Status.OK})
    lab.bench(0, {("v1", CASES[0]): 1000.0})
    lab.profile(0)
    schema = schemathesis.openapi.from_url(f"{served.server_url}/api/v1/openapi.json").exclude(path_regex=WITHOUT)

    tried, free = [], []
    for found in schema.get_all_operations():
        operation: Any = found.ok()  # type: ignore[union-attr]

        @settings(
            max_examples=examples,
            deadline=None,
            database=None,
            derandomize=True,
            suppress_health_check=list(HealthCheck),
        )
        @given(case=operation.as_strategy(generation_mode=mode))
        def hold(case: Any) -> None:
            case.call_and_validate(checks=CHECKS)

        try:
            hold()
        except Unsatisfiable:
            # It asks for nothing that could be wrong.
            free.append(operation.label)
        else:
            tried.append(operation.label)
    assert len(tried) >= 60
    assert mode is GenerationMode.NEGATIVE or free == []
