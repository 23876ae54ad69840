"""Compares two commits, or two variants of one commit."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from math import log

from fastapi import APIRouter, Response

from warpwatch.db.reads.code import CommitRow, find_commit, list_commits, list_operators
from warpwatch.server.explanation.paired import (
    StatedComparison,
    StatedRow,
    compare_commits_paired,
    compare_variants_stated,
)
from warpwatch.server.figures.dot_plot import dot_plot_svg
from warpwatch.server.reports.formats import variant_order
from warpwatch.server.web.choices import Bench, Text, choose_bench
from warpwatch.server.web.render import PageScope, query

router = APIRouter()


@dataclass(slots=True)
class CommitChoice:
    """The commits to compare; `errors` holds a message per field that cannot be used."""

    base: CommitRow | None = None
    head: CommitRow | None = None
    at: CommitRow | None = None
    errors: dict[str, str] = field(default_factory=dict)


@router.get("/compare")
def compare(
    page: PageScope,
    base: Text = None,
    head: Text = None,
    commit: Text = None,
    left: Text = None,
    right: Text = None,
    device: Text = None,
    metric: Text = None,
    operator: Text = None,
    only: Text = None,
) -> Response:
    """`base` and `head` are commits, by default the last two that were benchmarked; or `left` and `right` are variants
    at `commit`. `only=changes` leaves out what is not told apart."""
    bench = choose_bench(page.session, page.repository, device, metric) if page.repository else None
    if page.repository is None or bench is None:
        return page.page("welcome.html")
    recent = list_commits(page.session, page.repository.id, limit=100).items
    if not any((base, head, commit, left, right)):
        head, base = ([row.sha for row in recent if row.points] + [None, None])[:2]
        base, head = (base, head) if base else (None, None)
    choice = _resolve(page, {"base": base, "head": head, "commit": commit})
    comparison = _compare(page, choice, bench, left, right, operator)
    operators = list_operators(page.session, page.repository.id)
    sides = {"left": left, "right": right, "commit": commit} if commit else {"left": base, "right": head}
    address = query(
        "/compare",
        repository=page.repository.name,
        device=bench.device.key,
        metric=bench.metric,
        operator=operator,
        **sides,
    )
    rows = worst_first(comparison.rows) if comparison else None
    changes = [row for row in rows or [] if row.is_changed or not (row.ratio or row.paired_ratio)]
    shown = changes if rows is not None and only == "changes" else rows
    given = {"base": base, "head": head, "commit": commit, "left": left, "right": right, "operator": operator}
    return page.page(
        "compare.html",
        plot=dot_plot_svg(changes if only == "changes" else [row for row in rows or [] if not row.is_same_code]),
        only=only,
        changed=sum(row.is_changed for row in rows or []),
        total=len(rows or []),
        compared=sum(bool(row.ratio or row.paired_ratio) for row in rows or []),
        json=address if comparison else None,
        csv=f"/api/v1{address.replace('/compare', '/compare.csv', 1)}",
        bench=bench,
        choice=choice,
        given=given,
        by_variant=bool(commit or left or right),
        # Two commits rarely measured the same operators, so these would be most of the rows.
        one_sided=Counter(row.operator for row in shown or [] if row.is_one_sided and not operator),
        rows=[row for row in shown if operator or not row.is_one_sided] if shown is not None else None,
        same=comparison.same if comparison else [],
        unchanged=comparison.unchanged if comparison else [],
        recent=recent,
        operators=[row.name for row in operators],
        variants=sorted({name for row in operators for name in row.variants}, key=variant_order),
    )


def _resolve(page: PageScope, given: dict[str, str | None]) -> CommitChoice:
    """The commits that the fields name; an empty field is not an error."""
    choice = CommitChoice()
    assert page.repository is not None
    for name, text in given.items():
        if not text:
            continue
        commit = find_commit(page.session, page.repository.id, text.strip().lower())
        if commit is None:
            choice.errors[name] = (
                f"No measured commit {text!r} in {page.repository.name}. Use at least 4 digits of a SHA."
            )
        setattr(choice, "at" if name == "commit" else name, commit)
    return choice


def _compare(
    page: PageScope, choice: CommitChoice, bench: Bench, left: str | None, right: str | None, operator: str | None
) -> StatedComparison | None:
    """None when a side is missing."""
    session, device, metric = page.session, bench.device.id, bench.metric
    if choice.at and left and right:
        return compare_variants_stated(session, choice.at, left, right, device, metric, operator or None)
    if choice.base and choice.head:
        return compare_commits_paired(session, choice.base, choice.head, device, metric, operator or None)
    return None


def worst_first(rows: list[StatedRow]) -> list[StatedRow]:
    """Rows that differ first, the largest change of either direction before the others; the same code last."""

    def key(row: StatedRow) -> tuple[bool, bool, float]:
        ratio = row.paired_ratio or row.ratio
        is_same = row.is_same_code
        return not row.is_changed, is_same, -abs(log(ratio)) if ratio else 1.0

    return sorted(rows, key=key)
