"""Log lines of a service as text or as JSON, each with the request or the job that it is about."""

from __future__ import annotations

import json
import logging
import sys
from contextvars import ContextVar
from datetime import UTC, datetime

REQUEST_ID: ContextVar[str | None] = ContextVar("REQUEST_ID", default=None)
JOB_ID: ContextVar[int | None] = ContextVar("JOB_ID", default=None)
_TEXT = "%(asctime)s %(levelname)s %(name)s: %(message)s"
_QUIET = ("httpx", "httpcore", "apprise")
"""Libraries whose lines below WARNING say nothing about Warpwatch."""
_ORDINARY = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime"}


class _JsonFormatter(logging.Formatter):
    """One object per line: time, level, logger, message, request, job, fields given as `extra`, and the traceback."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        ids = {"request_id": REQUEST_ID.get(), "job_id": JOB_ID.get()}
        line |= {name: value for name, value in ids.items() if value is not None}
        line |= {name: value for name, value in record.__dict__.items() if name not in _ORDINARY}
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


def configure_logs(log_format: str, text_level: int) -> None:
    """Writes the lines of this process to standard error. `text_level` is the lowest level of lines for people; JSON,
    which programs filter, has INFO as well."""
    handler = logging.StreamHandler(sys.stderr)
    is_json = log_format == "json"
    handler.setFormatter(_JsonFormatter() if is_json else logging.Formatter(_TEXT))
    logging.basicConfig(level=logging.INFO if is_json else text_level, handlers=[handler], force=True)
    for name in _QUIET:
        logging.getLogger(name).setLevel(logging.WARNING)
