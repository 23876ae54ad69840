"""Measures overview, history and commit page in a browser, on a database with a million points.

python bench/in_browser.py [--points 1000000] [--visits 5]

Loads synthetic rows into a new embedded database, starts the server, and opens each page in headless Chromium at
1440 × 900, every time in a new profile. Prints the medians of: the page's size, its first byte and the first contentful
paint; the longest task of the page's own; the longest answer to a key or a click, from the event to the next frame; the
layout shift. The history shows 10,000 points, five variants at 2,000
commits; it is panned for two seconds, and its frames that took more than 50 ms are counted. The goals are a layout
shift of at most 0.01 and no frame over 50 ms.
"""

from __future__ import annotations

import argparse
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psycopg
from playwright.sync_api import Browser, Page, ViewportSize, expect, sync_playwright

sys.path.insert(0, str(Path(__file__).parents[1]))

from bench.million_points import METRICS, insert_rows, wait_for
from warpwatch.db import embedded, migrate

COMMITS, OPERATORS, VARIANTS = 2000, 2, 5
SIZE = ViewportSize(width=1440, height=900)
AT = "repository=load&device=cpu-load"
PAN_SECONDS = 2.0
OBSERVE = """
window.shift = 0; window.slowest = 0; window.longest = 0; window.isUsed = false;
new PerformanceObserver((list) => {
  for (const entry of list.getEntries()) if (!isUsed) longest = Math.max(longest, entry.duration);
}).observe({ type: "longtask", buffered: true });
new PerformanceObserver((list) => {
  for (const entry of list.getEntries()) if (!entry.hadRecentInput) shift += entry.value;
}).observe({ type: "layout-shift", buffered: true });
new PerformanceObserver((list) => {
  for (const entry of list.getEntries()) if (entry.interactionId) slowest = Math.max(slowest, entry.duration);
}).observe({ type: "event", durationThreshold: 16, buffered: true });
"""
ARRIVAL = """() => {
  const [page] = performance.getEntriesByType("navigation");
  return [page.responseStart, page.decodedBodySize];
}"""
FRAMES = """() => {
  window.frames = []; let last = performance.now();
  const next = (now) => { frames.push(now - last); last = now; requestAnimationFrame(next); };
  requestAnimationFrame(next);
}"""
NOT_DRAWN = "[data-figure]:not([data-drawn])"


@dataclass(frozen=True)
class VisitTimes:
    """arrival: milliseconds until the first byte. size: of the page, in bytes. paint, answer, task: milliseconds.

    task: the longest one before the page is used. shift: layout shift. frames: milliseconds of each while panning.
    """

    arrival: float
    size: float
    paint: float
    answer: float
    shift: float
    task: float
    frames: list[float]


def use_overview(page: Page) -> list[float]:
    """Opens the cases of an operator and the palette."""
    page.locator(".operators summary").first.click()
    page.locator("table.grid").wait_for()
    return use_palette(page)


def use_history(page: Page) -> list[float]:
    """Zooms, then pans over and back."""
    box = page.locator(".nsewdrag").first.bounding_box()
    assert box is not None
    left, top = box["x"] + box["width"] * 0.3, box["y"] + box["height"] / 2
    drag(page, left, left + box["width"] * 0.4, top, 0.2)
    page.wait_for_timeout(500)
    page.evaluate("Plotly.relayout(document.querySelector('[data-figure]'), { dragmode: 'pan' })")
    page.evaluate(FRAMES)
    drag(page, left, left + box["width"] * 0.4, top, PAN_SECONDS)
    frames: list[float] = page.evaluate("frames")
    return frames


def use_commit(page: Page) -> list[float]:
    """Opens the palette."""
    return use_palette(page)


def use_palette(page: Page) -> list[float]:
    page.keyboard.press("/")
    page.locator(".palette input").fill("op1")
    page.locator(".palette [role=option]").first.wait_for()
    return []


def drag(page: Page, start: float, end: float, y: float, seconds: float) -> None:
    """Drags the mouse at about 60 moves a second."""
    page.mouse.move(start, y)
    page.mouse.down()
    began = time.monotonic()
    while (passed := time.monotonic() - began) < seconds:
        page.mouse.move(start + (end - start) * passed / seconds, y)
        page.wait_for_timeout(16)
    page.mouse.up()


def visit(browser: Browser, address: str, use: Callable[[Page], list[float]]) -> VisitTimes:
    context = browser.new_context(viewport=SIZE)
    context.add_init_script(OBSERVE)
    page = context.new_page()
    page.goto(address, wait_until="load")
    expect(page.locator(NOT_DRAWN)).to_have_count(0, timeout=60_000)
    page.wait_for_timeout(300)
    page.evaluate("isUsed = true")
    frames = use(page)
    page.wait_for_timeout(300)
    paint: float = page.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime")
    arrival, size = page.evaluate(ARRIVAL)
    answer, shift, task = page.evaluate("[slowest, shift, longest]")
    context.close()
    return VisitTimes(arrival, size, paint, answer, shift, task, frames)


def report(name: str, times: list[VisitTimes]) -> None:
    arrival, size, paint, answer, task = (
        statistics.median(getattr(row, field) for row in times)
        for field in ("arrival", "size", "paint", "answer", "task")
    )
    line = f"{name:<10} {size / 1e3:5.0f} kB   first byte {arrival:5.0f} ms   paint {paint:5.0f} ms"
    line += f"   longest task {task:4.0f} ms   answer {answer:4.0f} ms   shift {max(row.shift for row in times):.4f}"
    frames = [frame for row in times for frame in row.frames]
    if frames:
        slow = sum(frame > 50 for frame in frames)
        line += f"   {slow} of {len(frames)} frames over 50 ms, the longest {max(frames):.0f} ms"
    print(line, flush=True)


def load(url: str, points: int) -> None:
    """Two operators with as many cases as give so many points at COMMITS commits."""
    values = {
        "commits": COMMITS,
        "operators": OPERATORS,
        "cases": max(1, round(points / (COMMITS * OPERATORS * VARIANTS * len(METRICS)))),
        "variants": VARIANTS,
        "metrics": list(METRICS),
        "days": 365,
        "regressions": 5000,
    }
    began = time.monotonic()
    insert_rows(url, values)
    with psycopg.connect(url.replace("postgresql+psycopg://", "postgresql://")) as connection:
        row = connection.execute("SELECT count(*) FROM points").fetchone()
    print(f"loaded {row[0] if row else 0:,} points in {time.monotonic() - began:.0f} s", flush=True)


@contextmanager
def loaded_server(points: int, keep: Path | None) -> Iterator[tuple[str, str]]:
    """(address of a server on a loaded database, the newest commit)."""
    with tempfile.TemporaryDirectory(prefix="ww") as folder, socket.socket() as probe:
        home = (keep or Path(folder)).absolute()
        url = embedded.start(home)
        migrate.upgrade(url)
        with psycopg.connect(url.replace("postgresql+psycopg://", "postgresql://")) as connection:
            is_empty = connection.execute("SELECT NOT EXISTS (SELECT FROM points)").fetchone() == (True,)
        if is_empty:
            load(url, points)
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
        probe.close()
        environment = os.environ | {"WARPWATCH_HOME": str(home), "WARPWATCH_PORT": str(port)}
        server = subprocess.Popen(
            [sys.executable, "-m", "warpwatch", "serve"], env=environment, stderr=subprocess.DEVNULL
        )
        try:
            wait_for(f"http://127.0.0.1:{port}/static/tokens.css")
            yield f"http://127.0.0.1:{port}", f"{COMMITS:040x}"
        finally:
            server.terminate()
            server.wait()
            embedded.stop(home)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--points", type=int, default=1_000_000)
    parser.add_argument("--visits", type=int, default=5)
    parser.add_argument("--keep", type=Path, help="keeps the database in a folder, and loads it only the first time")
    options = parser.parse_args()
    with loaded_server(options.points, options.keep) as (server, newest), sync_playwright() as playwright:
        pages: dict[str, tuple[str, Callable[[Page], list[float]]]] = {
            "overview": (f"/overview?{AT}", use_overview),
            "history": (f"/history?{AT}&operator=op1", use_history),
            "commit": (f"/commits/{newest}?repository=load", use_commit),
        }
        chromium = shutil.which("chromium") or shutil.which("google-chrome")
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        for name, (path, use) in pages.items():
            visit(browser, server + path, use)  # The first visit warms the server.
            report(name, [visit(browser, server + path, use) for _ in range(options.visits)])
        browser.close()


if __name__ == "__main__":
    main()
