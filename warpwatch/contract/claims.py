"""Messages between a worker and the server: the description of the worker, the job it gets with its trace, and the end
of its run."""

from __future__ import annotations

import re
from contextvars import ContextVar
from dataclasses import dataclass, field
from enum import StrEnum

from warpwatch.contract.activities import RunTimes
from warpwatch.contract.environment import Environment
from warpwatch.contract.outcome import PartialOutcome
from warpwatch.contract.spec import JobRequest
from warpwatch.contract.words import Reason

PROTOCOL_VERSION = 1
"""Of the requests that a worker sends to a server; a server refuses workers of another one."""
CHUNK_BYTES = 512 * 1024
"""Of a results file, in one request."""
INLINE_BYTES = 512 * 1024
"""Of results and log, as JSON, that a server takes together with the ending of a run; it says so when a worker
registers, because servers of version 0.1 take none."""
TRACE_PARENT: ContextVar[str | None] = ContextVar("TRACE_PARENT", default=None)
"""The open span as a W3C `traceparent`; None where nothing is traced."""
_TRACE_PARENT = re.compile(r"00-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")


@dataclass(frozen=True, slots=True)
class WorkerDescription:
    """A worker that starts: its host, process and device, and how it confines kernel code.

    physical: identifies the very device, which two workers must not share. peaks: measured ceilings, see CeilingsReply.
    toolchains: names of those in its worker.toml; None where it does not say.
    """

    name: str
    version: str
    device: str
    isolation: str
    missing_protections: list[str]
    physical: str
    environment: Environment
    peaks: dict[str, float] | None
    protocol: int = PROTOCOL_VERSION
    toolchains: list[str] | None = None


@dataclass(frozen=True, slots=True)
class ClaimedJob:
    """A job that a run owns: what to execute, and as which attempt.

    partial: what interrupted runs of the job found. trace_parent: the span that asked for it, see TRACE_PARENT.
    """

    job_id: int
    run_id: int
    attempt: int
    request: JobRequest
    partial: PartialOutcome | None = None
    trace_parent: str | None = None


@dataclass(frozen=True, slots=True)
class LeaseState:
    """Whether a run may go on. is_lost: it owns its job no more. yield_to: the more urgent job it makes room for."""

    is_lost: bool = False
    is_cancelled: bool = False
    yield_to: int | None = None


@dataclass(frozen=True, slots=True)
class RunProgress:
    """How far a run is. cell: the variant and case that it measures."""

    done: int
    total: int
    text: str
    cell: tuple[str, str] | None = None


class EndingKind(StrEnum):
    """done: with an outcome. failed: it could not run. released: its worker stops. yielded: it makes room for a more
    urgent job. cancelled: somebody cancelled the job."""

    DONE = "done"
    FAILED = "failed"
    RELEASED = "released"
    YIELDED = "yielded"
    CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True)
class RunEnding:
    """How a run ends. message, retry, reason: of one that failed, see db.runs.fail_run. yielded_to: the urgent job."""

    kind: EndingKind
    times: RunTimes = field(default_factory=RunTimes)
    message: str = ""
    retry: bool = False
    reason: Reason | None = None
    yielded_to: int | None = None


def is_trace_parent(text: str) -> bool:
    return _TRACE_PARENT.fullmatch(text) is not None
