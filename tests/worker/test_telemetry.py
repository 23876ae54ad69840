"""One trace from a request to the verdict, over processes; and nothing of it where it is off."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from sqlalchemy import text

from tests.apps import create_app
from tests.builders import CASES, Lab
from tests.server.conftest import lab as lab
from tests.server.conftest import settings as settings
from tests.server.conftest import source as source
from tests.worker.test_loop import Fleet
from tests.worker.test_loop import fleet as fleet
from warpwatch import telemetry
from warpwatch.contract.activities import Activity, Stopwatch
from warpwatch.contract.claims import TRACE_PARENT, is_trace_parent
from warpwatch.contract.words import Status
from warpwatch.db import runs
from warpwatch.server.judge import Judge
from warpwatch.settings import SettingError, Settings, load_settings

API = "/api/v1"


@pytest.fixture
def exporter() -> Iterator[InMemorySpanExporter]:
    """Where the spans of this process come to lie."""
    memory = InMemorySpanExporter()
    telemetry.start("tests", memory)
    yield memory
    telemetry.stop()


class Collector:
    """An OTLP collector; spans by name, as (trace, id, parent, attributes)."""

    def __init__(self) -> None:
        self.spans: dict[str, tuple[str, str, str, dict[str, Any]]] = {}
        self.services: set[str] = set()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                outer.take(ExportTraceServiceRequest.FromString(body))
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *arguments: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def take(self, request: ExportTraceServiceRequest) -> None:
        for resource in request.resource_spans:
            names = {item.key: item.value.string_value for item in resource.resource.attributes}
            self.services.add(names["service.name"])
            for span in (span for scope in resource.scope_spans for span in scope.spans):
                facts = {item.key: item.value for item in span.attributes}
                self.spans[span.name] = (span.trace_id.hex(), span.span_id.hex(), span.parent_span_id.hex(), facts)

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def collector() -> Iterator[Collector]:
    running = Collector()
    yield running
    running.close()


def test_a_submission_and_its_verdict_are_one_trace(
    settings: Settings, lab: Lab, exporter: InMemorySpanExporter
) -> None:
    lab.check(0, {("v1", CASES[0]): Status.OK})
    with TestClient(create_app(settings, lab.database, judge=False), base_url="http://127.0.0.1:8321") as client:
        body = {"repository": "kernels", "commits": lab.shas[1], "operators": ["square"], "kinds": ["check"]}
        above = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
        answer = client.post(f"{API}/submissions", json=body, headers={"traceparent": above})
        assert answer.status_code == 201, answer.text
        client.get("/healthz")
        client.get(f"{API}/repositories", headers={"traceparent": "nonsense"})
    with lab.database.session() as session:
        (job_id,) = session.scalars(text("SELECT id FROM jobs WHERE trace_parent IS NOT NULL")).all()
        job = runs.begin_run(session, job_id, lab.worker)
    assert job is not None
    with telemetry.span("check square", job.trace_parent, job_id=job_id):
        lab_outcome = lab.outcome([])
    with lab.database.session() as session:
        runs.finish_run(session, job.run_id, lab_outcome)
    Judge(settings, lab.database).sweep()
    spans = {span.name: span for span in exporter.get_finished_spans()}
    request = spans["POST /api/v1/submissions"]
    assert request.parent is not None
    assert f"{request.context.trace_id:032x}" == above.split("-")[1]
    for name in ("check square", "judge"):
        assert spans[name].context.trace_id == request.context.trace_id, name
        above_it = spans[name].parent
        assert above_it is not None
        assert above_it.span_id == request.context.span_id
    assert dict(request.attributes or {})["http.response.status_code"] == 201
    assert spans["GET /api/v1/repositories"].parent is None
    assert not [name for name in spans if "healthz" in name]


def test_what_a_job_asks_for_belongs_to_its_trace(lab: Lab, exporter: InMemorySpanExporter) -> None:
    """As trials do, which the judge asks for."""
    with telemetry.span("judge") as span:
        job_id = lab.submit("check", 0)
        span.note("warpwatch.seconds", 0.5)
        assert is_trace_parent(TRACE_PARENT.get() or "")
    assert TRACE_PARENT.get() is None
    with lab.database.session() as session:
        stored = session.scalars(text("SELECT trace_parent FROM jobs WHERE id = :id"), {"id": job_id}).one()
    (judge,) = exporter.get_finished_spans()
    assert stored.split("-")[1:3] == [f"{judge.context.trace_id:032x}", f"{judge.context.span_id:016x}"]


def test_steps_are_spans_of_their_job(exporter: InMemorySpanExporter) -> None:
    stopwatch = Stopwatch(telemetry.step)
    with stopwatch.measure(Activity.START):
        assert exporter.get_finished_spans() == (), "no job runs"
    with telemetry.span("bench kron"), stopwatch.measure(Activity.CHECKOUT), stopwatch.measure(Activity.COMPILE):
        pass
    compile_span, checkout, job = exporter.get_finished_spans()
    assert [compile_span.name, checkout.name, job.name] == ["compile", "checkout", "bench kron"]
    spans = [job, checkout, compile_span]
    assert [span.parent and span.parent.span_id for span in spans[1:]] == [span.context.span_id for span in spans[:2]]
    assert stopwatch.take().checkout >= 0


def test_an_error_is_shown_and_goes_on(exporter: InMemorySpanExporter) -> None:
    with pytest.raises(ValueError, match="it"), telemetry.span("bench kron"):
        raise ValueError("it")
    (span,) = exporter.get_finished_spans()
    assert not span.status.is_ok
    assert TRACE_PARENT.get() is None


def test_a_worker_sends_its_steps(fleet: Fleet, collector: Collector, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker as a process, to a collector that speaks OTLP."""
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    token = TRACE_PARENT.set(trace)
    job = fleet.submit("prompt", priority=9)
    TRACE_PARENT.reset(token)
    for other in fleet.workers:
        other.terminate()
        other.wait(30)
    monkeypatch.setenv("WARPWATCH_TELEMETRY", "on")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
    worker = fleet.start()
    fleet.until(lambda: fleet.job(job).state in ("done", "failed"))
    worker.terminate()
    worker.wait(30)
    assert fleet.job(job).state == "done"
    assert collector.services == {"warpwatch-worker"}
    trace_id, span_id, parent, facts = collector.spans["check patient"]
    assert (trace_id, parent) == (trace.split("-")[1], trace.split("-")[2])
    assert facts["warpwatch.ending"].string_value == "done"
    assert facts["warpwatch.seconds.verify"].double_value >= 0
    for step in ("checkout", "record"):
        assert collector.spans[step][:3:2] == (trace_id, span_id), step


def test_nothing_is_imported_where_it_is_off(tmp_path: Path) -> None:
    code = (
        "import sys\n"
        "from pathlib import Path\n"
        "from warpwatch.db.database import Database\n"
        "from warpwatch.server.app import create_app\n"
        "from warpwatch.settings import Settings\n"
        "import warpwatch.worker.loop, warpwatch.cli\n"
        "from warpwatch import telemetry\n"
        "create_app(Settings(home=Path('/nonexistent')), Database('postgresql://nobody@127.0.0.1:1/none'))\n"
        "with telemetry.span('nothing') as span:\n"
        "    span.rename('still nothing'); span.note('a', 1)\n"
        # FastAPI imports the interface, which does nothing by itself.
        "parts = ('opentelemetry.sdk', 'opentelemetry.exporter', 'google.protobuf')\n"
        "print([name for name in sys.modules if name.startswith(parts)])\n"
    )
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("OTEL_", "WARPWATCH_"))}
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, cwd=tmp_path)
    assert shown.stdout.strip() == "[]", shown.stderr


def test_settings_that_cannot_be_used(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not load_settings({}).has_telemetry
    assert load_settings({"WARPWATCH_TELEMETRY": "on"}).has_telemetry
    with pytest.raises(SettingError, match="WARPWATCH_TELEMETRY"):
        load_settings({"WARPWATCH_TELEMETRY": "yes"})
    monkeypatch.setattr(telemetry, "find_spec", lambda name: None)
    with pytest.raises(SettingError, match="WARPWATCH_TELEMETRY"):
        telemetry.start("tests")
