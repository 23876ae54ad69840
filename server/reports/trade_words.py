"""What a commit did beside its times, in words. It needs no package of the server, as `warpwatch run` reports, too."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from warpwatch.contract.report_facts import Trade
from warpwatch.contract.words import TradeKind
from warpwatch.server.reports.formats import change, joules, plural, seconds, share, significant, size
from warpwatch.server.verdicts.paired import severity
from warpwatch.server.verdicts.trades import importance

_MOST_PARTS = 4
"""Of the line on what a commit traded."""
_TRADED_BYTES = {TradeKind.MEMORY: "memory", TradeKind.KEPT: "kept memory", TradeKind.CODE: "machine code"}
_TRADED_WAITS = {TradeKind.COMPILE: "compile time", TradeKind.LOAD: "time to load", TradeKind.FIRST_CALL: "first call"}
_PASSES = {"bwd": "backward", "fwd": "forward", "fwd_train": "forward with gradients", "step": "step"}
_TRADED_STATES = {
    (TradeKind.DETERMINISM, True): "results now differ from run to run",
    (TradeKind.DETERMINISM, False): "results are deterministic now",
    (TradeKind.BATCH, True): "rows now depend on their neighbours",
    (TradeKind.BATCH, False): "rows are independent of their neighbours now",
}


def trade_words(trade: Trade) -> str:
    """A trade in a few words: "memory +30 %", "error ×4 within tolerance", "first call +110 %, suspected", "backward
    4.0× faster, step 1.20× slower"."""
    if trade.kind == TradeKind.MOVED:
        return ", ".join(f"{_PASSES[name]} {_factor(ratio)}" for name, ratio in trade.passes.items())
    if (state := _TRADED_STATES.get((trade.kind, trade.is_worse))) is not None:
        return state
    ratio = trade.after / trade.before if trade.before and trade.after is not None else None
    if trade.kind == TradeKind.ACCURACY:
        factor = f" ×{significant(ratio if trade.is_worse else 1 / ratio, 2)}" if ratio else ""
        return f"error{factor} within tolerance" if trade.is_worse else f"error smaller{factor}"
    name = (_TRADED_BYTES | _TRADED_WAITS | {TradeKind.ENERGY: "energy"})[trade.kind]
    moved = change(ratio) or ("more" if trade.is_worse else "less")
    return f"{name} {moved}" if trade.is_exact else f"{name} {moved}, suspected"


def _factor(ratio: float | None) -> str:
    """1.20× slower; the same without a ratio."""
    if ratio is None:
        return "the same"
    factor = severity(ratio)
    return f"{factor:.{1 if factor >= 1.95 else 2}f}× {'slower' if ratio > 1 else 'faster'}"


def trade_values(trade: Trade) -> str:
    """Both values of a trade: "4.00 MiB → 9.00 MiB"; empty where it has none."""
    if trade.before is None or trade.after is None:
        return ""
    if trade.kind == TradeKind.ACCURACY:
        return f"{trade.tensor} {trade.before:.2g} → {trade.after:.2g}"
    if trade.kind == TradeKind.DETERMINISM:
        return f"{plural(int(trade.after), 'element')} of {trade.tensor}"
    if trade.kind == TradeKind.BATCH:
        return f"{share(trade.before)} → {share(trade.after)} of rows"
    if trade.kind == TradeKind.MOVED:
        return f"{size(trade.before)} → {size(trade.after)} kept"
    write = size if trade.kind in _TRADED_BYTES else seconds if trade.kind in _TRADED_WAITS else joules
    return f"{write(trade.before)} → {write(trade.after)}"


@dataclass(frozen=True, slots=True)
class TradeLine:
    """What a commit traded, in one line: of the variant that traded most, and how many others traded as well. since:
    the commit that it is held against, where that is not its parent."""

    operator: str
    variant: str
    text: str
    others: int = 0
    is_worse: bool = True
    since: str | None = None


def summarize_trades(trades: Sequence[Trade]) -> TradeLine | None:
    """The one line of a commit; None where it changed nothing but its times."""
    groups: dict[tuple[str, str], list[Trade]] = {}
    for trade in sorted(trades, key=importance):
        groups.setdefault((trade.operator, trade.variant), []).append(trade)
    if not groups:
        return None
    (operator, variant), chosen = next(iter(groups.items()))
    timed = next((trade for trade in chosen if trade.is_faster), None)
    # An A/B comparison may have decided another one, which stands elsewhere.
    parts = [f"{timed.metric} {change(timed.change)} between runs"] if timed is not None else []
    parts += list(dict.fromkeys(trade_words(trade) for trade in chosen))[:_MOST_PARTS]
    is_worse, since = (
        any(trade.is_worse for trade in chosen),
        next((trade.since for trade in chosen if trade.since), None),
    )
    return TradeLine(operator, variant, ", ".join(parts), len(groups) - 1, is_worse, since)


def summarize_by_commit(trades: Sequence[Trade]) -> dict[str, TradeLine]:
    """The line of each commit that changed more than its times, by its id."""
    groups: dict[str, list[Trade]] = {}
    for trade in trades:
        groups.setdefault(trade.commit_sha or "", []).append(trade)
    return {sha: line for sha, group in groups.items() if (line := summarize_trades(group)) is not None}


def traded_text(line: TradeLine | None) -> str | None:
    """The line as plain text: "softmax v1: hot −12.0 % between runs, memory +30.0 %"."""
    if line is None:
        return None
    place = f"{line.operator} {line.variant}".rstrip()
    since = f" since {line.since[:8]}" if line.since else ""
    return f"{place}: {line.text}{since}" + (f"; {line.others} more" if line.others else "")
