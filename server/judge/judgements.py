"""Judges the jobs of a judgement: the verdict on public and hidden cases, and the statement of its receipt.

Of public cases everything is told. Of hidden cases one word, and a speed-up in steps: a kernel could answer in times,
statuses or messages what it saw of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from math import exp, log
from statistics import mean
from typing import Any, Literal

from warpwatch import __version__
from warpwatch.contract.codec import from_json
from warpwatch.contract.measurement import PROTOCOLS
from warpwatch.contract.messages import BuildReply
from warpwatch.contract.outcome import Comparison
from warpwatch.contract.rounds import times_of_rounds
from warpwatch.contract.words import CHEATS, JobKind, JobState, JudgementVerdict, Reason, Status
from warpwatch.db.judgements import JudgedJob, OpenJudgement
from warpwatch.server.receipts import STEPS, digest
from warpwatch.server.verdicts.held import PairVerdict, classify_comparison
from warpwatch.server.verdicts.thresholds import kind_of_time

_PRIVATE_FACTS = ("variables", "image")
"""Of an environment; see db.published."""
_ORDER = tuple(JudgementVerdict)
_ENDED = (JobState.DONE, JobState.FAILED, JobState.CANCELLED)
FINAL = (
    JudgementVerdict.CHEATS,
    JudgementVerdict.WRONG,
    JudgementVerdict.CANNOT_BUILD,
    JudgementVerdict.FAILED,
    JudgementVerdict.OVER_BUDGET,
)
"""Verdicts that no further measurement can better."""
MOST_STEPS = 1.5
"""Of a sealed job, which takes one step. A second one means over budget, whatever the job found: otherwise the number
of steps would tell something besides the verdict. Half a step is for the server's and the worker's own work."""
_OF_STATUS = {
    Status.WRONG: JudgementVerdict.WRONG,
    Status.BUILD_FAILED: JudgementVerdict.CANNOT_BUILD,
    Status.MISSING_DEPENDENCY: JudgementVerdict.CANNOT_BUILD,
}


@dataclass(frozen=True, slots=True)
class JudgedPair:
    """One variant and case in paired rounds, with the verdict on them."""

    comparison: Comparison
    verdict: PairVerdict


@dataclass(frozen=True, slots=True)
class JudgedCases:
    """The verdict on public or hidden cases; None while no ended job decides it. at_least: the speed-up, in steps."""

    verdict: JudgementVerdict | None
    pairs: tuple[JudgedPair, ...] = ()
    at_least: float | None = None


def has_ended(jobs: Sequence[JudgedJob]) -> bool:
    return all(job.state in _ENDED for job in jobs)


def judge_cases(jobs: Sequence[JudgedJob], device_kind: str) -> JudgedCases:
    """The verdict on the jobs of public, or of hidden cases."""
    if any(job.longest > MOST_STEPS * job.spec.step_seconds for job in jobs if job.spec.step_seconds is not None):
        return JudgedCases(JudgementVerdict.OVER_BUDGET)
    found: set[JudgementVerdict] = set()
    pairs: list[JudgedPair] = []
    for job in jobs:
        if job.state == JobState.DONE and job.outcome is not None:
            found |= _faults(job)
            if job.kind == JobKind.COMPARE:
                pairs += _pairs(job, device_kind)
        elif job.state == JobState.CANCELLED:
            found.add(JudgementVerdict.CANCELLED)
        elif job.state in _ENDED:
            found.add(JudgementVerdict.FAILED)
    worst = next((verdict for verdict in _ORDER if verdict in found), None)
    if worst is not None or not has_ended(jobs):
        return JudgedCases(worst, tuple(pairs))
    outcomes = {pair.verdict.outcome for pair in pairs}
    if {"slower", "faster"} <= outcomes:
        return JudgedCases(JudgementVerdict.MIXED, tuple(pairs))
    if "slower" in outcomes:
        return JudgedCases(JudgementVerdict.SLOWER, tuple(pairs))
    if "faster" in outcomes:
        ratios = [pair.verdict.ratio for pair in pairs if pair.verdict.ratio]
        speedup = exp(-mean(map(log, ratios)))
        at_least = max(step for step in STEPS if step <= max(speedup, 1.0))
        return JudgedCases(JudgementVerdict.FASTER, tuple(pairs), at_least)
    return JudgedCases(JudgementVerdict.SAME, tuple(pairs))


def combine(public: JudgedCases, hidden: JudgedCases) -> JudgementVerdict | None:
    """The verdict on all cases; None while it is open."""
    verdicts = {public.verdict, hidden.verdict}
    final = next((verdict for verdict in FINAL if verdict in verdicts), None)
    if final is not None:
        return final
    if None in verdicts:
        return None
    speeds = {JudgementVerdict.SLOWER, JudgementVerdict.FASTER}
    return JudgementVerdict.MIXED if speeds <= verdicts else next(item for item in _ORDER if item in verdicts)


def _faults(job: JudgedJob) -> set[JudgementVerdict]:
    """The verdicts that a job's outcome brings about by its statuses, and by what it lacks."""
    outcome = job.outcome or {}
    expected = set(product(job.spec.variants or (), job.cases or job.spec.cases or ()))
    rows = outcome["comparisons"] if job.kind == JobKind.COMPARE else outcome["findings"]
    measured = {(row["variant"], row["case"]) for row in rows}
    faults = {JudgementVerdict.FAILED} if expected - measured else set[JudgementVerdict]()
    for row in rows:
        if row["status"] == Status.OK:
            continue
        if row.get("reason") == Reason.BASE_FAILED:
            # Impossible times of the base are no cheat of the patch, and a busy host takes such.
            faults.add(JudgementVerdict.FAILED)
            continue
        # A comparison finds a right result wrong for one reason: its times cannot be.
        is_cheat = row.get("fault") in CHEATS or (job.kind == JobKind.COMPARE and row["status"] == Status.WRONG)
        verdict = _OF_STATUS.get(Status(row["status"]), JudgementVerdict.FAILED)
        faults.add(JudgementVerdict.CHEATS if is_cheat else verdict)
    return faults


def _pairs(job: JudgedJob, device_kind: str) -> list[JudgedPair]:
    comparisons = [from_json(Comparison, row) for row in (job.outcome or {})["comparisons"]]
    timed = [item for item in comparisons if item.status is Status.OK]
    return [
        JudgedPair(
            item,
            classify_comparison(
                item.base_ns,
                item.head_ns,
                kind_of_time(device_kind, item.metric, item.protocol),
                len(timed),
                job.spec.stop,
                item.reason,
            ),
        )
        for item in timed
    ]


def state(
    judgement: OpenJudgement,
    jobs: Sequence[JudgedJob],
    public: JudgedCases,
    hidden: JudgedCases,
    verdict: JudgementVerdict,
    issued: tuple[str, int],
) -> dict[str, Any]:
    """The statement of the receipt. issued: by which server, and when, in seconds since 1970."""
    salt, (issuer, issued_at) = judgement.salt, issued
    open_jobs, sealed = [job for job in jobs if job.cases is None], [job for job in jobs if job.cases is not None]
    outcomes = [job.outcome for job in open_jobs if job.outcome is not None]
    environment = outcomes[0]["environment"] if outcomes else {}
    cards = sorted({digest(salt, job.card) for job in jobs if job.card is not None})
    cases = {case for job in sealed for case in job.cases or ()}
    builds = {name: outcome.get(field) for outcome in outcomes for name, field in _BUILDS if outcome.get(field)}
    hashes = {name: from_json(BuildReply, build).code_hash for name, build in builds.items()}
    return {
        "iss": issuer,
        "iat": issued_at,
        "judgement": judgement.id,
        "repository": judgement.repository,
        "operator": judgement.operator,
        "verdict": verdict,
        **judgement.facts,
        "harness": {"version": __version__, "protocol": PROTOCOLS.get(judgement.device_kind, "")},
        "device": {"key": judgement.device_key, "kind": judgement.device_kind, "cards": cards},
        "environment": {
            "key": environment.get("key"),
            "facts": {
                name: value for name, value in environment.get("facts", {}).items() if name not in _PRIVATE_FACTS
            },
        },
        "machine_code": {name: code for name, code in sorted(hashes.items()) if code},
        "public": {
            "verdict": public.verdict,
            "checks": [row for job in open_jobs if job.kind == JobKind.CHECK for row in _checks(job)],
            "times": [_times(pair) for pair in public.pairs],
        },
        "hidden": {
            "verdict": hidden.verdict,
            "at_least": hidden.at_least,
            "cases": sorted(digest(salt, case) for case in cases),
            "seeds": [digest(salt, job.seed) for job in sealed],
        },
    }


_BUILDS: tuple[tuple[Literal["base", "head"], str], ...] = (("base", "base_build"), ("head", "build"))


def _checks(job: JudgedJob) -> list[dict[str, Any]]:
    """Every public case with its status, and its largest error over the tolerance."""
    rows = []
    for row in (job.outcome or {}).get("findings", ()):
        check = row.get("check") or {}
        probes = {probe["name"]: probe["status"] for probe in check.get("probes", ())}
        tensors = [tensor for tensor in check.get("tensors", ()) if tensor["tolerance"]]
        # An infinite error is the largest float, whose quotient JSON could not hold.
        errors = [min(tensor["relative"] / tensor["tolerance"], 1e300) for tensor in tensors]
        rows.append(
            {
                "variant": row["variant"],
                "case": row["case"],
                "status": row["status"],
                "fault": row.get("fault"),
                "error_over_tolerance": max(errors, default=None),
                "probes": probes,
            }
        )
    return rows


def _times(pair: JudgedPair) -> dict[str, Any]:
    """One public pair: times of both sides in ns, head over base with its interval, and what the controls say."""
    of, verdict = pair.comparison, pair.verdict
    base_ns, head_ns = times_of_rounds(of.base_ns, of.head_ns)
    return {
        "variant": of.variant,
        "case": of.case,
        "metric": of.metric,
        "base_ns": base_ns,
        "head_ns": head_ns,
        "ratio": verdict.ratio,
        "low": verdict.low,
        "high": verdict.high,
        "rounds": len(of.base_ns),
        "outcome": verdict.outcome,
        "controls": of.reason or ("passed" if of.again else "not taken"),
    }
