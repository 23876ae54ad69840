"""OpenMetrics export at /metrics, and a middleware that measures requests and gives each request an id."""

from __future__ import annotations

import logging
import re
import secrets
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from prometheus_client import CollectorRegistry, Histogram, ProcessCollector
from prometheus_client.metrics_core import GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.openmetrics.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from warpwatch import __version__, telemetry
from warpwatch.db.database import Database
from warpwatch.db.errors import EngineError
from warpwatch.db.reads.metrics import (
    list_device_uses,
    list_notification_counts,
    list_queue_depths,
    list_result_counts,
    list_run_counts,
    list_worker_counts,
    read_database_bytes,
)
from warpwatch.db.reads.query import Session
from warpwatch.logs import REQUEST_ID
from warpwatch.server.http.alarm_cache import Alarms
from warpwatch.server.threads.background import Background
from warpwatch.settings import Settings, free_bytes
from warpwatch.telemetry import OpenSpan

CONTENT_TYPE = CONTENT_TYPE_LATEST
NO_ROUTE = "none"
"""The route of requests that no route answers, such as those for a wrong address."""
_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
_PREFIXES = ("/api/v1", "/static", "/perfetto")
_UNTRACED = ("/static/", "/perfetto/", "/healthz", "/readyz", "/metrics", "/api/v1/worker/")
_QUEUE_LABELS = ["device", "kind", "state"]
_log = logging.getLogger(__name__)


class ServiceMetrics:
    """The metrics of one server: what it measures itself, and what it reads from the database when it is asked."""

    def __init__(self, settings: Settings, database: Database, alarms: Alarms, threads: Sequence[Background]) -> None:
        self._registry = CollectorRegistry()
        self.requests = Histogram(
            "warpwatch_request_seconds",
            "Seconds from a request to the head of its answer.",
            ["method", "route", "status"],
            buckets=_BUCKETS,
            registry=self._registry,
        )
        ProcessCollector(registry=self._registry)
        self._registry.register(_StateCollector(settings, database, alarms, threads))

    def export(self) -> bytes:
        """All metrics, as OpenMetrics text."""
        text: bytes = generate_latest(self._registry)  # type: ignore[no-untyped-call]
        return text


class _StateCollector(Collector):
    """Gauges of the database, of this server's threads and of its folder, read at each export."""

    def __init__(self, settings: Settings, database: Database, alarms: Alarms, threads: Sequence[Background]) -> None:
        self._settings = settings
        self._database = database
        self._alarms = alarms
        self._threads = threads

    def describe(self) -> Iterator[Metric]:
        """Names nothing ahead, so that registering asks no database."""
        return iter(())

    def collect(self) -> Iterator[Metric]:
        yield InfoMetricFamily("warpwatch", "The version of the server.", {"version": __version__})
        now = time.monotonic()
        ages = [((thread.name,), now - thread.swept_at) for thread in self._threads]
        yield _gauge("thread_age_seconds", "Seconds since the last round of a background thread.", ["thread"], ages)
        free = [((), free_bytes(self._settings.home))]
        yield _gauge("home_free_bytes", "Free space in WARPWATCH_HOME of this server.", [], free)
        try:
            with self._database.session() as session:
                yield from self._read_queue(session)
                yield from self._read_results(session)
            is_up = 1.0
        except EngineError as error:
            _log.warning("the metrics of the database are left out: %s", error)
            is_up = 0.0
        yield _gauge(
            "database_up", "Whether the database answers and has the schema of this server.", [], [((), is_up)]
        )

    def _read_queue(self, session: Session) -> list[Metric]:
        depths = list_queue_depths(session)
        uses = list_device_uses(session)
        claims = [
            ((use.device_key, quantile), seconds)
            for use in uses
            for quantile, seconds in (("0.5", use.claim_median_seconds), ("0.99", use.claim_p99_seconds))
            if seconds is not None
        ]
        return [
            _gauge(
                "jobs",
                "Jobs that wait or run.",
                _QUEUE_LABELS,
                [((d.device_key, d.kind, d.state), d.jobs) for d in depths],
            ),
            _gauge(
                "oldest_job_seconds",
                "How long the oldest of these jobs has existed and been allowed to run.",
                _QUEUE_LABELS,
                [((depth.device_key, depth.kind, depth.state), depth.oldest_seconds) for depth in depths],
            ),
            _gauge(
                "claim_seconds",
                "Quantiles of the wait of jobs for a worker, last hour.",
                ["device", "quantile"],
                claims,
            ),
            _gauge(
                "device_busy_share",
                "Share of the time of a device's workers in which jobs ran, last hour.",
                ["device"],
                [((use.device_key,), use.busy_share) for use in uses if use.busy_share is not None],
            ),
            _gauge(
                "workers",
                "Workers that have not stopped.",
                ["device", "state"],
                [
                    ((row.device_key, row.state), row.workers)
                    for row in list_worker_counts(session, self._settings.lease_seconds)
                ],
            ),
        ]

    def _read_results(self, session: Session) -> list[Metric]:
        alarms = Counter(alarm.kind for alarm in self._alarms.recent(session))
        return [
            _gauge(
                "hourly_runs",
                "Runs that ended in the last hour.",
                _QUEUE_LABELS,
                [((row.device_key, row.kind, row.state), row.runs) for row in list_run_counts(session)],
            ),
            _gauge(
                "hourly_results",
                "Results of runs that ended in the last hour.",
                ["device", "kind", "status"],
                [((row.device_key, row.kind, row.status), row.results) for row in list_result_counts(session)],
            ),
            _gauge(
                "alarms",
                "What blocks measurement, as on the page Health.",
                ["kind"],
                [((k,), n) for k, n in alarms.items()],
            ),
            _gauge(
                "notifications",
                "Messages to other systems that wait, or that were given up in the last day.",
                ["channel", "outcome"],
                [((row.channel, row.outcome), row.messages) for row in list_notification_counts(session)],
            ),
            _gauge("database_bytes", "Size of the database.", [], [((), read_database_bytes(session))]),
        ]


def _gauge(name: str, help_text: str, labels: list[str], samples: Sequence[tuple[tuple[str, ...], float]]) -> Metric:
    family = GaugeMetricFamily(f"warpwatch_{name}", help_text, labels=labels)
    for values, value in samples:
        family.add_metric(values, value)
    return family


class RequestObserver:
    """ASGI middleware around the whole application: an id for each request, its duration, and a line in a JSON log."""

    def __init__(self, app: ASGIApp, metrics: ServiceMetrics) -> None:
        self.app = app
        self._requests = metrics.requests

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        shown = Headers(scope=scope).get("x-request-id", "")
        # An id of the proxy in front, so that its log and ours can be joined.
        request_id = shown if _REQUEST_ID.fullmatch(shown) else secrets.token_hex(8)
        started_at = time.perf_counter()

        async def send_observed(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)["X-Request-ID"] = request_id
                self._note(scope, message["status"], time.perf_counter() - started_at)
                route = route_template(scope)
                span.rename(f"{scope['method']} {route}")
                span.note("http.route", route)
                span.note("http.response.status_code", message["status"])
            await send(message)

        token = REQUEST_ID.set(request_id)
        try:
            with _request_span(scope, request_id) as span:
                await self.app(scope, receive, send_observed)
        finally:
            REQUEST_ID.reset(token)

    def _note(self, scope: Scope, status: int, seconds: float) -> None:
        method = scope["method"] if scope["method"] in ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE") else "other"
        route = route_template(scope)
        self._requests.labels(method, route, str(status)).observe(seconds)
        fields = {"method": method, "route": route, "status": status, "seconds": round(seconds, 6)}
        _log.info("%s %s", method, route, extra=fields)


@contextmanager
def _request_span(scope: Scope, request_id: str) -> Iterator[OpenSpan]:
    """The request as a span, below that of its caller. What comes several times a second, or never ends, has none."""
    path = scope["path"]
    if path.startswith(_UNTRACED) or path.endswith("/events"):
        yield OpenSpan()
        return
    parent = Headers(scope=scope).get("traceparent")
    with telemetry.span(scope["method"], parent, is_server=True, request_id=request_id) as span:
        span.note("http.request.method", scope["method"])
        span.note("url.path", path)
        yield span


def route_template(scope: Scope) -> str:
    """The template of the route that a request reached, such as `/api/v1/jobs/{job_id}`; addresses would be without
    number."""
    route: Any = scope.get("route")
    path = str(scope["path"])
    prefix = next((prefix for prefix in _PREFIXES if path == prefix or path.startswith(f"{prefix}/")), "")
    if route is None:
        return prefix if prefix in _PREFIXES[1:] else NO_ROUTE
    template = str(route.path_format)
    # Whether a route knows the prefix that it was included under depends on FastAPI's version.
    return template if template.startswith(prefix) else prefix + template
