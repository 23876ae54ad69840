"""What statements, regressions and trades are called on pages, in reports and in messages, and how elements that say so
look.

It stands apart from the formats of numbers, which the command line uses where no database package is installed.
"""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import chain, zip_longest

from markupsafe import Markup

from warpwatch.contract.commit_ids import short_sha
from warpwatch.contract.words import (
    ChangePhase,
    Signal,
    StatementDirection,
    StatementKind,
    StatementSource,
    StepCause,
    Verdict,
)
from warpwatch.db.regressions import RegressionRow
from warpwatch.server.reports.formats import (
    change,
    interval,
    plural,
    share,
    status_name,
)
from warpwatch.server.reports.trade_words import trade_values, trade_words
from warpwatch.server.verdicts.statements import (
    Statement,
    state_cell,
    state_change,
    state_launch,
    state_member,
    state_outcome,
    state_regression,
    state_step,
)

_QUOTED = re.compile(r"`([^`]+)`|(?<!\w)'([^']+)'(?!\w)")
_CHANGES = (StatementKind.CONFIRMED, StatementKind.SUSPECTED, StatementKind.SHIFT)
_ARROWS = {
    StatementDirection.SLOWER: "▲",
    StatementDirection.FASTER: "▼",
    StatementDirection.BROKEN: "✗",
    StatementDirection.FIXED: "✓",
}


def change_headline(row: RegressionRow) -> str:
    """A regression in a few words. One that is partly undone is named by what is left of it. If both signals of its
    cells changed, the worse is named first."""
    statement = state_regression(row)
    if statement.kind == StatementKind.NOT_TOLD_APART:
        name = "No change" if row.verdict == Verdict.DISMISSED else "Inconclusive"
        return name if row.ratio is None else f"{name} ({change(row.ratio)})"
    left = "" if statement.is_ended else fixed_part(row)
    other_signal = Signal.KERNEL if row.signal == Signal.LAUNCH else Signal.LAUNCH
    other = "" if statement.is_ended or row.other_ratio is None else f"{other_signal} {change(row.other_ratio)}"
    return ", ".join(text for text in (statement_words(statement), other, left) if text)


def fixed_part(row: RegressionRow) -> str:
    """How many series still show a change, and what ended it for the others: "1 of 4 cases; 3 fixed by 540575bc"."""
    if row.partly_fixed_by_sha is None or not 0 < row.fixed_series < row.series:
        return ""
    still = row.series - row.fixed_series
    return f"{still} of {plural(row.series, 'case')}; {row.fixed_series} fixed by {short_sha(row.partly_fixed_by_sha)}"


def change_tone(row: RegressionRow) -> str:
    """slower | faster | suspected | plain: the colour of a regression's headline."""
    return statement_tone(state_regression(row))


def statement_tone(statement: Statement) -> str:
    """slower | faster | failing | suspected | shift | plain: class of an element that renders a statement. Only what a
    trial or a check decided has the colour of a signal, and no change that is over."""
    kind, direction = statement.kind, statement.direction
    if kind == StatementKind.CONFIRMED and not statement.is_ended:
        return "faster" if direction in (StatementDirection.FASTER, StatementDirection.FIXED) else "slower"
    if kind == StatementKind.FAILED and not statement.is_ended:
        return "failing"
    return str(kind) if kind in (StatementKind.SUSPECTED, StatementKind.SHIFT) else "plain"


def statement_arrow(statement: Statement) -> str:
    """▲ slower, ▼ faster, ✗ broken, ✓ fixed, of what is confirmed; empty for anything else."""
    return _ARROWS[statement.direction] if statement.kind == StatementKind.CONFIRMED and statement.direction else ""


def statement_words(statement: Statement) -> str:
    """A statement in words: "+41.0 % slower", "launch +8.0 % suspected", "kernel +5.1 % shift", "same code", "not told
    apart". A change of one of two signals names the signal."""
    if statement.cause not in (None, StepCause.CODE, StepCause.NOISE, StepCause.UNKNOWN):
        cause = "code and toolchain" if statement.cause == StepCause.BOTH else statement.cause
        return f"{statement_words(replace(statement, cause=None))}, {cause}"
    kind, ratio = statement.kind, change(statement.ratio)
    is_broken = statement.direction in (StatementDirection.BROKEN, StatementDirection.FIXED)
    if statement.signal is not None and kind in _CHANGES and not is_broken:
        return f"{statement.signal} {statement_words(replace(statement, signal=None))}"
    if kind == StatementKind.CONFIRMED and statement.direction in (StatementDirection.BROKEN, StatementDirection.FIXED):
        return str(statement.direction)
    if kind == StatementKind.CONFIRMED:
        return f"{ratio} {statement.direction}".strip()
    if kind == StatementKind.SUSPECTED:
        certain = "suspected" if statement.can_confirm else "suspected, cannot be confirmed"
        return (
            f"broken, {certain}" if statement.direction == StatementDirection.BROKEN else f"{ratio} {certain}".strip()
        )
    if kind == StatementKind.SHIFT:
        return f"{ratio} shift"
    if kind == StatementKind.FAILED:
        return status_name(statement.status or "failed")
    if kind == StatementKind.NOT_TOLD_APART and statement.ratio is None and statement.value_ns is not None:
        return "first measured"
    return kind.replace("_", " ")


def statement_reason(statement: Statement) -> str:
    """Why a statement says what it says, for a tooltip."""
    parts = [
        {
            StatementSource.TRIAL: "paired rounds of an A/B comparison",
            StatementSource.HISTORY: "times of separate runs",
            StatementSource.CHECK: "checks of the results",
            StatementSource.CODE: "fingerprints of the code",
            StatementSource.NONE: "nothing to compare with",
        }[statement.source]
    ]
    if statement.low is not None and statement.high is not None:
        parts.append(f"95 % interval {interval(statement.low, statement.high)}")
    if statement.detectable is not None:
        parts.append(f"smallest detectable change {share(statement.detectable, 1)}")
    if statement.between is not None:
        parts.append(f"σ between runs {share(statement.between, 1)}")
    return "; ".join(parts)


def statement_data(statement: Statement) -> dict[str, str | None]:
    """Attributes that tell machines what an element says; every element with the colour of a signal has them."""
    return {
        "data-statement": statement.kind,
        "data-direction": statement.direction,
        "data-signal": statement.signal,
        "data-series": str(statement.series_id) if statement.series_id else None,
        "data-commit": statement.commit_sha,
        "data-cause": statement.cause,
        "data-regression": str(statement.regression_id) if statement.regression_id else None,
    }


def candidate_commits(row: RegressionRow) -> str:
    """The commits that may have caused a regression: "4 commits, bisecting", or "adjacent" for a single commit."""
    if row.culprit_sha or (not row.commits_between and row.phase != ChangePhase.BISECTING):
        return "adjacent"
    bisecting = ", bisecting" if row.phase == ChangePhase.BISECTING else ""
    return plural(row.commits_between + 1, "commit") + bisecting


def marked(message: str) -> Markup:
    """A message with its `code` and its 'names' as code, as pages show it."""
    parts = _QUOTED.split(message)
    codes = [
        Markup("<code>{}</code>").format(code or name) for code, name in zip(parts[1::3], parts[2::3], strict=True)
    ]
    return Markup("").join(chain.from_iterable(zip_longest(parts[::3], codes, fillvalue="")))


FILTERS = (
    marked,
    candidate_commits,
    change_headline,
    change_tone,
    fixed_part,
    state_cell,
    state_change,
    state_launch,
    state_member,
    state_outcome,
    state_regression,
    state_step,
    statement_arrow,
    statement_data,
    statement_reason,
    statement_tone,
    statement_words,
    trade_values,
    trade_words,
)
"""Functions that templates use by their names."""
