"""One trace from a request to the verdict, over processes; and nothing of it where it is off."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from fastapi.testclient import TestClient
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from sqlalchemy import text

from tests.apps import create_app
from tests.builders import CASES, Lab
from tests.server.conftest import lab as lab
from tests.server.conftest import settings as settings
from tests.server.conftest import source as source
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
