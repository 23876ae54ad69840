"""The tools of agents: one day of work over HTTP and stdio, by the official client, and the rights of a token."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import httpx2
import pytest
from fastapi.testclient import TestClient
from mcp import Client, StdioServerParameters
from mcp.client.streamable_http import streamable_http_client

from tests.apps import create_app
from tests.builders import CASES, Lab
from tests.server.agent import Agent, find_and_mend
from tests.server.simulated import Machine
from tests.server.story import Planted
from tests.server.test_patches import PatchWorker, checked, slow
from warpwatch.contract.words import AccountRole, TokenScope
from warpwatch.db.access import add_token
from warpwatch.db.accounts import ensure_account
from warpwatch.server.history.branches import follow_branches
from warpwatch.server.http.access import hash_of
from warpwatch.server.judge import Judge
from warpwatch.settings import Settings

TOKEN, ADDRESS = "the-token-of-the-server", "http://bench.example"
WRITING = {"try_patch", "judge", "submit", "triage"}


@pytest.fixture
def regressed(client: TestClient, lab: Lab, settings: Settings) -> Lab:
    """A history whose commit 3 made v3 slower by a fifth, which the judge found and a trial confirmed."""
    # Without a mirror nothing is compared with its neighbours.
    assert client.get("/api/v1/repositories/kernels/commits").status_code == 200
    machine = Machine(client, lab, Judge(settings, lab.database), Planted(slow={3, 4, 5}), between=0.001, within=0.001)
    follow_branches(lab.database, settings, lab.repository)
    for number in range(len(lab.shas)):
        if number in (2, 3):
            machine.check(number)
        machine.bench(number)
    machine.work()
    return lab


async def read_all(agent: Agent, lab: Lab) -> None:
    """The tools that the day's work leaves out, and what they say of wrong arguments."""
    compared = await agent.call(
        "compare_commits", repository="kernels", left=lab.shas[2], right=lab.shas[3], device="test-cpu"
    )
    assert compared["items"][0]["statement"].endswith("slower")
    listed = await agent.call("show_history", repository="kernels", variant="v3")
    assert {item["device"] for item in listed["items"]} == {"test-cpu"}
    await agent.call("show_health")
    made = await agent.call("submit", repository="kernels", commits=lab.shas[1], kinds=["check"], device="cpu")
    await agent.call("wait_for_verdict", submission=made["submission"], seconds=0)
    assert "register it with" in await agent.refused("list_open", repository="nothing")
    assert "there is no regression 99" in await agent.refused("show_change", change=99)
    unjudged = await agent.refused("judge", repository="kernels", operator="square", patch="x")
    assert "this server judges no patches" in unjudged
    assert "there is no judgement 99" in await agent.refused("judge", judgement=99)
    refused = await agent.refused("submit", repository="kernels", commits="main", operators=["none"])
    assert "422:" in refused
    assert "operators: there is no operator" in refused


def test_an_agent_works_a_day_over_http_and_stdio(regressed: Lab, served: Settings) -> None:
    worker = PatchWorker(regressed, {"check": checked(regressed), "compare": slow(regressed, "v3", times=0.8)})

    async def work() -> None:
        async with Client(f"{served.server_url}/mcp") as client:
            agent, tools = Agent(client), (await client.list_tools()).tools
            await find_and_mend(agent, "square", "v3")
        command = StdioServerParameters(
            command=sys.executable,
            args=["-m", "warpwatch", "mcp"],
            env=dict(os.environ) | {"WARPWATCH_URL": served.server_url, "WARPWATCH_TOKEN": ""},
        )
        async with Client(command) as client:
            other = Agent(client)
            assert (await client.list_tools()).tools == tools, "both have the same tools"
            await read_all(other, regressed)
        names = {tool.name for tool in tools}
        # Nothing is judged here, so the tool is refused.
        assert agent.used | other.used | {"judge"} == names
        assert len(names) <= 12
        assert {tool.name for tool in tools if not (tool.annotations and tool.annotations.read_only_hint)} == WRITING

    worker.thread.start()
    try:
        asyncio.run(work())
    finally:
        worker.stop.set()
        worker.thread.join()


@asynccontextmanager
async def connected(app: Any, token: str) -> AsyncIterator[Agent]:
    """An agent with a token, in the process of an application."""
    transport = httpx2.ASGITransport(app=app)
    async with (
        httpx2.AsyncClient(transport=transport, headers={"Authorization": f"Bearer {token}"}) as http,
        Client(streamable_http_client(f"{ADDRESS}/mcp", http_client=http)) as client,
    ):
        yield Agent(client)


def test_a_tool_may_do_what_its_token_may(lab: Lab, settings: Settings) -> None:
    app = create_app(replace(settings, host="0.0.0.0", token=TOKEN), lab.database, judge=False)
    for number in (0, 1):
        lab.bench(number, {("v1", CASES[0]): 1000.0})
    lab.confirm(0, 1)
    calls: dict[str, dict[str, Any]] = {
        "try_patch": {"repository": "kernels", "base": "main", "patch": "x"},
        "judge": {"repository": "kernels", "operator": "square", "patch": "x"},
        "submit": {"repository": "kernels", "commits": "main"},
        "triage": {"change": 1, "state": "accepted", "author": "agent"},
    }
    assert calls.keys() == WRITING
    with lab.database.session() as session:
        account = ensure_account(session, "viewer", AccountRole.VIEWER)
        add_token(session, account.id, "viewer", "", hash_of("wwp_viewer"), TokenScope.READ, None)

    async def work() -> None:
        async with app.router.lifespan_context(app):
            async with connected(app, "wwp_viewer") as agent:
                (suspected,) = (await agent.call("list_open", repository="kernels", tab="suspected"))["items"]
                assert suspected["certainty"] == "suspected, by times of separate runs"
                for tool, arguments in calls.items():
                    refused = await agent.refused(tool, **arguments)
                    assert "403: this needs the scope" in refused, tool
                    assert "An administrator can change it" in refused
            async with connected(app, TOKEN) as agent:
                await agent.call("triage", **calls["triage"])
                assert (await agent.call("show_change", change=1))["notes"][-1].startswith("agent (accepted)")
            transport = httpx2.ASGITransport(app=app)
            async with httpx2.AsyncClient(transport=transport, base_url=ADDRESS) as http:
                assert (await http.post("/mcp", json={})).status_code == 401
                administrator = {"Authorization": f"Bearer {TOKEN}"}
                assert (await http.get("/mcp", headers=administrator)).status_code == 405
                trail = (await http.get("/api/v1/audit", headers=administrator)).json()["items"]
                assert [(row["caller"], row["path"]) for row in trail] == [("token", "/api/v1/regressions/1/triage")]

    asyncio.run(work())
