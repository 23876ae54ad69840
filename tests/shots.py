"""Takes the pictures of the documents from the example data: `python -m tests.shots`, or `make shots`.

Each page is opened in Chromium, light and dark, in a service of its own that holds the shipped example data and nothing
else. Pictures are WebP, because the browser that takes them can also write it.
"""

from __future__ import annotations

import base64
import os
import shutil
import socket
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from playwright.sync_api import Browser, Page, ViewportSize, expect, sync_playwright

from warpwatch.cli.client import Client
from warpwatch.cli.services import running_database, running_services
from warpwatch.cli.up import import_examples
from warpwatch.db.database import Database
from warpwatch.db.unjudged import unjudged_jobs
from warpwatch.settings import load_settings

FOLDER = Path(__file__).parents[1] / "docs" / "images"
REPOSITORY = "example-rows"
Theme = Literal["light", "dark"]
THEMES: tuple[Theme, ...] = ("light", "dark")
SIZE = ViewportSize(width=1280, height=880)
QUALITY = 0.55
LARGEST_BYTES = 1_000_000
"""All pictures together."""
_SWITCHES = ["--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
_UNDRAWN = "[data-figure]:not([data-drawn])"
_TO_WEBP = """async ({ png, quality }) => {
  const image = new Image();
  image.src = `data:image/png;base64,${png}`;
  await image.decode();
  const canvas = Object.assign(document.createElement("canvas"), { width: image.width, height: image.height });
  canvas.getContext("2d").drawImage(image, 0, 0);
  return canvas.toDataURL("image/webp", quality).split(",")[1];
}"""


@dataclass(frozen=True)
class ExampleIds:
    """What the addresses of pages need to know of the imported example data."""

    slower: dict[str, Any]
    broken: dict[str, Any]
    series: int
    job: int
    traces: tuple[int, int]


def _of_repository(path: str) -> Callable[[ExampleIds], str]:
    return lambda ids: f"{path}{'&' if '?' in path else '?'}repository={REPOSITORY}"


SHOTS: dict[str, Callable[[ExampleIds], str]] = {
    "commits": _of_repository("/commits"),
    "overview": _of_repository("/overview"),
    "operator": _of_repository("/kernels/softmax"),
    "history": lambda ids: f"/history/{ids.series}",
    "regressions": _of_repository("/regressions?state=any"),
    "regression": lambda ids: f"/regressions/{ids.slower['id']}",
    "comparison": lambda ids: f"/jobs/{ids.job}",
    "traces": lambda ids: f"/traces/compare?a={ids.traces[0]}&b={ids.traces[1]}",
    "commit": lambda ids: f"/commits/{ids.slower['culprit_sha']}?repository={REPOSITORY}",
    "fixed": lambda ids: f"/regressions/{ids.broken['id']}",
}
"""The address of every picture, by its name, in the order of docs/tour.md."""


def file_names() -> list[str]:
    """The files that docs/images holds."""
    return sorted(f"{name}-{theme}.webp" for name in SHOTS for theme in THEMES)


def find_ids(client: Client) -> ExampleIds:
    """The example's open slow-down, its breakage, and what decided them."""
    rows = client.get(f"/regressions?repository={REPOSITORY}&state=any")["items"]
    slower = next(row for row in rows if row["direction"] == "slower" and row["culprit_sha"])
    broken = next(row for row in rows if row["direction"] == "broken")
    detail = client.get(f"/regressions/{slower['id']}")
    traces = (detail["base_trace_id"], detail["head_trace_id"])
    return ExampleIds(slower, broken, detail["series"][0]["series_id"], detail["compare_job_id"], traces)


def main() -> None:
    """Writes every picture, and removes those that are listed no more."""
    with tempfile.TemporaryDirectory() as home, socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
        probe.close()
        os.environ |= {"WARPWATCH_HOME": home, "WARPWATCH_PORT": str(port)}
        settings = load_settings()
        with running_database(settings) as url, running_services(settings, url, []):
            import_examples(settings, url)
            wait_until_judged(url)
            ids = find_ids(Client(settings.server_url))
            with sync_playwright() as playwright:
                chromium = shutil.which("chromium") or shutil.which("google-chrome")
                browser = playwright.chromium.launch(executable_path=chromium, args=_SWITCHES)
                take_all(browser, settings.server_url, ids)
                browser.close()


def wait_until_judged(url: str) -> None:
    """Returns once every imported job was judged."""
    database = Database(url)
    while True:
        with database.session() as session:
            if not unjudged_jobs(session):
                break
        time.sleep(0.5)
    database.close()


def take_all(browser: Browser, server: str, ids: ExampleIds) -> None:
    """Writes the pictures, each page in both themes."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    for file in FOLDER.glob("*.webp"):
        if file.name not in file_names():
            file.unlink()
    encoder = browser.new_page()
    total = 0
    for theme in THEMES:
        context = browser.new_context(viewport=SIZE, color_scheme=theme, reduced_motion="reduce")
        page = context.new_page()
        for name, address in SHOTS.items():
            picture = base64.b64encode(take(page, server + address(ids))).decode()
            encoded = encoder.evaluate(_TO_WEBP, {"png": picture, "quality": QUALITY})
            file = FOLDER / f"{name}-{theme}.webp"
            file.write_bytes(base64.b64decode(encoded))
            total += file.stat().st_size
        context.close()
    print(f"{len(file_names())} pictures, {total / 1e6:.2f} MB")


def take(page: Page, address: str) -> bytes:
    """The upper part of a page as PNG, once its charts are drawn and it has loaded what follows later."""
    page.goto(address, wait_until="load")
    expect(page.locator(_UNDRAWN)).to_have_count(0, timeout=30_000)
    page.wait_for_timeout(400)
    return page.screenshot()


if __name__ == "__main__":
    main()
