"""Facts that a report is made from. The database reads them for a submission, `warpwatch run` gathers them from its own
results; which of them matters is for server.reports to say."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime

from warpwatch.contract.rounds import StopRule
from warpwatch.contract.words import Cause, Reason, TradeKind


@dataclass(frozen=True, slots=True)
class CellFact:
    """Where something was found: one variant on one case of an operator, on one device at one commit."""

    operator: str
    variant: str | None
    case: str | None
    device_key: str
    device_kind: str
    head_sha: str
    base_sha: str | None
    replay: str


@dataclass(frozen=True, slots=True)
class JobFact:
    """A job that has not ended well, or that had nothing to do.

    state: contract.words.JobState. unchanged_since: the commit that was measured, where it had nothing to do. right_at:
    see ResultFact; here, where the same job ended well.
    """

    job_id: int
    kind: str
    state: str
    message: str
    reason: Reason | None
    unchanged_since: str | None
    cell: CellFact
    right_at: str | None = None


@dataclass(frozen=True, slots=True)
class ResultFact:
    """A result of a check, bench or profile that is not ok.

    known_before: the base's newest check of the same ended so too. right_at: the newest commit of its line that was
    measured with it, where the same is right there.
    """

    job_id: int
    kind: str
    status: str
    message: str
    known_before: bool
    cell: CellFact
    right_at: str | None = None


@dataclass(frozen=True, slots=True)
class PairFact:
    """Paired rounds of one variant on one case; base_ns[i] was taken beside head_ns[i].

    metric, protocol: of its times. signal: contract.words.Signal; None where the pair has one alone. is_accepted:
    someone said it may be so. regression_id: of the suspicion that the rounds test, where they test one. stop: the rule
    of the rounds that no server chose; None where all rounds were taken that were asked for. is_local: whether no
    server chose them.
    """

    job_id: int
    status: str
    message: str
    reason: Reason | None
    base_ns: list[float]
    head_ns: list[float]
    is_accepted: bool
    regression_id: int | None
    metric: str
    protocol: str
    signal: str | None
    cell: CellFact
    stop: StopRule | None = None
    is_local: bool = False


@dataclass(frozen=True, slots=True)
class ChangeFact:
    """One series of a change that was suspected and a comparison decided.

    base_ns, head_ns: the paired rounds that decided it, as in PairFact. merged_sha, merged_subject: the commit of the
    merged branch that caused it, where the culprit is a merge. left_ratio: what later changes left of it in the series,
    and fixed_by_sha the commit that ended it there. is_over: whether that commit is no newer than the newest one of its
    line that was measured with it. can_confirm: whether a trial can still decide what is suspected. metric, protocol,
    signal: as in PairFact. cause: contract.words.Cause of the suspicion.
    """

    regression_id: int
    direction: str
    verdict: str
    state: str
    ratio: float | None
    low: float | None
    high: float | None
    base_ns: list[float]
    head_ns: list[float]
    message: str
    cell: CellFact
    merged_sha: str | None = None
    merged_subject: str | None = None
    left_ratio: float | None = None
    fixed_by_sha: str | None = None
    is_over: bool = False
    can_confirm: bool = True
    metric: str = ""
    protocol: str = ""
    signal: str | None = None
    cause: str = Cause.HISTORY


@dataclass(frozen=True, slots=True)
class TimedFact:
    """A variant on a case and device that a submission timed, at its newest commit.

    readings: (ordinal, commit id, median, low, high) of its series at earlier commits of the line, in the same
    environment and on the same card, oldest first. base_ns, head_ns: the rounds of a trial of this commit; empty
    without one. reason: the objection of its controls.
    """

    operator: str
    variant: str
    case: str
    device_key: str
    device_kind: str
    readings: list[list[float]]
    base_ns: list[float]
    head_ns: list[float]
    reason: str | None
    protocol: str = ""


@dataclass(frozen=True, slots=True)
class Trade:
    """What a commit changed for a variant beside its time, in one way and one direction: its worst case.

    tensor: of an error or of bits; empty for others. change: of the time, head over base; None where it was not timed
    on both sides. metric: of that time. is_faster: by more than is confirmed. before, after: relative errors of the
    tensor, bytes, joules, seconds, or shares of rows; of moved work the bytes that are kept between the passes. cases:
    that show it. is_worse: whether the commit paid it. is_exact: whether it is counted, or A/B comparisons decided it;
    what one run timed is suspected and no more. variant and case are empty where it concerns the library. passes: of
    moved work, the time of each direction that was compared, head over base; None where it is the same. since: the
    commit that it is held against, where others without results lie between them; any of these may have changed it.
    id, commit_sha, accepted_by: of one that is stored.
    """

    kind: TradeKind
    operator: str
    variant: str
    case: str
    device_key: str
    tensor: str
    change: float | None
    is_faster: bool
    before: float | None = None
    after: float | None = None
    cases: int = 1
    is_worse: bool = True
    is_exact: bool = True
    metric: str = ""
    passes: dict[str, float | None] = field(default_factory=dict)
    since: str | None = None
    id: int | None = None
    commit_sha: str | None = None
    accepted_by: str | None = None


@dataclass(frozen=True, slots=True)
class ReportFacts:
    """Everything that a report says of a submission. pending: jobs and verdicts that are still to come.

    submission_id: 0 where no server holds it.
    base_sha: what its commit is held against; None where that is nothing. results: per status, at its own commits.
    head_commit_id, head_sha: its newest commit; trades: what that changed beside the times. required: the slow-down
    that it must be able to find, in per cent; None where that was not asked for. timed: what its benches timed, once it
    has ended. ends: of each commit that is not the newest of its line, the newest one. device_names: by key.
    """

    submission_id: int
    repository: str
    repository_url: str
    head_commit_id: int | None
    head_sha: str | None
    base_sha: str | None
    counts: dict[str, int]
    results: dict[str, int]
    pending: int
    created_at: datetime
    required: float | None = None
    jobs: list[JobFact] = field(default_factory=list)
    faults: list[ResultFact] = field(default_factory=list)
    pairs: list[PairFact] = field(default_factory=list)
    changes: list[ChangeFact] = field(default_factory=list)
    trades: list[Trade] = field(default_factory=list)
    timed: list[TimedFact] = field(default_factory=list)
    ends: dict[str, str] = field(default_factory=dict)
    device_names: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ReportedSeries:
    """A variant on a case and device; both are "" where a finding concerns a whole job."""

    operator: str
    variant: str
    case: str
    device: str
