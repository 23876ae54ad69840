"""Liveness, readiness and metrics; and that the dashboard and the alerts ask for what the metrics are called."""

from __future__ import annotations

import json
import logging
import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import promql_parser
import pytest
import yaml
from fastapi.testclient import TestClient
from prometheus_client.openmetrics.parser import text_string_to_metric_families
from sqlalchemy import text

from tests.apps import create_app
from tests.builders import CASES, Lab
from warpwatch.contract.words import Status
from warpwatch.db.database import Database
from warpwatch.db.reads.metrics import list_device_uses, list_queue_depths
from warpwatch.db.tallies import count_runs
from warpwatch.logs import configure_logs
from warpwatch.server.explanation.alarms import AlarmKind
from warpwatch.server.http.metrics import NO_ROUTE
from warpwatch.settings import Settings

ROOT = Path(__file__).parents[2]
DASHBOARD = ROOT / "deploy" / "grafana" / "warpwatch.json"
ALERTS = ROOT / "deploy" / "prometheus" / "alerts.yml"
OF_PROMETHEUS = {"up": {"job", "instance"}}
"""Metrics that Prometheus makes itself."""
ADDED = {"job", "instance"}
"""Labels that Prometheus adds to every metric."""
Samples = dict[str, list[tuple[dict[str, str], float]]]


def scrape(client: TestClient) -> Samples:
    answer = client.get("/metrics")
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("application/openmetrics-text")
    samples: Samples = defaultdict(list)
    for family in text_string_to_metric_families(answer.text):
        for sample in family.samples:
            samples[sample.name].append((dict(sample.labels), sample.value))
    return samples


def value(samples: Samples, name: str, **labels: str) -> float:
    (row,) = [number for given, number in samples[name] if labels.items() <= given.items()]
    return row


@pytest.fixture
def busy(lab: Lab) -> Lab:
    """A lab with results, a failed run, jobs that wait, a job that runs, a silent worker, and a status that failed."""
    lab.bench(0, {("v1", CASES[0]): 1000.0, ("v2", CASES[0]): Status.CRASHED})
    lab.check(0, {("v1", CASES[0]): Status.OK})
    lab.submit("bench", 1)
    lab.submit("check", 1)
    running = lab.submit("bench", 2)
    with lab.database.session() as session:
        count_runs(session)
        for statement in (
            "UPDATE jobs SET created_at = now() - interval '1 hour'",
            "UPDATE runs SET started_at = now() - interval '20 minutes'",
            "UPDATE workers SET started_at = now() - interval '40 minutes', heartbeat_at = now() - interval '1 minute'",
            f"UPDATE jobs SET state = 'running', attempt = 1 WHERE id = {running}",
            "INSERT INTO runs (job_id, attempt, worker_id, started_at) "
            f"VALUES ({running}, 1, {lab.worker}, now() - interval '10 minutes')",
            f"INSERT INTO runs (job_id, attempt, state, finished_at) VALUES ({running}, 0, 'failed', now())",
            "INSERT INTO callbacks (submission_id, url, body, attempts, given_up_at) "
            "VALUES (1, 'http://a', '{}', 3, now())",
            "INSERT INTO callbacks (submission_id, url, body, attempts) VALUES (2, 'http://b', '{}', 1)",
        ):
            session.execute(text(statement))
    return lab


def test_what_the_database_holds_is_exported(client: TestClient, busy: Lab) -> None:
    samples = scrape(client)
    key = busy.environment.device_key
    assert value(samples, "warpwatch_database_up") == 1
    assert value(samples, "warpwatch_jobs", device=key, kind="check", state="queued") == 1
    assert value(samples, "warpwatch_jobs", device=key, kind="bench", state="running") == 1
    assert value(samples, "warpwatch_oldest_job_seconds", kind="check", state="queued") == pytest.approx(3600, abs=60)
    assert value(samples, "warpwatch_workers", device=key, state="silent") == 1
    assert value(samples, "warpwatch_claim_seconds", device=key, quantile="0.5") == pytest.approx(2400, abs=60)
    assert value(samples, "warpwatch_claim_seconds", device=key, quantile="0.99") == pytest.approx(3000, abs=60)
    # Two runs of 20 minutes and one of 10 in the 39 minutes of one worker.
    assert value(samples, "warpwatch_device_busy_share", device=key) == 1
    assert value(samples, "warpwatch_hourly_runs", device=key, kind="bench", state="failed") == 1
    assert value(samples, "warpwatch_hourly_results", device=key, kind="bench", status="crashed") == 1
    assert value(samples, "warpwatch_hourly_results", device=key, kind="bench", status="ok") == 1
    assert value(samples, "warpwatch_alarms", kind="stale_device") == 1
    assert value(samples, "warpwatch_notifications", channel="status", outcome="given_up") == 1
    assert value(samples, "warpwatch_notifications", channel="status", outcome="retried") == 1
    assert value(samples, "warpwatch_database_bytes") > 1e6


def test_a_job_that_may_not_run_yet_does_not_wait(lab: Lab) -> None:
    lab.submit("bench", 0)
    with lab.database.session() as session:
        session.execute(
            text("UPDATE jobs SET created_at = now() - interval '1 day', not_before = now() + interval '1 h'")
        )
        (depth,) = list_queue_depths(session)
        assert (depth.jobs, depth.oldest_seconds) == (1, 0)
        (use,) = list_device_uses(session)
        assert (use.claim_median_seconds, use.busy_share) in ((None, None), (None, 0.0))


def test_requests_are_counted_by_route(client: TestClient, lab: Lab) -> None:
    for path in ("/api/v1/commits/aaaa?repository=kernels", "/api/v1/commits/bbbb?repository=kernels", "/static/x.js"):
        client.get(path)
    client.get("/no/such/page")
    client.request("BREW", "/")
    samples = scrape(client)
    name = "warpwatch_request_seconds_count"
    assert value(samples, name, method="GET", route="/api/v1/commits/{sha}", status="404") == 2
    assert value(samples, name, route="/static") == 1
    assert value(samples, name, route=NO_ROUTE, method="GET", status="404") == 1
    assert {labels["method"] for labels, _ in samples[name]} == {"GET", "other"}


def test_metrics_survive_an_outage_of_the_database(settings: Settings) -> None:
    database = Database("postgresql://nobody@127.0.0.1:1/none")
    with TestClient(create_app(settings, database, judge=False), base_url="http://127.0.0.1") as client:
        assert client.get("/healthz").json() == {"status": "ok"}
        answer = client.get("/readyz")
        assert (answer.status_code, [error["field"] for error in answer.json()["errors"]]) == (503, ["database"])
        samples = scrape(client)
        assert value(samples, "warpwatch_database_up") == 0
        assert value(samples, "warpwatch_home_free_bytes") > 0
        assert "warpwatch_jobs" not in samples
    database.close()


def test_readiness_names_what_is_not_ready(
    settings: Settings, database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    blocked = replace(settings, home=tmp_path / "file" / "home")
    with TestClient(create_app(blocked, database, judge=False), base_url="http://127.0.0.1") as client:
        assert [error["field"] for error in client.get("/readyz").json()["errors"]] == ["folder"]
    app = create_app(settings, database, judge=False)
    with TestClient(app, base_url="http://127.0.0.1") as client:
        assert client.get("/readyz").status_code == 200
        monkeypatch.setattr("warpwatch.server.http.service.count_pending", lambda database: 2)
        answer = client.get("/readyz")
        assert (answer.status_code, [error["field"] for error in answer.json()["errors"]]) == (503, ["schema"])
        assert client.get("/healthz").status_code == 200


def test_a_server_stays_ready_while_a_newer_release_migrates(settings: Settings, database: Database) -> None:
    def migrate_by(version: str) -> None:
        with database.session() as session:
            session.execute(text("UPDATE alembic_version SET version_num = :version"), {"version": version})

    with database.session() as session:
        current = session.scalars(text("SELECT version_num FROM alembic_version")).one()
    try:
        with TestClient(create_app(settings, database, judge=False), base_url="http://127.0.0.1") as client:
            assert client.get("/readyz").status_code == 200
            migrate_by("9999")
            assert client.get("/readyz").status_code == 200
            assert client.get("/api/v1/repositories").status_code == 200
        with TestClient(create_app(settings, database, judge=False), base_url="http://127.0.0.1") as client:
            assert [error["field"] for error in client.get("/readyz").json()["errors"]] == ["schema"]
    finally:
        migrate_by(current)


def test_strangers_see_that_the_server_lives_and_no_metrics(settings: Settings, database: Database) -> None:
    exposed = replace(settings, host="0.0.0.0", token="a-token-of-some-length")
    with TestClient(create_app(exposed, database, judge=False), base_url="http://gpu7.example") as client:
        assert [client.get(path).status_code for path in ("/healthz", "/readyz", "/metrics")] == [200, 200, 401]
        shown = {"Authorization": f"Bearer {exposed.token}"}
        assert client.get("/metrics", headers=shown).status_code == 200


def test_requests_have_ids_and_json_lines(
    client: TestClient, lab: Lab, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    root = logging.getLogger()
    monkeypatch.setattr(root, "handlers", [])
    level = root.level
    try:
        configure_logs("json", logging.WARNING)
        own = client.get("/healthz", headers={"X-Request-ID": "proxy-7"}).headers["x-request-id"]
        made = client.get("/healthz", headers={"X-Request-ID": "two\twords"}).headers["x-request-id"]
        client.get("/api/v1/jobs/4711")
    finally:
        root.setLevel(level)
    written = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    lines = [line for line in written if "route" in line]
    assert (own, re.fullmatch("[0-9a-f]{16}", made) is not None) == ("proxy-7", True)
    assert [line["request_id"] for line in lines][:2] == [own, made]
    fields = {name: lines[2][name] for name in ("method", "route", "status", "level")}
    assert fields == {"method": "GET", "route": "/api/v1/jobs/{job_id}", "status": 404, "level": "info"}


def dashboard_queries() -> list[str]:
    board = json.loads(DASHBOARD.read_text())
    queries = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    chosen = [
        re.sub(r"label_values\((\w+), (\w+)\)", r"\1", row["query"]["query"]) for row in board["templating"]["list"][1:]
    ]
    # Grafana fills these in.
    return [query.replace("$__rate_interval", "5m").replace("$device", ".*") for query in queries + chosen]


def alert_rules() -> list[dict[str, Any]]:
    return [rule for group in yaml.safe_load(ALERTS.read_text())["groups"] for rule in group["rules"]]


def selectors(node: Any) -> Iterator[Any]:
    """Every selector of a parsed query."""
    if isinstance(node, promql_parser.VectorSelector):
        yield node
    for name in ("expr", "lhs", "rhs", "vector_selector", "param", "args"):
        child = getattr(node, name, None)
        for part in child if isinstance(child, list) else [child]:
            if part is not None:
                yield from selectors(part)


def grouped_labels(node: Any) -> Iterator[str]:
    """Every label that a parsed query groups or joins by."""
    modifier = getattr(node, "modifier", None)
    for owner in (modifier, getattr(modifier, "matching", None)):
        yield from getattr(owner, "labels", None) or []
    for name in ("expr", "lhs", "rhs", "args"):
        child = getattr(node, name, None)
        for part in child if isinstance(child, list) else [child]:
            if part is not None:
                yield from grouped_labels(part)


def test_dashboard_and_alerts_ask_for_what_is_exported(client: TestClient, busy: Lab) -> None:
    client.get("/healthz")
    exported = {name: {*labels, *ADDED} for name, rows in scrape(client).items() for labels, _ in rows[:1]}
    exported |= OF_PROMETHEUS
    # Background threads do not run in this test.
    exported["warpwatch_thread_age_seconds"] = {"thread", *ADDED}
    queries = dashboard_queries() + [rule["expr"] for rule in alert_rules()]
    used = set()
    for query in queries:
        parsed = promql_parser.parse(query)
        chosen = list(selectors(parsed))
        assert chosen, query
        for selector in chosen:
            used.add(selector.name)
            assert selector.name in exported, f"{query} asks for {selector.name}"
            assert {matcher.name for matcher in selector.matchers.matchers} <= exported[selector.name], query
        known = set().union(*(exported[selector.name] for selector in chosen))
        assert set(grouped_labels(parsed)) <= known, query
    ours = {name for name in exported if name.startswith("warpwatch_")}
    unused = {f"warpwatch_request_seconds_{part}" for part in ("sum", "created")}
    assert ours - used == unused, "the dashboard leaves something out"


def test_every_alert_and_alarm_has_its_remedy_in_the_document() -> None:
    document = (ROOT / "docs" / "operations.md").read_text()
    rows = re.findall(r"^\| `(\w+)` \| (.+?) \| (.+?) \|$", document, re.MULTILINE)
    remedies = {name: remedy for name, _, remedy in rows}
    assert {rule["alert"] for rule in alert_rules()} | set(get_args(AlarmKind)) == set(remedies)
    assert all(remedies.values())
    for rule in alert_rules():
        assert rule["annotations"]["summary"]
        assert rule["labels"]["severity"] in ("critical", "warning")
