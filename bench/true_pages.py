"""Counts coloured elements and verdict words that are not true, on pages of a service that measured planted changes.

python bench/true_pages.py [--device auto] [--limit 300]

The repository of verdict_times.py is measured: eight commits, six of which make one variant slower or faster, and one
that is pushed later and slows all variants down. Every page about them is read as tests/server/truth.py reads the pages
of its planted story. An element is untrue when it has the colour of a signal and renders no statement, when it calls a
commit slower or faster that was not planted so, or when its word or colour contradicts its own statement.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx2

sys.path.insert(0, str(Path(__file__).parents[1]))

from bench.own_service import empty_database, wait_for_worker
from bench.verdict_times import HISTORY, NAME, Repository, Service, wait_idle
from tests.server.truth import Claim, claims_of
from warpwatch.cli.client import Client
from warpwatch.cli.services import running_services
from warpwatch.worker.devices import choose_device

TABS = ("now", "commits", "sizes", "devices", "code")
TONES = {"slower": {"slower", "bad", "worse"}, "faster": {"faster", "good", "better"}}


def measure(service: Service, repository: Repository) -> tuple[list[str], dict[str, str]]:
    """All commits, and the direction that each planted one has."""
    shas, directions = [], {}
    service.submit("HEAD")
    shares = {"v1": 0.0, "v2": 0.0, "v3": 0.0}
    for changes in HISTORY:
        shas.append(repository.commit(changes))
        for variant, share in changes.items():
            directions[shas[-1]] = "slower" if share > shares[variant] else "faster"
            shares[variant] = share
        service.submit(shas[-1])
    wait_idle(service)
    return shas, directions


def addresses(service: Service, shas: list[str]) -> Iterator[str]:
    """Every page that says something of the measured commits."""
    yield from ("/", f"/overview?repository={NAME}", f"/commits?repository={NAME}", f"/kernels?repository={NAME}")
    yield from (f"/regressions?repository={NAME}&tab={tab}" for tab in ("open", "suspected", "improvements", "closed"))
    yield f"/overview/cases/cube?repository={NAME}"
    yield from (f"/kernels/cube?repository={NAME}&tab={tab}" for tab in TABS)
    for base, head in pairwise(shas):
        yield f"/compare?repository={NAME}&base={base}&head={head}"
        yield f"/commits/{head}?repository={NAME}"
    yield from (f"/regressions/{row['id']}" for row in regressions(service))
    yield from (f"/jobs/{job['id']}" for job in service.jobs())
    rows = service.client.get("/submissions", repository=NAME, limit=200)["items"]
    yield from (f"/runs/{row['id']}" for row in rows)


def regressions(service: Service) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for verdict in ("confirmed", "suspected", "dismissed", "unsure"):
        asked = {"repository": NAME, "verdict": verdict, "state": "any", "limit": 200}
        rows += service.client.get("/regressions", **asked)["items"]
    return rows


def fault_of(claim: Claim, heads: dict[int, str], directions: dict[str, str]) -> str | None:
    """Why a claim is not true; None for a true one."""
    if claim.kind is None:
        return "no statement"
    of_page = re.match(r"/regressions/(\d+)$", claim.page)
    regression = claim.regression or (int(of_page[1]) if of_page else 0)
    commit = heads.get(regression, claim.commit or "")
    # A comparison's own rounds name no commit: its page does, and the regression that they decided.
    if claim.kind == "confirmed" and claim.direction in TONES and commit:
        planted = directions.get(commit)
        if planted != claim.direction and not claim.is_fix:
            return f"{claim.direction} at {commit[:8]}, planted {planted}"
    coloured = {name for name, classes in TONES.items() if classes & claim.classes}
    if (claim.kind != "confirmed" and coloured) or coloured - {claim.direction or "", "faster" if claim.is_fix else ""}:
        return f"coloured {', '.join(sorted(coloured))} and says {claim.kind} {claim.direction or ''}"
    if claim.word and (claim.kind != "confirmed" or claim.word != claim.direction):
        return f"the word {claim.word} and the statement {claim.kind} {claim.direction or ''}"
    return None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--limit", type=float, default=300.0, help="seconds to wait for all work to end")
    arguments = parser.parse_args()
    device = choose_device(arguments.device)
    with empty_database() as (settings, url):
        repository = Repository(settings.home / "source", device.partition(":")[0])
        with running_services(settings, url, [device]):
            client = Client(settings.server_url)
            wait_for_worker(client)
            client.post("/repositories", {"name": NAME, "url": str(settings.home / "source")})
            (key,) = {item["key"] for item in client.get("/devices")["items"]}
            service = Service(client, key, arguments.limit)
            shas, directions = measure(service, repository)
            rows = regressions(service)
            heads = {row["id"]: row["head_sha"] for row in rows}
            print(f"planted {len(directions)}, {dict(Counter(row['verdict'] for row in rows))}")
            pages, claims, kinds = 0, 0, Counter[str]()
            untrue: list[str] = []
            with httpx2.Client(base_url=settings.server_url, follow_redirects=True, timeout=60) as browser:
                for address in addresses(service, shas):
                    answer = browser.get(address)
                    answer.raise_for_status()
                    pages += 1
                    for claim in claims_of(address, answer.text):
                        claims += 1
                        kinds[f"{claim.kind} {claim.direction or ''}".strip()] += 1
                        fault = fault_of(claim, heads, directions)
                        if fault:
                            untrue.append(f"{address}: {fault}: {re.sub('[^ -~]', '?', claim.text)[:80]}")
    print(f"{pages} pages, {claims} elements with a colour of a signal, an arrow or a verdict word: {dict(kinds)}")
    print(f"not true: {len(untrue)}")
    print(*untrue[:60], sep="\n")


if __name__ == "__main__":
    main()
