"""Cron expressions, read by croniter, which the queue brings along. All times are UTC."""

from __future__ import annotations

from datetime import UTC, datetime

from croniter import CroniterBadCronError, CroniterBadDateError, croniter

EXAMPLE = "0 2 * * *"
FIELDS = 5
"""minute, hour, day of month, month, day of week; seconds would be more often than anything can be measured."""


class CronError(ValueError):
    """The expression names no moment; the message says why."""


def next_after(cron: str, now: datetime) -> datetime:
    """The first moment after `now` that the expression names, in UTC.

    However many were missed before, the next one is in the future.
    """
    words = cron.split()
    if len(words) != FIELDS and not (len(words) == 1 and cron.strip().startswith("@")):
        raise CronError(f"{cron!r} has {len(words)} fields, not {FIELDS}")
    try:
        found: datetime = croniter(cron.strip(), now.astimezone(UTC)).get_next(datetime)
    except CroniterBadDateError:
        raise CronError(f"{cron!r} names a day that never comes") from None
    except (CroniterBadCronError, ValueError, KeyError, AttributeError, TypeError) as error:
        raise CronError(
            f"{cron!r} is no cron expression: {str(error).strip(chr(34)) or type(error).__name__}"
        ) from None
    return found
