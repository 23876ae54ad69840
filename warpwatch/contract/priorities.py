"""Priorities of jobs, −10 to 10: a device takes the highest first, and a running job makes room for a higher one."""

from __future__ import annotations

AWAITED = 3
"""Jobs that somebody waits for: a change request, CI, any comparison with a baseline. The first trial that the answer
depends on inherits this priority."""
HURRIED = 1
"""A trial or a repeat whose turn it is, because they had less than their share of the device."""
ORDINARY = 0
"""Other submissions, and more rounds that somebody waits for: they come after the bench that their head waits for."""
CONFIRM = -1
"""A trial: new commits go first. See db.trials.keep_share."""
CONFIRM_CODE = -2
"""A trial where no time stands out and only code has changed: nothing waits for the answer."""
SCHEDULED = -5
