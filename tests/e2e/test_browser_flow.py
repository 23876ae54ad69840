"""What a person does on the first day: submit in the form, watch the log, click the new point, open and download the
trace."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tests.browser.conftest import browser_type_launch_args  # noqa: F401 - the browser is started the same way
from tests.e2e.conftest import Running
from tests.e2e.repositories import TEN_COMMITS, commit, create

pytestmark = [pytest.mark.browser, pytest.mark.timeout(600)]


def test_from_the_form_to_the_trace(running: Running, source: Path, page: Page) -> None:
    create(source)
    shas = [commit(source, TEN_COMMITS[0], number) for number in range(2)]
    running.client.post("/repositories", {"name": "flow", "url": str(source)})
    url = running.settings.server_url

    page.goto(f"{url}/runs/new?repository=flow")
    page.get_by_label("Commit", exact=False).first.fill(f"{shas[0]}..{shas[1]}")
    for kind in ("check", "bench", "profile"):
        page.get_by_role("checkbox", name=kind).check()
    page.get_by_role("button", name="Submit").click()
    page.wait_for_url(re.compile(r"/runs/\d+"))
    number = int(re.findall(r"/runs/(\d+)", page.url)[0])

    jobs = running.client.get("/jobs", submission=number)["items"]
    check = next(job for job in jobs if job["kind"] == "check")
    page.goto(f"{url}/jobs/{check['id']}")
    expect(page.get_by_role("log")).to_contain_text("check v3 n=2000,f32,bwd ok", timeout=120_000)
    expect(page.locator("#state")).to_contain_text("Finished", timeout=60_000)

    row = running.wait(lambda: running.has_ended(number))
    assert row["state"] == "done"
    assert set(row["results"]) == {"ok"}

    page.goto(f"{url}/overview?repository=flow&metric=hot")
    page.locator("[data-operator] summary").first.click()
    page.locator("table.grid a[href*='/history/']").first.click()
    point = page.locator(".scatterlayer .points path.point").first
    point.wait_for()
    box = point.bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    page.mouse.click(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    page.wait_for_url(re.compile(f"/commits/{shas[1]}"))

    page.locator("a[href*='/traces/']").first.click()
    page.get_by_text("Open in Perfetto").click()
    viewer = page.frame_locator("iframe.viewer")
    expect(viewer.locator(".pf-track__title", has_text="python").first).to_be_visible(timeout=90_000)
    with page.expect_download() as download:
        page.get_by_role("link", name=re.compile(r"Download \.json")).click()
    events = json.loads(Path(download.value.path()).read_bytes())["traceEvents"]
    assert any(event.get("ph") == "X" and event.get("name") == "aten::mul" for event in events)
