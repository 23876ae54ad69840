"""Cron expressions, parsed by croniter, a dependency of the queue. All times are UTC."""

from __future__ import annotations

from datetime import UTC, datetime

from croniter import CroniterBadCronError, CroniterBadDateError, croniter

EXAMPLE = "0 2 * * *"
FIELDS = 5
"""minute, hour, day of month, month, day of week; no seconds, because no measurement is that short."""


class CronError(ValueError):
    """The expression is not valid; the message says why."""


def next_after(cron: str, now: datetime) -> datetime:
    """The first time after `now` that matches the expression, in UTC; missed times are skipped."""
    fields = cron.split()
    if len(fields) != FIELDS and not (len(fields) == 1 and cron.strip().startswith("@")):
        raise CronError(f"{cron!r} has {len(fields)} fields, not {FIELDS}")
    try:
        due: datetime = croniter(cron.strip(), now.astimezone(UTC)).get_next(datetime)
    except CroniterBadDateError:
        raise CronError(f"{cron!r} matches no date") from None
    except (CroniterBadCronError, ValueError, KeyError, AttributeError, TypeError) as error:
        raise CronError(
            f"{cron!r} is not a cron expression: {str(error).strip(chr(34)) or type(error).__name__}"
        ) from None
    return due
