"""Traces of requests, jobs, worker steps and verdicts, by OpenTelemetry. Off by default; then neither its SDK nor an
exporter is imported.

A submission, its jobs on whatever worker, their verdicts and the trials that these ask for are one trace: jobs carry
the context in their row.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from warpwatch.contract.activities import Activity
from warpwatch.contract.claims import TRACE_PARENT, is_trace_parent
from warpwatch.settings import SettingError

if TYPE_CHECKING:
    from opentelemetry.sdk.trace.export import SpanExporter
    from opentelemetry.trace import Tracer

_tracer: Tracer | None = None


class OpenSpan:
    """A span that is not over; without telemetry it notes nothing."""

    def __init__(self, span: Any = None) -> None:
        self._span = span

    def rename(self, name: str) -> None:
        if self._span is not None:
            self._span.update_name(name)

    def note(self, name: str, value: str | float | bool) -> None:
        """Notes a fact about what the span shows."""
        if self._span is not None:
            self._span.set_attribute(name, value)


_NOTHING = OpenSpan()


def start(service: str, exporter: SpanExporter | None = None) -> None:
    """From now on spans are sent: to `exporter`, by default to where the variables OTEL_EXPORTER_OTLP_… say.

    SettingError where the packages are missing.
    """
    global _tracer
    if find_spec("opentelemetry.sdk") is None or find_spec("opentelemetry.exporter.otlp") is None:
        raise SettingError("WARPWATCH_TELEMETRY=on needs more packages: pip install 'warpwatch[telemetry]'")
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor, SimpleSpanProcessor

    from warpwatch import __version__

    named = os.environ.get("OTEL_SERVICE_NAME", service)
    provider = TracerProvider(resource=Resource.create({"service.name": named, "service.version": __version__}))
    sending = BatchSpanProcessor(OTLPSpanExporter()) if exporter is None else SimpleSpanProcessor(exporter)
    provider.add_span_processor(sending)
    _tracer = provider.get_tracer("warpwatch", __version__)


def stop() -> None:
    """Nothing is traced any more."""
    global _tracer
    _tracer = None


@contextmanager
def span(name: str, parent: str | None = None, *, is_server: bool = False, **facts: str | int) -> Iterator[OpenSpan]:
    """Shows the block as a span: below `parent`, else below the open one, else as the beginning of a trace."""
    if _tracer is None:
        yield _NOTHING
        return
    from opentelemetry.context import Context
    from opentelemetry.trace import SpanKind
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    propagator = TraceContextTextMapPropagator()
    above = parent or TRACE_PARENT.get()
    context = propagator.extract({"traceparent": above}, Context()) if above and is_trace_parent(above) else Context()
    kind = SpanKind.SERVER if is_server else SpanKind.INTERNAL
    attributes = {f"warpwatch.{key}": value for key, value in facts.items()}
    with _tracer.start_as_current_span(name, context, kind, attributes) as opened:
        carrier: dict[str, str] = {}
        propagator.inject(carrier)
        token = TRACE_PARENT.set(carrier.get("traceparent"))
        try:
            yield OpenSpan(opened)
        finally:
            TRACE_PARENT.reset(token)


@contextmanager
def step(activity: Activity) -> Iterator[None]:
    """Shows a step of a job, while one runs."""
    if TRACE_PARENT.get() is None:
        yield
        return
    with span(activity):
        yield
