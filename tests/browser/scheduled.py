"""What the service measures by itself: schedules that took turns and one that is switched off."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from warpwatch.db.schedules import NewSchedule, create_schedule, end_turn

_TURNS = (
    (
        "nightly",
        "suite",
        "0 2 * * *",
        "submission 12: 6 jobs at 1 commit, about 6.5 of 60 device minutes; 3 jobs for later turns",
    ),
    ("repeats", "rerun", "0 */4 * * *", "nothing to do: no commit of the watched branch was measured yet"),
    ("holes", "backfill", "*/20 * * * *", "waits: 60.0 of 60 device minutes of the last 24 hours are spent"),
    ("weekend", "suite", "0 6 * * sat", ""),
)


def plan(world: Any) -> None:
    """Four schedules, the last of them disabled."""
    now = datetime.now(UTC)
    request = {
        "operators": [],
        "kinds": ["bench"],
        "suite": "quick",
        "device": "all",
        "priority": -5,
        "skip_unchanged": False,
    }
    with world.database.session() as s:
        for name, kind, cron, message in _TURNS:
            due = now + timedelta(days=300) if message else None
            number = create_schedule(s, NewSchedule(world.repository, name, kind, cron, request, 60, due))
            assert number is not None
            if message:
                end_turn(s, number, now - timedelta(hours=3), due, message)
