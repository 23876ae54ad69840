"""The tools of agents on a real service: a patch that takes extra work back is measured and proven faster."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from mcp import Client

from tests.e2e.conftest import Running
from tests.e2e.repositories import TEN_COMMITS, commit, create, git
from tests.server.agent import Agent

pytestmark = pytest.mark.timeout(900)


def test_a_patch_is_proven_faster_by_tools_alone(running: Running, source: Path) -> None:
    create(source)
    good = commit(source, TEN_COMMITS[0], 0)
    slow = commit(source, TEN_COMMITS[1], 1)
    running.client.post("/repositories", {"name": "cubes", "url": str(source)})
    patch = git(source, "diff", "--binary", slow, good) + "\n"

    async def work() -> None:
        async with Client(f"{running.settings.server_url}/mcp") as client:
            agent = Agent(client)
            made = await agent.call("submit", repository="cubes", commits=slow, kinds=["check"])
            checked = await agent.wait(made["submission"])
            assert (checked["verdict"], checked["exit_code"]) == ("success", 0)
            tried = await agent.call("try_patch", repository="cubes", base=slow, patch=patch)
            verdict = await agent.wait(tried["submission"])
            assert verdict["verdict"] == "success"
            (faster,) = (item for item in verdict["items"] if item["finding"] == "faster")
            assert faster["statement"].startswith("cube v3 n=2000,f32,fwd")
            assert "paired rounds" in faster["certainty"]

    asyncio.run(work())
