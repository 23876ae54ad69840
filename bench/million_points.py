"""Latency of the history and overview API with a million points loaded.

    python bench/million_points.py [--points 1000000] [--requests 200]

Loads synthetic rows into a fresh database of an embedded server, starts the server on it and times whole HTTP requests over loopback, one at
a time. Prints p50 and p95 in milliseconds; the aims are p95 <= 50 ms for a history and <= 150 ms for the overview on two cores.
"""

from __future__ import annotations

import argparse
import os
import random
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg

from db import embedded, migrate

COMMITS = 926
OPERATORS, CASES, VARIANTS, METRICS = 3, 20, 6, ("hot", "cold", "call")

LOAD = """
INSERT INTO repositories (name, url) VALUES ('load', '/nowhere');
INSERT INTO devices (key, kind, name) VALUES ('cpu-load', 'cpu', 'load');
INSERT INTO environments (device_id, key, facts) SELECT id, 'load', '{}' FROM devices WHERE key = 'cpu-load';
INSERT INTO commits (repository_id, sha, parent_sha, ordinal, author, authored_at, subject)
  SELECT r.id, lpad(to_hex(n), 40, '0'), lpad(to_hex(n - 1), 40, '0'), n, 'load', now() - (%(commits)s - n) * interval '1 hour', 'commit ' || n
  FROM repositories r, generate_series(1, %(commits)s) n;
INSERT INTO operators (repository_id, name) SELECT id, 'op' || n FROM repositories, generate_series(1, %(operators)s) n;
INSERT INTO variants (operator_id, name) SELECT id, 'v' || n FROM operators, generate_series(1, %(variants)s) n;
INSERT INTO cases (operator_id, key, sizes, precision, direction, layout, suites, flops, bytes)
  SELECT id, 'n=' || n || ',f32,fwd', jsonb_build_object('n', n), 'f32', 'fwd', 'contiguous', '["quick"]', 1000 * n, 100 * n
  FROM operators, generate_series(1, %(cases)s) n;
INSERT INTO submissions (repository_id, request, origin) SELECT id, '{}', 'api' FROM repositories;
INSERT INTO jobs (submission_id, kind, commit_id, operator_id, device_id, spec, state, attempt, judged_at, finished_at)
  SELECT s.id, k.kind, c.id, o.id, d.id, '{}', 'done', 1, now(), now()
  FROM submissions s, commits c, operators o, devices d, (VALUES ('check'), ('bench')) k(kind);
INSERT INTO runs (job_id, attempt, environment_id, state, finished_at) SELECT j.id, 1, e.id, 'done', now() FROM jobs j, environments e;
INSERT INTO results (run_id, kind, commit_id, ordinal, operator_id, variant_id, case_id, device_id, environment_id, status)
  SELECT r.id, j.kind, j.commit_id, c.ordinal, j.operator_id, v.id, k.id, j.device_id, r.environment_id, 'ok'
  FROM runs r JOIN jobs j ON j.id = r.job_id JOIN commits c ON c.id = j.commit_id
  JOIN variants v ON v.operator_id = j.operator_id JOIN cases k ON k.operator_id = j.operator_id;
INSERT INTO series (operator_id, case_id, variant_id, device_id, protocol, metric)
  SELECT o.id, k.id, v.id, d.id, '1', m.metric
  FROM operators o JOIN cases k ON k.operator_id = o.id JOIN variants v ON v.operator_id = o.id, devices d, unnest(%(metrics)s::text[]) m(metric);
INSERT INTO points (series_id, commit_id, ordinal, environment_id, result_id, median_ns, low_ns, high_ns, noise, count, roofline_share, bound)
  SELECT s.id, r.commit_id, r.ordinal, r.environment_id, r.id, t.ns, t.ns * 0.99, t.ns * 1.01, 0.01, 100, 0.5, 'copy'
  FROM results r JOIN series s ON s.case_id = r.case_id AND s.variant_id = r.variant_id AND s.device_id = r.device_id,
  LATERAL (SELECT 10000 * (1 + s.id %% 17) * (1 + 0.01 * random()) AS ns) t WHERE r.kind = 'bench';
"""


@contextmanager
def loaded_server() -> Iterator[tuple[str, str]]:
    """Address of a server on a loaded database, and the database's URL."""
    with tempfile.TemporaryDirectory(prefix="ww") as folder:
        home = Path(folder)
        url = embedded.start(home)
        migrate.upgrade(url)
        load(url)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        environment = {**os.environ, "WARPWATCH_DATABASE_URL": url, "WARPWATCH_HOME": str(home), "WARPWATCH_PORT": str(port)}
        server = subprocess.Popen(
            [sys.executable, "-m", "warpwatch", "serve"], env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        try:
            wait_for(f"http://127.0.0.1:{port}/api/v1/health")
            yield f"http://127.0.0.1:{port}", url
        finally:
            server.terminate()
            server.wait()
            embedded.stop(home)


def load(url: str) -> None:
    values = {"commits": COMMITS, "operators": OPERATORS, "cases": CASES, "variants": VARIANTS, "metrics": list(METRICS)}
    began = time.monotonic()
    with psycopg.connect(url.replace("postgresql+psycopg://", "postgresql://"), autocommit=True) as connection:
        for statement in LOAD.split(";\n"):
            if statement.strip():
                connection.execute(statement, values)
        connection.execute("VACUUM ANALYZE")
        row = connection.execute("SELECT (SELECT count(*) FROM points), (SELECT count(*) FROM series)").fetchone()
    assert row is not None
    print(f"loaded {row[0]:,} points in {row[1]:,} series in {time.monotonic() - began:.0f} s", flush=True)


def wait_for(address: str) -> None:
    for _ in range(300):
        try:
            urllib.request.urlopen(address, timeout=2).close()
        except OSError:
            time.sleep(0.1)
        else:
            return
    raise SystemExit(f"nothing answers at {address}")


def time_requests(addresses: list[str]) -> list[float]:
    """Milliseconds of each request, body read to its end; the first ten are warm-up and not counted."""
    taken = []
    for address in addresses:
        began = time.perf_counter()
        with urllib.request.urlopen(address) as answer:
            answer.read()
        taken.append((time.perf_counter() - began) * 1e3)
    return taken[10:]


def report(name: str, taken: list[float]) -> None:
    p95 = statistics.quantiles(taken, n=20)[-1]
    print(f"{name:<34} p50 {statistics.median(taken):7.1f} ms   p95 {p95:7.1f} ms   ({len(taken)} requests)", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=200)
    arguments = parser.parse_args()
    count = arguments.requests + 10
    with loaded_server() as (address, _url):
        series = OPERATORS * CASES * VARIANTS * len(METRICS)
        api = f"{address}/api/v1"
        report(
            f"history of {COMMITS} points, JSON",
            time_requests([f"{api}/history/{random.randint(1, series)}" for _ in range(count)]),
        )
        report("history, page", time_requests([f"{address}/history/{random.randint(1, series)}" for _ in range(count)]))
        overview = f"{api}/overview?repository=load&device=cpu-load&metric=hot"
        report("overview of 360 cells, JSON", time_requests([overview] * count))
        report("overview, page", time_requests([f"{address}/?repository=load&device=cpu-load&metric=hot"] * count))


if __name__ == "__main__":
    main()
