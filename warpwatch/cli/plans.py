"""Options that `warpwatch run` and `warpwatch submit` share, as values of JobSpec."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import typer

from warpwatch.contract.rounds import StopRule
from warpwatch.contract.spec import PLAN_LIMITS, SANITIZERS, JobSpec, KnownNames, ProfilePlan
from warpwatch.contract.words import JobKind

HELP = "Calls a profile skips, warms up with and records, and how often: WAIT,WARM_UP,ACTIVE[,REPEAT], such as 3,1,4."
SANITIZE_HELP = "Check under memcheck, racecheck or initcheck (GPU) or address (CPU, native code)."
COUNTERS_HELP = "Ask Nsight Compute for hardware counters in profiles too."
BUDGET_HELP = "Milliseconds to spend on timing one variant on one case."
STOP_HELP = (
    "End a comparison early: EARLIEST,RATIO[,[SECONDS],SUSPECTED], such as 3,1.005; without it, --rounds takes all of "
    "them. The seconds end it undecided as well; rounds that show no change and exclude the suspected one end it, too."
)
TOOLCHAINS_HELP = "OLD,NEW: toolchains of worker.toml; a comparison of two commits measures both under both."
DETECTABLE_HELP = (
    "Slow-down in per cent that must be found with 95 %. Where the noise would hide it, the result is *could not "
    "tell*, exit code 2."
)
KNOWN_HELP = "Variants that an earlier commit had: they get the status of a commit that does not load."

FORMS = {
    "json": "report",
    "junit": "report.junit.xml",
    "markdown": "report.md",
    "sarif": "report.sarif",
    "github": "report.github.json",
}
"""Formats of --report and their addresses on the server."""


def profile_plan(words: str | None, counters: bool) -> ProfilePlan:
    """The plan of --profile and --counters, its other numbers at their defaults; typer.BadParameter when `words` are
    no plan."""
    if words is None:
        return ProfilePlan(counters=counters)
    numbers = words.split(",")
    if len(numbers) not in (3, 4) or not all(number.strip().isdigit() for number in numbers):
        raise typer.BadParameter(
            f"{words!r} is no plan; give three or four numbers such as 3,1,4", param_hint="--profile"
        )
    plan: dict[str, Any] = {name: int(number) for name, number in zip(PLAN_LIMITS, numbers, strict=False)}
    return replace(ProfilePlan(counters=counters), **plan)


def stop_rule(words: str | None) -> StopRule | None:
    """The rule of --stop; typer.BadParameter when `words` are none."""
    if words is None:
        return None
    try:
        earliest, ratio, *rest = words.split(",")
        plain = int(rest.pop()) if len(rest) == 3 and rest[-1] else None
        seconds, suspected = ([float(word) if word else None for word in rest] + [None, None])[:2]
        if len(rest) > 2:
            raise ValueError("more than five numbers")
        return StopRule(int(earliest), float(ratio), seconds, suspected, plain)
    except (ValueError, TypeError) as error:
        message = f"{words!r} is no rule: {error}; give rounds and a ratio such as 3,1.005"
        raise typer.BadParameter(message, param_hint="--stop") from None


def split(values: list[str], separator: str | None = ",") -> list[str]:
    """The parts of all values of one option; a separator of None means blanks."""
    return [part.strip() for value in values for part in value.split(separator) if part.strip()]


def budget_ns(budget_ms: float | None) -> int | None:
    """Nanoseconds of --budget-ms; typer.BadParameter below 1 ns."""
    if budget_ms is None:
        return None
    if round(budget_ms * 1e6) < 1:
        raise typer.BadParameter(f"{budget_ms:g} ms is no time; give a positive number", param_hint="--budget-ms")
    return round(budget_ms * 1e6)


def parse_pairs(values: list[str]) -> list[tuple[str, str]]:
    """(variant, case) of every --pairs; typer.BadParameter for a value that is not VARIANT:CASE."""
    pairs = []
    for text in split(values, None):
        variant, colon, case = text.partition(":")
        if not (variant and colon and case):
            raise typer.BadParameter(f"{text!r} is not VARIANT:CASE, such as v1:n=1024,f32,fwd", param_hint="--pairs")
        pairs.append((variant, case))
    return pairs


def parse_toolchains(text: str | None) -> tuple[str, str] | None:
    """The two names of --toolchains; ValueError for anything else."""
    if text is None:
        return None
    names = split([text])
    if len(names) != 2:
        raise ValueError("--toolchains takes two names, OLD,NEW")
    return names[0], names[1]


def pairs_of(spec: JobSpec) -> list[tuple[str, str]] | None:
    """The pairs that a comparison measures: the named pairs, or every variant on every case where both are named; None
    where neither is named, which takes all pairs of the head."""
    return spec.pairs or [(variant, case) for case in spec.cases or () for variant in spec.variants or ()] or None


def known_names(variants: list[str], cases: list[str]) -> KnownNames | None:
    """The names of --known-variants and --known-cases; None where both are absent."""
    return KnownNames(split(variants), split(cases, None)) if variants or cases else None


def parse_kinds(text: str, has_base: bool) -> list[JobKind]:
    """The kinds of --kinds; ValueError for one that does not exist, and for compare without --base."""
    names = split([text])
    unknown = [name for name in names if name not in list(JobKind)]
    if unknown:
        raise ValueError(f"there is no kind {unknown[0]!r}; choose from {', '.join(JobKind)}")
    if has_base != (JobKind.COMPARE in names):
        raise ValueError("--kinds compare and --base COMMIT go together: give both or neither")
    return [JobKind(name) for name in names]


def expect_sanitizer(name: str | None, kinds: list[str]) -> None:
    """ValueError for a sanitizer that there is not, or one beside anything but checks."""
    if name is not None and name not in SANITIZERS:
        raise ValueError(f"there is no sanitizer {name!r}; choose from {', '.join(SANITIZERS)}")
    if name is not None and kinds != ["check"]:
        raise ValueError(
            "a sanitizer goes with checks alone, since nothing it slows down can be timed: add --kinds check"
        )


def parse_reports(options: list[str]) -> dict[str, Path]:
    """Format → file."""
    reports = {}
    for text in options:
        form, separator, file = text.partition("=")
        if form not in FORMS or not separator or not file:
            raise typer.BadParameter(
                f"{text!r} is not FORMAT=FILE with one of {', '.join(FORMS)}", param_hint="--report"
            )
        reports[form] = Path(file)
    return reports
