"""The description of the REST API as a page, so that reading it needs no outside script."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby
from typing import Any

from fastapi import APIRouter, FastAPI, Request, Response

from warpwatch.server.pages.render import render

router = APIRouter()


@dataclass(frozen=True, slots=True)
class Operation:
    """One endpoint; parameters are (name, whether it is required, description)."""

    group: str
    method: str
    path: str
    summary: str
    description: str
    parameters: list[tuple[str, bool, str]]


@router.get("/api/v1/docs")
def reference(request: Request) -> Response:
    """Every endpoint by group. Needs no database."""
    app: FastAPI = request.app
    endpoints = sorted(operations(app.openapi()), key=lambda operation: operation.group)
    groups = [(name, list(group)) for name, group in groupby(endpoints, key=lambda operation: operation.group)]
    return render(request, "reference.html", groups=groups, json_url=app.openapi_url)


def operations(schema: dict[str, Any]) -> list[Operation]:
    """The operations of an OpenAPI description, in its order."""
    return [
        Operation(
            group=(entry.get("tags") or ["other"])[0],
            method=method.upper(),
            path=path,
            summary=entry.get("summary", ""),
            description=entry.get("description", ""),
            parameters=[_parameter(parameter) for parameter in entry.get("parameters", [])] + _body(schema, entry),
        )
        for path, methods in schema["paths"].items()
        for method, entry in methods.items()
    ]


def _parameter(entry: dict[str, Any]) -> tuple[str, bool, str]:
    return entry["name"], entry.get("required", False), entry.get("description", "")


def _body(schema: dict[str, Any], entry: dict[str, Any]) -> list[tuple[str, bool, str]]:
    """The fields of the JSON body."""
    content = entry.get("requestBody", {}).get("content", {}).get("application/json", {})
    name = content.get("schema", {}).get("$ref", "").rpartition("/")[2]
    model = schema.get("components", {}).get("schemas", {}).get(name, {})
    required = model.get("required", [])
    return [
        (field, field in required, value.get("description", "")) for field, value in model.get("properties", {}).items()
    ]
