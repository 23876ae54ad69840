"""The trace that a process works for, as a job and a request carry it to the next process."""

from __future__ import annotations

import re
from contextvars import ContextVar

TRACE_PARENT: ContextVar[str | None] = ContextVar("TRACE_PARENT", default=None)
"""The open span as a W3C `traceparent`; None where nothing is traced."""
_TRACE_PARENT = re.compile(r"00-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")


def is_trace_parent(text: str) -> bool:
    return _TRACE_PARENT.fullmatch(text) is not None
