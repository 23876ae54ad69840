"""Measures the latency of histories, the overview and regressions on a database with millions of points.

python bench/million_points.py [--points 1000000] [--regressions 5000] [--requests 200]

Loads a year of synthetic rows into a new embedded database, starts the server and times whole HTTP requests over
loopback, one at a time. Prints p50 and p95 in milliseconds. The goals on two cores are p95 <= 50 ms for a history and
<= 150 ms for the overview with a million points, and <= 100 ms with two million for the open regressions of the past
year.
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
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import psycopg

from warpwatch.db import embedded, migrate

DAYS = 365
OPERATORS, CASES, VARIANTS, METRICS = 3, 20, 6, ("hot", "cold", "call")
SERIES = OPERATORS * CASES * VARIANTS * len(METRICS)
OPEN = "verdict = 'confirmed' AND state IN ('new', 'acknowledged')"

LOAD = """
INSERT INTO repositories (name, url) VALUES ('load', '/nowhere');
INSERT INTO devices (key, kind, name) VALUES ('cpu-load', 'cpu', 'load');
INSERT INTO environments (device_id, key, facts) SELECT id, 'load', '{}' FROM devices WHERE key = 'cpu-load';
INSERT INTO commits (repository_id, sha, parent_sha, ordinal, author, authored_at, subject)
  SELECT r.id, lpad(to_hex(n), 40, '0'), lpad(to_hex(n - 1), 40, '0'), n, 'load',
         now() - (%(commits)s - n) * (interval '1 day' * %(days)s / %(commits)s), 'commit ' || n
  FROM repositories r, generate_series(1, %(commits)s) n;
INSERT INTO operators (repository_id, name) SELECT id, 'op' || n FROM repositories, generate_series(1, %(operators)s) n;
INSERT INTO variants (operator_id, name) SELECT id, 'v' || n FROM operators, generate_series(1, %(variants)s) n;
INSERT INTO cases (operator_id, key, sizes, precision, direction, layout, suites, flops, bytes)
  SELECT id, 'n=' || n || ',f32,fwd', jsonb_build_object('n', n), 'f32', 'fwd', 'contiguous', '["quick"]', 1000 * n,
         100 * n
  FROM operators, generate_series(1, %(cases)s) n;
INSERT INTO submissions (repository_id, request, origin) SELECT id, '{}', 'api' FROM repositories;
INSERT INTO jobs (submission_id, kind, commit_id, operator_id, device_id, spec, state, attempt, judged_at, finished_at)
  SELECT s.id, k.kind, c.id, o.id, d.id, '{}', 'done', 1, now(), now()
  FROM submissions s, commits c, operators o, devices d, (VALUES ('check'), ('bench')) k(kind);
INSERT INTO runs (job_id, attempt, environment_id, state, finished_at)
  SELECT j.id, 1, e.id, 'done', now() FROM jobs j, environments e;
INSERT INTO results (run_id, kind, commit_id, ordinal, operator_id, variant_id, case_id, device_id, environment_id,
                     status)
  SELECT r.id, j.kind, j.commit_id, c.ordinal, j.operator_id, v.id, k.id, j.device_id, r.environment_id, 'ok'
  FROM runs r JOIN jobs j ON j.id = r.job_id JOIN commits c ON c.id = j.commit_id
  JOIN variants v ON v.operator_id = j.operator_id JOIN cases k ON k.operator_id = j.operator_id;
INSERT INTO series (operator_id, case_id, variant_id, device_id, protocol, metric)
  SELECT o.id, k.id, v.id, d.id, '1', m.metric
  FROM operators o JOIN cases k ON k.operator_id = o.id JOIN variants v ON v.operator_id = o.id, devices d,
  unnest(%(metrics)s::text[]) m(metric);
INSERT INTO points (series_id, commit_id, ordinal, environment_id, result_id, median_ns, low_ns, high_ns, noise, count,
                    roofline_share, bound)
  SELECT s.id, r.commit_id, r.ordinal, r.environment_id, r.id, t.ns, t.ns * 0.99, t.ns * 1.01, 0.01, 100, 0.5, 'copy'
  FROM results r JOIN series s ON s.case_id = r.case_id AND s.variant_id = r.variant_id AND s.device_id = r.device_id,
  LATERAL (SELECT 10000 * (1 + s.id %% 17) * (1 + 0.01 * random()) AS ns) t WHERE r.kind = 'bench';
"""

# A few suspicions for every commit. Most become regressions, and half of these are open; a fifth still spans several
# commits.
REGRESSIONS = """
SELECT setseed(0.5);
CREATE TEMPORARY TABLE dice AS
  SELECT h.id AS head, h.ordinal, o.id AS operator, h.authored_at, random() AS a, random() AS b, random() AS c,
         random() AS e, CASE WHEN random() < 0.8 THEN 1 ELSE 2 + floor(10 * random()) END AS width
  FROM commits h, operators o, generate_series(1, ceil(%(regressions)s / (%(commits)s * %(operators)s::float))::int)
  WHERE h.ordinal > 20;
INSERT INTO regressions (operator_id, device_id, base_commit_id, head_commit_id, direction, verdict, state, ratio, low,
                         high, assignee, due_on, created_at, decided_at, settled_at, triaged_at)
  SELECT operator, d.id, base.id, head, w.direction, v.verdict,
         CASE WHEN c < 0.5 THEN 'new' WHEN c < 0.6 THEN 'acknowledged' ELSE 'fixed' END,
         r.ratio, r.ratio * 0.99, r.ratio * 1.01, CASE WHEN c > 0.3 THEN 'person ' || (10 * c)::int END,
         CASE WHEN c > 0.8 THEN current_date + (100 * a - 50)::int END, t.at,
         CASE WHEN v.verdict <> 'suspected' THEN t.at + interval '5 minutes' END,
         CASE WHEN v.verdict <> 'suspected' THEN t.at + interval '1 hour' END,
         CASE WHEN c > 0.2 THEN t.at + interval '1 day' * c END
  FROM dice JOIN commits base ON base.ordinal = dice.ordinal - width, devices d,
  LATERAL (SELECT CASE WHEN a < 0.6 THEN 'slower' WHEN a < 0.9 THEN 'faster' ELSE 'broken' END AS direction) w,
  LATERAL (SELECT CASE WHEN b < 0.6 THEN 'confirmed' WHEN b < 0.9 THEN 'dismissed' WHEN b < 0.98 THEN 'unsure'
                       ELSE 'suspected' END AS verdict) v,
  LATERAL (SELECT CASE w.direction WHEN 'slower' THEN 1.03 + e WHEN 'faster' THEN 0.97 - e / 2 END AS ratio) r,
  LATERAL (SELECT dice.authored_at + interval '2 hours' AS at) t
  ON CONFLICT DO NOTHING;
INSERT INTO regression_series (regression_id, series_id, suspected_ratio, verdict, ratio, low, high)
  SELECT r.id, s.id, r.ratio, r.verdict, r.ratio, r.low, r.high FROM regressions r
  CROSS JOIN LATERAL (SELECT id FROM series WHERE operator_id = r.operator_id AND metric = 'hot'
                      ORDER BY (id * 7919 + r.id) %% 1009 LIMIT 1 + r.id %% 6) s;
INSERT INTO trials (regression_id, job_id, purpose, base_commit_id, head_commit_id, answer, ratio, answered_at)
  SELECT r.id, (SELECT j.id FROM jobs j
                WHERE j.commit_id = r.head_commit_id AND j.operator_id = r.operator_id AND j.kind = 'bench'), 'confirm',
         r.base_commit_id, r.head_commit_id, 'changed', r.ratio, r.decided_at FROM regressions r ON CONFLICT DO NOTHING;
"""


@contextmanager
def loaded_server(points: int, regressions: int) -> Iterator[tuple[str, str]]:
    """(address of a server on a loaded database, URL of the database)."""
    with tempfile.TemporaryDirectory(prefix="ww") as folder:
        home = Path(folder)
        url = embedded.start(home)
        migrate.upgrade(url)
        load(url, points, regressions)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        environment = {
            **os.environ,
            "WARPWATCH_DATABASE_URL": url,
            "WARPWATCH_HOME": str(home),
            "WARPWATCH_PORT": str(port),
        }
        server = subprocess.Popen(
            [sys.executable, "-m", "warpwatch", "serve"],
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            wait_for(f"http://127.0.0.1:{port}/api/v1/health")
            yield f"http://127.0.0.1:{port}", url
        finally:
            server.terminate()
            server.wait()
            embedded.stop(home)


def commits_for(points: int) -> int:
    """The number of commits that give so many points."""
    return max(points // SERIES, 30)


def insert_rows(url: str, values: dict[str, Any]) -> None:
    """Inserts what LOAD and REGRESSIONS describe with these values."""
    with psycopg.connect(url.replace("postgresql+psycopg://", "postgresql://"), autocommit=True) as connection:
        for statement in (LOAD + REGRESSIONS).split(";\n"):
            if statement.strip():
                connection.execute(statement, values)
        connection.execute("VACUUM ANALYZE")


def load(url: str, points: int, regressions: int) -> None:
    values = {
        "commits": commits_for(points),
        "operators": OPERATORS,
        "cases": CASES,
        "variants": VARIANTS,
        "metrics": list(METRICS),
        "days": DAYS,
        "regressions": regressions,
    }
    began = time.monotonic()
    insert_rows(url, values)
    with psycopg.connect(url.replace("postgresql+psycopg://", "postgresql://"), autocommit=True) as connection:
        counted = [
            connection.execute(f"SELECT count(*) FROM {what}").fetchone()
            for what in ("points", "series", "commits", "regressions", f"regressions WHERE {OPEN}")
        ]
    points, series, commits, regressions, still_open = (row[0] for row in counted if row)
    print(f"loaded {points:,} points in {series:,} series over {commits:,} commits in {time.monotonic() - began:.0f} s")
    print(f"{regressions:,} regressions, {still_open:,} of them confirmed and open", flush=True)


def wait_for(address: str) -> None:
    for _ in range(300):
        try:
            urllib.request.urlopen(address, timeout=2).close()
        except OSError:
            time.sleep(0.1)
        else:
            return
    raise SystemExit(f"no server responds at {address}")


def time_requests(addresses: list[str]) -> list[float]:
    """Milliseconds of each request with its whole body; the first ten are warm-up and left out."""
    taken = []
    for address in addresses:
        began = time.perf_counter()
        with urllib.request.urlopen(address) as response:
            response.read()
        taken.append((time.perf_counter() - began) * 1e3)
    return taken[10:]


def report(name: str, taken: list[float]) -> None:
    p95 = statistics.quantiles(taken, n=20)[-1]
    print(
        f"{name:<34} p50 {statistics.median(taken):7.1f} ms   p95 {p95:7.1f} ms   ({len(taken)} requests)", flush=True
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--points", type=int, default=1_000_000)
    parser.add_argument("--regressions", type=int, default=5_000)
    parser.add_argument("--requests", type=int, default=200)
    arguments = parser.parse_args()
    count = arguments.requests + 10
    with loaded_server(arguments.points, arguments.regressions) as (address, url):
        time_histories(address, count, commits_for(arguments.points))
        time_regressions(address, count, url)


def time_histories(address: str, count: int, commits: int) -> None:
    api = f"{address}/api/v1"
    chosen = [random.randint(1, SERIES) for _ in range(count)]
    report(f"history of {commits} points, JSON", time_requests([f"{api}/history/{number}" for number in chosen]))
    report("history, page", time_requests([f"{address}/history/{number}" for number in chosen]))
    overview = f"{api}/overview?repository=load&device=cpu-load&metric=hot"
    report("overview of 360 cells, JSON", time_requests([overview] * count))
    report("home, page", time_requests([f"{address}/"] * count))
    report("overview, page", time_requests([f"{address}/overview?repository=load&device=cpu-load&metric=hot"] * count))


def time_regressions(address: str, count: int, url: str) -> None:
    """Times requests for the open regressions of the past year, in every format."""
    query = f"repository=load&state=open&from={date.today() - timedelta(days=DAYS)}"
    for name, path in (
        ("open of the past year, events JSON", f"/api/v1/events?{query}"),
        ("the same, rows JSON", f"/api/v1/regressions?{query}"),
        ("the same, CSV", f"/api/v1/regressions.csv?{query}"),
        ("the same, page", f"/regressions?{query}"),
        ("the same, page 10", f"/regressions?{query}&before=180"),
        ("of one operator and person, page", f"/regressions?{query}&operator=op1&assignee=person%205"),
        ("quality of alarms, JSON", "/api/v1/quality?repository=load"),
    ):
        report(name, time_requests([address + path] * count))
    with psycopg.connect(url.replace("postgresql+psycopg://", "postgresql://")) as connection:
        rows = connection.execute(f"SELECT id FROM regressions WHERE {OPEN} ORDER BY random() LIMIT {count}").fetchall()
    report("one regression with its event, page", time_requests([f"{address}/regressions/{row[0]}" for row in rows]))


if __name__ == "__main__":
    main()
