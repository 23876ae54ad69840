"""The results of one job. Results files hold them as JSON, the database in its tables (db.results)."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf

from warpwatch.contract.catalogue import CaseEntry, Catalogue
from warpwatch.contract.environment import Environment
from warpwatch.contract.measurement import expect_times
from warpwatch.contract.messages import BenchReply, BuildReply, CheckReply, ProfileReply
from warpwatch.contract.rounds import CellRounds
from warpwatch.contract.words import Fault, Reason, Status


@dataclass(frozen=True, slots=True)
class Finding:
    """The status of one variant on one case; the reply of the job's kind is set when the harness gave one.

    fault, subjects: what is wrong, and with what.
    """

    variant: str
    case: str
    status: Status
    message: str = ""
    check: CheckReply | None = None
    bench: BenchReply | None = None
    profile: ProfileReply | None = None
    fault: Fault | None = None
    subjects: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Comparison:
    """Times (ns) of paired rounds of one metric of one variant on one case; base_ns[i] was taken beside head_ns[i].

    A GPU has up to two per (variant, case), which `metric` tells apart: the device's time, then `launch`.
    reason: why there are no rounds, where something other than the head is the cause; or what the controls say against
    the rounds. again, waited: the controls of every round, see contract.rounds.judge_controls. cells: of rounds that
    measured both commits under both toolchains; base_ns and head_ns are means over both then.
    """

    variant: str
    case: str
    metric: str
    protocol: str
    status: Status
    message: str = ""
    base_ns: list[float] = field(default_factory=list)
    head_ns: list[float] = field(default_factory=list)
    reason: Reason | None = None
    again: list[float] = field(default_factory=list)
    waited: list[float] = field(default_factory=list)
    cells: CellRounds | None = None

    def __post_init__(self) -> None:
        """ValueError for times and ratios that no device can show, and for rounds that lack a side."""
        if not all(0 < ratio < inf for ratio in (*self.again, *self.waited)):
            raise ValueError("again, waited: expected finite ratios above 0")
        expect_times(self.base_ns, "base_ns")
        expect_times(self.head_ns, "head_ns")
        if len(self.base_ns) != len(self.head_ns):
            raise ValueError("base_ns, head_ns: expected as many rounds of the base as of the head")

    @property
    def ratios(self) -> list[float]:
        """Head over base of every round."""
        return [head / base for base, head in zip(self.base_ns, self.head_ns, strict=True)]


@dataclass(frozen=True, slots=True)
class PartialOutcome:
    """Findings of a run before it was interrupted; the next run of the job measures the rest.

    environment_key: environment of the findings, since findings of two environments are not one outcome. comparisons:
    with the rounds that every undecided pair has, in the order of Outcome.comparisons.
    """

    environment_key: str
    findings: list[Finding] = field(default_factory=list)
    comparisons: list[Comparison] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Outcome:
    """All results of one job.

    peaks: the measured ceilings of the device, see CeilingsReply; None where they could not be measured. findings and
    build are of the job's commit; base_findings, the profiles of a comparison, are of its base. comparisons: one per
    (variant, case) and judged metric, the device's time directly before `launch`, which is missing where a call waits
    for the device and where the pair failed. derived_cases: what was measured and the operator does not declare.
    base_build: of the base, for a comparison of a patch.
    """

    environment: Environment
    peaks: dict[str, float] | None = None
    catalogue: Catalogue | None = None
    build: BuildReply | None = None
    findings: list[Finding] = field(default_factory=list)
    base_catalogue: Catalogue | None = None
    base_findings: list[Finding] = field(default_factory=list)
    comparisons: list[Comparison] = field(default_factory=list)
    derived_cases: list[CaseEntry] = field(default_factory=list)
    base_build: BuildReply | None = None
