"""The fields of a request for measurements."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from warpwatch.contract.priorities import AWAITED, ORDINARY
from warpwatch.contract.spec import MAX_NAMES, PLAN_LIMITS, TOOLCHAIN_NAME, USUAL_PLAN
from warpwatch.contract.words import JobKind

ORDER: tuple[JobKind, ...] = (JobKind.CHECK, JobKind.BENCH, JobKind.PROFILE, JobKind.COMPARE)
"""The order in which the jobs of a commit run."""


def _plan_field(name: str, description: str | None = None) -> Any:
    low, high = PLAN_LIMITS[name]
    return Field(default=getattr(USUAL_PLAN, name), ge=low, le=high, description=description)


class ProfileOptions(BaseModel):
    """Profiler settings: skipped, warm-up and recorded calls, and repetitions."""

    model_config = ConfigDict(extra="forbid")
    wait: int = _plan_field("wait")
    warm_up: int = _plan_field("warm_up")
    active: int = _plan_field("active")
    repeat: int = _plan_field("repeat", "The trace holds every repetition.")
    counters: bool = Field(
        default=False, description="Also read hardware counters with Nsight Compute, where permitted."
    )


class SubmissionRequest(BaseModel):
    """Request for measurements: commits × kinds × operators × devices. Empty operators, variants or cases mean all."""

    model_config = ConfigDict(extra="forbid", str_strip_whitespace=True)
    repository: str = Field(min_length=1, max_length=100)
    commits: str = Field(
        min_length=1, max_length=400, description="A commit, branch or tag, or a range A..B.", examples=["main~5..main"]
    )
    base: str | None = Field(
        default=None,
        max_length=200,
        description="The baseline: a commit, `parent`, or `merge-base` (where the commit left `branch`). With kind "
        "bench, operators whose sources differ get an interleaved A/B run; with kind compare, all operators do.",
    )
    branch: str | None = Field(
        default=None, max_length=200, description="For base `merge-base`; default: the watched branch."
    )
    kinds: list[JobKind] = Field(default=[JobKind.CHECK, JobKind.BENCH], min_length=1, max_length=4)
    operators: list[str] = Field(default=[], max_length=MAX_NAMES, description="They are measured in this order.")
    variants: list[str] = Field(default=[], max_length=MAX_NAMES)
    cases: list[str] = Field(
        default=[],
        max_length=1000,
        description="Keys of cases, or sizes that no suite has, such as `m=4096,n=4096,k=512,bf16`: those of any case "
        "that the operator declares, in any order, with precision and direction where they are not the usual ones.",
    )
    suite: str = Field(
        default="quick", min_length=1, max_length=50, description="The suite of cases, unless `cases` names them."
    )
    case_limit: int | None = Field(
        default=None, ge=1, le=10_000, description="Only the first so many cases of the suite, of each operator."
    )
    device: str = Field(
        default="all", min_length=1, max_length=200, description="Key of a device, or cpu, cuda or all."
    )
    priority: int | None = Field(
        default=None,
        ge=-10,
        le=10,
        description=f"Higher runs first. By default {AWAITED} with a baseline, because somebody waits for the answer, "
        f"and {ORDINARY} without one.",
    )
    seed: int = Field(default=0, ge=0, lt=2**31)
    budget_ms: int | None = Field(
        default=None, ge=1, le=600_000, description="Time budget in milliseconds to benchmark one variant on one case."
    )
    profile: ProfileOptions = ProfileOptions()
    skip_unchanged: bool = Field(
        default=True,
        description="Skip operators whose sources did not change since the last commit with the same request. "
        "Comparisons, and commits that are patches, are never skipped.",
    )
    sanitize: Literal["memcheck", "racecheck", "initcheck", "address"] | None = Field(
        default=None,
        description="Checks only: run under this sanitizer; address is for CPU code, the others for GPU code.",
    )
    toolchains: list[Annotated[str, Field(pattern=f"^{TOOLCHAIN_NAME.pattern}$")]] = Field(
        default=[],
        max_length=2,
        description="Kind compare only: toolchains of the workers' worker.toml, the older one first, such as two "
        "releases of Triton. Base and commit are each measured under both; without a base, the commit is compared with "
        "itself.",
    )

    require_detectable: float | None = Field(
        default=None,
        ge=0.1,
        le=100,
        description="Slow-down in per cent that the report must be able to find in every case, with 95 %. Where the "
        "noise would hide it, the report ends as *could not tell*, exit code 2. Needs kind bench or compare.",
    )

    @model_validator(mode="after")
    def _times_something(self) -> SubmissionRequest:
        if self.require_detectable is not None and not {JobKind.BENCH, JobKind.COMPARE} & {*self.kinds}:
            raise ValueError("require_detectable: needs kind bench or compare, because nothing else is timed")
        return self

    @property
    def effective_priority(self) -> int:
        if self.priority is not None:
            return self.priority
        return ORDINARY if self.base is None else AWAITED
