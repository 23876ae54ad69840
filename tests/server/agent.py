"""An agent without a model: it follows the tools from what is open to a patch that is proven faster."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import Any

from mcp import Client
from mcp.types import TextContent

from warpwatch.server.http.brief import MOST_BYTES

MOST_CALLS, MOST_READ = 15, 60_000


@dataclass
class Agent:
    """Calls tools, and counts the calls and the bytes that it had to read."""

    client: Client
    calls: int = 0
    read: int = 0
    used: set[str] = field(default_factory=set)

    async def call(self, tool: str, **arguments: Any) -> dict[str, Any]:
        is_error, text = await self._send(tool, arguments)
        assert not is_error, text
        assert len(text.encode()) <= MOST_BYTES
        self.calls += 1
        self.read += len(text.encode())
        self.used.add(tool)
        answer: dict[str, Any] = json.loads(text)
        return answer

    async def wait(self, submission: int) -> dict[str, Any]:
        """The verdict on a submission, however long it takes."""
        verdict: dict[str, Any] = {"verdict": "pending"}
        while verdict["verdict"] == "pending":
            verdict = await self.call("wait_for_verdict", submission=submission, seconds=55)
        return verdict

    async def refused(self, tool: str, **arguments: Any) -> str:
        """The error that a call ends with."""
        is_error, text = await self._send(tool, arguments)
        assert is_error
        return text

    async def _send(self, tool: str, arguments: dict[str, Any]) -> tuple[bool, str]:
        result = await self.client.call_tool(tool, arguments)
        (content,) = result.content
        assert isinstance(content, TextContent)
        return result.is_error or False, content.text


def reverse_patch(items: list[dict[str, Any]]) -> str:
    """The diff of an explanation, turned around."""
    lines = "".join(item["diff"] for item in items if "diff" in item).splitlines()
    turned: list[str] = []
    for number, line in enumerate(lines):
        if hunk := re.match(r"@@ (-\S+) (\+\S+) @@", line):
            turned.append(f"@@ -{hunk[2][1:]} +{hunk[1][1:]} @@")
        elif number + 1 < len(lines) and lines[number + 1].startswith("@@"):
            turned += [f"--- a/{line}", f"+++ b/{line}"]
        else:
            turned.append({"+": "-", "-": "+"}.get(line[:1], line[:1]) + line[1:])
    return "\n".join([*turned, ""])


async def find_and_mend(agent: Agent, operator: str, variant: str) -> None:
    """From what is open to a patch that is proven faster, in at most MOST_CALLS calls and MOST_READ bytes."""
    tools = (await agent.client.list_tools()).tools
    agent.read = sum(len(tool.model_dump_json(exclude_none=True)) for tool in tools)
    (repository,) = (await agent.call("list_open"))["items"]
    name = repository["repository"]
    assert repository["stands"].startswith("1 open")
    worst = (await agent.call("list_open", repository=name))["items"][0]
    assert "slower" in worst["what"]
    assert "95 % interval" in worst["certainty"]
    change = await agent.call("show_change", change=worst["change"])
    series = next(item for item in change["items"] if "series" in item)
    assert re.fullmatch(r"[\d.]+.µs → [\d.]+.µs per call, medians of paired rounds", series["times"])
    assert change["reproduce"]
    why = await agent.call("explain", change=worst["change"])
    history = await agent.call("show_history", series=series["series"])
    assert [item["change"] for item in history["items"] if "change" in item] == [worst["change"]]
    (device,) = (await agent.call("show_health", about="devices"))["items"]
    patch = reverse_patch(why["items"])
    tried = await agent.call(
        "try_patch", repository=name, base=worst["commit"], patch=patch, device=device["device"], operators=[operator]
    )
    verdict = await agent.wait(tried["submission"])
    assert verdict["verdict"] == "success"
    (finding,) = (item for item in verdict["items"] if item["finding"] == "faster")
    assert f"{operator} {variant}" in finding["statement"]
    assert "paired round" in finding["certainty"]
    triaged = await agent.call(
        "triage", change=worst["change"], state="acknowledged", author="agent", note=f"mended by {tried['submission']}"
    )
    assert triaged["notes"][-1].startswith("agent (acknowledged)")
    found = await agent.call("search", repository=name, words=operator)
    assert {item["kind"] for item in found["items"]} >= {"operator", "regression"}
    assert agent.calls <= MOST_CALLS
    assert agent.read <= MOST_READ
