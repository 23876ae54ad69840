"""Priorities of jobs, −10 to 10: a device takes the highest first, and a running job makes room for a higher one."""

from __future__ import annotations

AWAITED = 3
"""Jobs that somebody waits for: a change request, CI, any comparison with a baseline. Trials that the answer depends on
inherit this priority."""
HURRIED = 1
"""A trial whose turn it is, because trials had less than their share of the device."""
ORDINARY = 0
CONFIRM = -1
"""A trial: new commits go first. See db.trials.keep_share."""
CONFIRM_CODE = -2
"""A trial where no time stands out and only code has changed: nothing waits for the answer."""
SCHEDULED = -5
