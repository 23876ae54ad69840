"""What one job is asked to do and what it found, in plain data: written into bundles as JSON, into the database by
worker.record."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from warpwatch.contract.protocol import BenchReply, BuildReply, Catalogue, CheckReply, Environment, ProfileReply
from warpwatch.contract.words import Reason, Status


@dataclass(frozen=True, slots=True)
class Order:
    """One job: `kind` (check | bench | profile | compare) of one operator at one commit.

    spec: suite ("quick" | "full"), variants and cases (lists or null: all), case_limit, seed, budget_ns, rounds and
    pairs (compare), profile (contract.protocol.ProfilePlan as JSON), sanitize (a name of worker.sanitizers.TOOLS, for
    checks), known ({"variants": […], "cases": […]}: what an earlier commit had, for a commit that does not even load).
    """

    kind: str
    url: str
    sha: str
    operator: str
    spec: dict[str, Any] = field(default_factory=dict)
    base_sha: str | None = None


@dataclass(frozen=True, slots=True)
class Finding:
    """How one variant fared on one case; the reply of the order's kind is set when the harness gave one."""

    variant: str
    case: str
    status: Status
    message: str = ""
    check: CheckReply | None = None
    bench: BenchReply | None = None
    profile: ProfileReply | None = None


@dataclass(frozen=True, slots=True)
class Comparison:
    """Medians (ns) of paired rounds of one variant on one case; base_ns[i] was taken beside head_ns[i].

    reason: why there are no rounds, where something other than the head is the cause.
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


@dataclass(frozen=True, slots=True)
class Outcome:
    """Everything one job found.

    peaks are the measured ceilings of the device, None where they could not be measured.
    """

    environment: Environment
    peaks: dict[str, float] | None = None
    catalogue: Catalogue | None = None
    build: BuildReply | None = None
    findings: list[Finding] = field(default_factory=list)
    base_catalogue: Catalogue | None = None
    base_findings: list[Finding] = field(default_factory=list)
    comparisons: list[Comparison] = field(default_factory=list)
