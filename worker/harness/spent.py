"""The child's stopwatch: which part of a request was inputs, oracle, warm-up, samples and verification."""

from __future__ import annotations

from warpwatch.contract.activities import Activity, Stopwatch

STOPWATCH = Stopwatch()
ACTIVITIES = {
    "check": Activity.VERIFY,
    "bench": Activity.VERIFY,
    "profile": Activity.SAMPLES,
    "rehearse": Activity.WARM_UP,
    "prepare": Activity.WARM_UP,
    "sample": Activity.SAMPLES,
    "testify": Activity.VERIFY,
    "finish": Activity.VERIFY,
}
"""What a request spends its time on where nothing inside it says otherwise. Other requests are no measurement."""
