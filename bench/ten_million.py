"""Measures every page and endpoint on a database with ten million points.

python bench/ten_million.py [--points 10000000] [--requests 20] [--keep FOLDER] [--only TEXT]

Loads synthetic rows of several repositories and devices into an embedded database, starts the server and times whole
HTTP requests over loopback, one at a time. A cold request comes after a restart of PostgreSQL and with its files out of
the page cache where the host allows that; warm ones repeat it. Prints the cold time, and p50 and p95 of the warm ones,
in milliseconds. The goals on two cores are 500 ms cold, 200 ms warm, and 60 ms for a history.

`--keep` keeps the database in a folder, and loads it only the first time.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psycopg

from warpwatch.db import embedded, migrate

PORT = 8397
REPOSITORIES, OPERATORS, CASES, VARIANTS, DEVICES = 3, 16, 12, 6, 2
METRICS = ("hot", "cold", "call")
FIRST_SHARE = 0.8
"""Of all commits, in the first repository; the others share the rest."""
WAITING_JOBS = 200

INDEXES = """
SELECT indexname, indexdef FROM pg_indexes WHERE tablename IN ('all_points', 'all_results') AND indexname LIKE 'ix_%'
"""
LOAD = """
INSERT INTO repositories (name, url) SELECT 'load' || n, '/nowhere' FROM generate_series(1, %(repositories)s) n;
INSERT INTO devices (key, kind, name) SELECT 'cpu-' || n, 'cpu', 'Load ' || n FROM generate_series(1, %(devices)s) n;
INSERT INTO environments (device_id, key, facts, peaks)
  SELECT d.id, d.key || '-' || n, '{"torch": "2"}', '{"copy": 1e11, "f32": 1e12}'
  FROM devices d, generate_series(1, 3) n;
INSERT INTO commits (repository_id, sha, parent_sha, ordinal, author, authored_at, subject)
  SELECT r.id, md5(r.id || ' ' || n) || '00000000', md5(r.id || ' ' || n - 1) || '00000000', n, 'Person ' || n %% 17,
         now() - (c.number - n) * interval '3 hours', 'Change number ' || n
  FROM repositories r, LATERAL (SELECT CASE WHEN r.id = 1 THEN %(first)s ELSE %(others)s END AS number) c,
  generate_series(1, c.number) n;
INSERT INTO operators (repository_id, name) SELECT id, 'op' || n FROM repositories, generate_series(1, %(operators)s) n;
INSERT INTO variants (operator_id, name) SELECT id, 'v' || n FROM operators, generate_series(1, %(variants)s) n;
INSERT INTO cases (operator_id, key, sizes, precision, direction, layout, suites, flops, bytes)
  SELECT id, 'n=' || 64 * n || ',f32,fwd', jsonb_build_object('n', n), 'f32', 'fwd', 'contiguous', '["quick"]',
         1000 * n, 100 * n
  FROM operators, generate_series(1, %(cases)s) n;
INSERT INTO submissions (repository_id, request, origin, created_at)
  SELECT repository_id, jsonb_build_object('commits', sha), 'webhook', authored_at FROM commits ORDER BY authored_at;
INSERT INTO jobs (submission_id, kind, commit_id, operator_id, device_id, spec, state, attempt, judged_at, created_at,
                  started_at, finished_at)
  SELECT s.id, k.kind, c.id, o.id, d.id, '{}', 'done', 1, c.authored_at, c.authored_at, c.authored_at, c.authored_at
  FROM submissions s JOIN commits c ON c.repository_id = s.repository_id AND c.sha = s.request ->> 'commits'
  JOIN operators o ON o.repository_id = c.repository_id, devices d, (VALUES ('check'), ('bench')) k(kind)
  ORDER BY s.id;
INSERT INTO jobs (submission_id, kind, commit_id, operator_id, device_id, spec)
  SELECT submission_id, kind, commit_id, operator_id, device_id, '{}' FROM jobs ORDER BY id DESC LIMIT %(waiting)s;
INSERT INTO workers (name, device_id, version) SELECT 'host-' || id, id, '1' FROM devices;
INSERT INTO runs (job_id, attempt, worker_id, environment_id, state, started_at, heartbeat_at, finished_at)
  SELECT j.id, 1, j.device_id, (j.device_id - 1) * 3 + 1 + j.commit_id %% 3, 'done', j.created_at, j.created_at,
         j.created_at + interval '20 seconds'
  FROM jobs j WHERE state = 'done' ORDER BY j.id;
INSERT INTO results (run_id, kind, commit_id, ordinal, operator_id, variant_id, case_id, device_id, environment_id,
                     status, created_at)
  SELECT r.id, j.kind, j.commit_id, c.ordinal, j.operator_id, v.id, k.id, j.device_id, r.environment_id,
         CASE WHEN (v.id + k.id + j.commit_id) %% 501 = 0 THEN 'wrong' ELSE 'ok' END, r.finished_at
  FROM runs r JOIN jobs j ON j.id = r.job_id JOIN commits c ON c.id = j.commit_id
  JOIN variants v ON v.operator_id = j.operator_id JOIN cases k ON k.operator_id = j.operator_id
  ORDER BY r.id;
ANALYZE;
INSERT INTO series (operator_id, case_id, variant_id, device_id, protocol, metric)
  SELECT o.id, k.id, v.id, d.id, '1', m.metric
  FROM operators o JOIN cases k ON k.operator_id = o.id JOIN variants v ON v.operator_id = o.id, devices d,
  unnest(%(metrics)s::text[]) m(metric);
ANALYZE series;
INSERT INTO points (series_id, commit_id, ordinal, environment_id, result_id, median_ns, low_ns, high_ns, noise, count,
                    roofline_share, bound, measured_at)
  SELECT s.id, r.commit_id, r.ordinal, r.environment_id, r.id, t.ns, t.ns * 0.99, t.ns * 1.01, 0.01, 100, 0.5, 'copy',
         r.created_at
  FROM results r JOIN series s ON s.operator_id = r.operator_id AND s.device_id = r.device_id
       AND s.case_id = r.case_id AND s.variant_id = r.variant_id,
  LATERAL (SELECT 10000 * (1 + s.id %% 17) * (1 + 0.01 * random()) AS ns) t
  WHERE r.kind = 'bench' AND r.status = 'ok';
INSERT INTO traces (result_id, size, compressed_size, sha256)
  SELECT id, 1000, 100, md5(id::text) FROM results WHERE kind = 'bench' AND id %% 500 = 0;
INSERT INTO run_logs (run_id, text) SELECT id, 'measured' FROM runs;
INSERT INTO regressions (operator_id, device_id, base_commit_id, head_commit_id, direction, verdict, state, ratio, low,
                         high, created_at, decided_at, settled_at, triaged_at)
  SELECT o.id, d.id, base.id, head.id, w.direction, v.verdict, CASE WHEN n.c < 0.1 THEN 'new' ELSE 'fixed' END,
         1 + n.a, 1 + n.a, 1.1 + n.a, head.authored_at, head.authored_at + interval '5 minutes',
         head.authored_at + interval '1 hour', head.authored_at + interval '1 day'
  FROM commits head JOIN commits base ON base.repository_id = head.repository_id AND base.ordinal = head.ordinal - 1
  JOIN operators o ON o.repository_id = head.repository_id, devices d,
  LATERAL (SELECT random() * (1 + 0 * head.id * o.id * d.id) AS a, random() AS b, random() AS c) n,
  LATERAL (SELECT CASE WHEN n.a < 0.6 THEN 'slower' ELSE 'faster' END AS direction) w,
  LATERAL (SELECT CASE WHEN n.b < 0.6 THEN 'confirmed' ELSE 'dismissed' END AS verdict) v
  WHERE (head.id * 31 + o.id * 7 + d.id) %% 13 = 0
  ON CONFLICT DO NOTHING;
INSERT INTO regression_series (regression_id, series_id, suspected_ratio, verdict, ratio, low, high)
  SELECT r.id, s.id, r.ratio, r.verdict, r.ratio, r.low, r.high FROM regressions r
  CROSS JOIN LATERAL (SELECT id FROM series WHERE operator_id = r.operator_id AND device_id = r.device_id
                      AND metric = 'hot' ORDER BY id OFFSET r.id %% 40 LIMIT 1 + r.id %% 4) s;
INSERT INTO trials (regression_id, job_id, purpose, base_commit_id, head_commit_id, answer, ratio, answered_at)
  SELECT DISTINCT ON (j.id) r.id, j.id, 'confirm', r.base_commit_id, r.head_commit_id, 'changed', r.ratio, r.decided_at
  FROM regressions r JOIN jobs j ON j.commit_id = r.head_commit_id AND j.operator_id = r.operator_id
       AND j.device_id = r.device_id AND j.kind = 'bench' AND j.state = 'done' ON CONFLICT DO NOTHING
"""


@dataclass(frozen=True)
class Sizes:
    """How many commits the repositories have so that all have so many points."""

    first: int
    others: int

    @classmethod
    def of(cls, points: int) -> Sizes:
        commits = points / (OPERATORS * CASES * VARIANTS * DEVICES * len(METRICS))
        others = max(20, round(commits * (1 - FIRST_SHARE) / (REPOSITORIES - 1)))
        return cls(max(50, round(commits * FIRST_SHARE)), others)


def load(url: str, points: int) -> None:
    """Fills an empty database."""
    sizes = Sizes.of(points)
    values = {
        "repositories": REPOSITORIES,
        "devices": DEVICES,
        "operators": OPERATORS,
        "cases": CASES,
        "variants": VARIANTS,
        "metrics": list(METRICS),
        "first": sizes.first,
        "others": sizes.others,
        "waiting": WAITING_JOBS,
    }
    began = time.monotonic()
    with psycopg.connect(url, autocommit=True) as connection:
        # The rows refer to each other rightly, and indexes are quicker to make at the end.
        connection.execute("SET session_replication_role = replica")
        connection.execute("SET synchronous_commit = off")
        connection.execute("SET work_mem = '256MB'")
        connection.execute("SET maintenance_work_mem = '512MB'")
        indexes = connection.execute(INDEXES).fetchall()
        for name, _ in indexes:
            connection.execute(f"DROP INDEX {name}")
        for statement in LOAD.split(";\n"):
            if statement.startswith("INSERT INTO traces"):
                for _, definition in indexes:
                    connection.execute(definition)
            connection.execute(statement, values)
        connection.execute("RESET work_mem")
        connection.execute("VACUUM ANALYZE")
        row = connection.execute(
            "SELECT (SELECT count(*) FROM points), (SELECT count(*) FROM results), pg_database_size(current_database())"
        ).fetchone()
    assert row is not None
    print(f"loaded {row[0]:,} points of {row[1]:,} results, {row[2] / 1e9:.1f} GB, in {time.monotonic() - began:.0f} s")


def addresses(url: str) -> dict[str, str]:
    """Every page and endpoint that reads, by the name in the table, at the busiest repository."""
    with psycopg.connect(url) as connection:
        row = connection.execute("""
            SELECT (SELECT sha FROM commits WHERE repository_id = 1 ORDER BY ordinal DESC LIMIT 1),
                   (SELECT sha FROM commits WHERE repository_id = 1 ORDER BY ordinal DESC OFFSET 5 LIMIT 1),
                   (SELECT max(id) FROM jobs WHERE state = 'done'), (SELECT max(id) FROM submissions),
                   (SELECT max(id) FROM regressions WHERE verdict = 'confirmed'), (SELECT max(id) FROM points)
        """).fetchone()
    assert row is not None
    head, base, job, submission, regression, point = row
    at = "repository=load1&device=cpu-1"
    pages = {
        "overview": f"/overview?{at}",
        "history": "/history/100",
        "operator": "/kernels/op3?repository=load1",
        "commits": "/commits?repository=load1",
        "commits, page 5": "/commits?repository=load1&before=250",
        "commit": f"/commits/{head}?repository=load1",
        "compare": f"/compare?{at}&left={base}&right={head}",
        "regressions": "/regressions?repository=load1",
        "regression": f"/regressions/{regression}",
        "jobs": "/runs/jobs?repository=load1&state=all",
        "job": f"/jobs/{job}",
        "home": "/",
        "devices": "/settings/devices",
        "health": "/settings/devices?tab=health",
        "schedules": "/settings/repository?repository=load1&tab=schedules",
        "self-tests": "/settings/devices?tab=self-tests",
        "runs": "/runs?repository=load1&state=all",
        "run": f"/runs/{submission}",
        "submit": "/runs/new?repository=load1",
    }
    api = {
        "overview": f"/overview?{at}",
        "history": "/history/100",
        "noise": "/history/100/noise",
        "series": "/series?repository=load1",
        "samples": f"/points/{point}/samples",
        "operators": "/operators?repository=load1",
        "cases": "/operators/op3/cases?repository=load1",
        "code": f"/operators/op3/code?{at}",
        "speedups": f"/operators/op3/speedups?{at}",
        "commits": "/commits?repository=load1",
        "commit": f"/commits/{head}?repository=load1",
        "compare": f"/compare?{at}&left={base}&right={head}",
        "regressions": "/regressions?repository=load1",
        "regression": f"/regressions/{regression}",
        "events": "/events?repository=load1",
        "quality": "/quality?repository=load1",
        "jobs": "/jobs?repository=load1",
        "job": f"/jobs/{job}",
        "log": f"/jobs/{job}/log",
        "submissions": "/submissions?repository=load1",
        "submission": f"/submissions/{submission}",
        "report": f"/submissions/{submission}/report",
        "repositories": "/repositories",
        "devices": "/devices",
        "alarms": "/alarms?repository=load1",
        "health": "/health",
    }
    return pages | {f"{name}, JSON": f"/api/v1{path}" for name, path in api.items()}


@contextmanager
def served(home: Path) -> Iterator[None]:
    """A server on the database of `home`, without its judge's first round."""
    environment = {**os.environ, "WARPWATCH_HOME": str(home), "WARPWATCH_PORT": str(PORT)}
    environment.pop("WARPWATCH_TOKEN", None)
    server = subprocess.Popen([sys.executable, "-m", "warpwatch", "serve"], env=environment, stderr=subprocess.DEVNULL)
    try:
        for _ in range(600):
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{PORT}/static/tokens.css", timeout=2).close()
                break
            except OSError:
                time.sleep(0.1)
        yield
    finally:
        server.terminate()
        server.wait()


def take(path: str) -> tuple[float, int, int]:
    """(milliseconds, status, bytes) of one request with its whole body."""
    began = time.perf_counter()
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{PORT}{path}") as answer:
            body, status = answer.read(), answer.status
    except urllib.error.HTTPError as error:
        body, status = error.read(), error.code
    return (time.perf_counter() - began) * 1e3, status, len(body)


def make_cold(home: Path) -> None:
    """Restarts PostgreSQL, and drops its files from the page cache where this user may."""
    embedded.stop(home)
    for path in embedded.data_folder(home).rglob("*"):
        if path.is_file():
            descriptor = os.open(path, os.O_RDONLY)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(descriptor)
    embedded.start(home)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--points", type=int, default=10_000_000)
    parser.add_argument("--requests", type=int, default=20)
    parser.add_argument("--keep", type=Path)
    parser.add_argument("--only", default="", help="names that hold this text")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="ww") as folder:
        home = (arguments.keep or Path(folder)).absolute()
        url = embedded.start(home)
        try:
            migrate.upgrade(url)
            with psycopg.connect(url) as connection:
                is_empty = connection.execute("SELECT NOT EXISTS (SELECT FROM points)").fetchone() == (True,)
            if is_empty:
                load(url, arguments.points)
            chosen = {name: path for name, path in addresses(url).items() if arguments.only in name}
            with served(home):
                for name, path in chosen.items():
                    measure(home, name, path, arguments.requests)
        finally:
            embedded.stop(home)


def measure(home: Path, name: str, path: str, requests: int) -> None:
    make_cold(home)
    take("/api/v1/health")  # The pool's connections broke with the restart.
    cold, status, length = take(path)
    warm = sorted(take(path)[0] for _ in range(requests))
    p95 = statistics.quantiles(warm, n=20)[-1] if len(warm) > 1 else cold
    print(
        f"{name:<22} {status} {length / 1e3:8.0f} kB   cold {cold:8.0f} ms   warm p50 {statistics.median(warm):8.0f} ms"
        f"   p95 {p95:8.0f} ms",
        flush=True,
    )


if __name__ == "__main__":
    main()
