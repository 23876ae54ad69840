"""The answers to comparisons that detectors ask for, as the judge knows them afterwards."""

from __future__ import annotations

from collections.abc import Sequence

from warpwatch.db.reads.judging import KnownChange


def answered(
    number: int,
    direction: str,
    ends: tuple[int, int],
    culprit: tuple[int, int] | None,
    series: Sequence[int],
    dismissed: Sequence[int],
) -> KnownChange:
    """The change that a comparison of two runs was about. culprit: the runs before and at the step that it found; None
    where it showed nothing. dismissed: the series that do not show it."""
    base, head = culprit or ends
    return KnownChange(
        id=number,
        direction=direction,
        verdict="dismissed" if culprit is None else "confirmed",
        is_settled=True,
        base_commit_id=base,
        head_commit_id=head,
        base_sha=f"{base:040x}",
        head_sha=f"{head:040x}",
        base_ordinal=base,
        head_ordinal=head,
        series=[*series],
        dismissed=[*dismissed],
        asked=[[*ends]],
    )
