"""The plan of a submission, as `warpwatch submit` and `warpwatch up` print it before work begins."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

MOST_LINES = 5
"""Commits that are named for each reason to leave some out."""
REASONS = {
    "range_start": "before the range",
    "merged_branch": "of merged branches",
    "no_operator": "without operators",
    "unchanged": "unchanged",
    "requested": "measured before",
}


def describe_plan(plan: Mapping[str, Any]) -> Iterator[str]:
    """Lines of the plan that POST /submissions/preview returns: jobs, devices, and the commits that are left out."""
    kinds = ", ".join(f"{count} {kind}" for kind, count in plan["kinds"].items())
    operators, commits = plan["operators"], plan["commits"]
    where = f" at {_count(len(commits), 'commit')}, {_count(len(operators), 'operator')}" if commits else ""
    yield f"plan: {_count(plan['jobs'], 'job')}{f' ({kinds})' if kinds else ''}{where}"
    if plan["unchanged"]:
        since = sorted({sha for commit in commits for sha in commit["unchanged"].values()})
        held = f", whose results at {', '.join(sha[:9] for sha in since[:MOST_LINES])} count" if since else ""
        yield f"  {_count(plan['unchanged'], 'job')} skipped: operators unchanged{held}; --all measures them, too"
    for device in plan["devices"]:
        if device["jobs"]:
            yield f"  {device['name']}: {_count(device['jobs'], 'job')}, {_time(device)}"
    if len(commits) > 1:
        names = [f"{commit['sha'][:9]} ({commit['jobs']})" for commit in commits[:MOST_LINES]]
        yield f"  first: {', '.join(names)}{' …' if len(commits) > MOST_LINES else ''}"
    for group in plan["left_out"]:
        yield f"  left out: {_count(group['count'], 'commit')} {REASONS[group['reason']]}. {group['message']}"
        yield from _listed(group["commits"], group["count"])


def _listed(commits: Sequence[Mapping[str, Any]], count: int) -> Iterator[str]:
    for commit in commits[:MOST_LINES]:
        yield f"    {commit['sha'][:9]} {commit['subject']}"
    if count > MOST_LINES:
        yield f"    and {count - min(len(commits), MOST_LINES)} more"


def _time(device: Mapping[str, Any]) -> str:
    waits = "" if device["is_served"] else "; no worker, so they wait until one starts"
    if device["minutes"] is None:
        return f"time unknown: these operators have not run there yet{waits}"
    rest = device["unknown_jobs"]
    unknown = f" and {_count(rest, 'job')} of unknown length" if rest else ""
    return f"about {device['minutes']:g} min{unknown}{waits}"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
