"""The description of the REST API as a page, so that reading it needs no outside script; and /llms.txt, which agents
read first."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Any

from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.responses import FileResponse

from warpwatch.server.web.render import render

LLMS_FILE = Path(__file__).parents[2] / "web" / "static" / "agents" / "llms.txt"

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
    answer: str
    """The type of the body of a successful answer."""
    curl: str


@router.get("/api/v1/docs")
def reference(request: Request) -> Response:
    """Every endpoint by group. Needs no database."""
    app: FastAPI = request.app
    endpoints = sorted(operations(app.openapi()), key=lambda operation: operation.group)
    address = str(request.base_url).rstrip("/")
    endpoints = [replace(operation, curl=operation.curl.replace("{address}", address, 1)) for operation in endpoints]
    groups = [(name, list(group)) for name, group in groupby(endpoints, key=lambda operation: operation.group)]
    return render(request, "reference.html", groups=groups, json_url=app.openapi_url, count=len(endpoints))


@router.get("/llms.txt")
def get_llms() -> Response:
    """The map of the service for agents; it holds nothing of this server, so it needs no token."""
    return FileResponse(LLMS_FILE, media_type="text/plain; charset=utf-8")


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
            answer=_answer(entry),
            curl=_curl(method.upper(), path, entry, _body(schema, entry)),
        )
        for path, methods in schema["paths"].items()
        for method, entry in methods.items()
    ]


def _answer(entry: dict[str, Any]) -> str:
    """The schema of a successful answer, else its media type."""
    for status, response in entry.get("responses", {}).items():
        if status.startswith("2"):
            for media_type, content in response.get("content", {}).items():
                return str(content.get("schema", {}).get("$ref", "").rpartition("/")[2] or media_type)
    return ""


def _curl(method: str, path: str, entry: dict[str, Any], body: list[tuple[str, bool, str]]) -> str:
    """A command with the required parameters, in capitals where a value is to be filled in."""
    required = [row["name"] for row in entry.get("parameters", []) if row["in"] == "query" and row.get("required")]
    query = "&".join(f"{name}={name.upper()}" for name in required)
    target = re.sub(r"\{(\w+)\}", lambda match: match[1].upper(), path)
    words = ["curl", *(["-X", method] if method != "GET" else [])]
    words.append(f"'{{address}}{target}{'?' + query if query else ''}'")
    if fields := ", ".join(f'"{name}": "{name.upper()}"' for name, is_required, _ in body if is_required):
        words += ["-H", "'Content-Type: application/json'", "-d", f"'{{{fields}}}'"]
    return " ".join(words)


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
