"""What a submission may ask for, field by field."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from warpwatch.contract.spec import PLAN_LIMITS, USUAL_PLAN

Kind = Literal["check", "bench", "profile", "compare"]
ORDER: tuple[Kind, ...] = ("check", "bench", "profile", "compare")
"""A commit is checked before it is timed, and timed before it is profiled."""


def _plan_field(name: str, description: str | None = None) -> Any:
    low, high = PLAN_LIMITS[name]
    return Field(default=getattr(USUAL_PLAN, name), ge=low, le=high, description=description)


class ProfileOptions(BaseModel):
    """How profiles are taken: calls that are skipped, run to warm up and recorded, and how often."""

    model_config = ConfigDict(extra="forbid")
    wait: int = _plan_field("wait")
    warm_up: int = _plan_field("warm_up")
    active: int = _plan_field("active")
    repeat: int = _plan_field("repeat", "The trace kept is the last repetition's.")
    counters: bool = Field(
        default=False, description="Ask Nsight Compute for hardware counters too, where it is permitted."
    )


class SubmissionRequest(BaseModel):
    """What to measure: commits × kinds × operators × devices. Empty operators, variants or cases mean all of them."""

    model_config = ConfigDict(extra="forbid", str_strip_whitespace=True)
    repository: str = Field(min_length=1, max_length=100)
    commits: str = Field(
        min_length=1, max_length=400, description="A commit, branch or tag, or a range A..B.", examples=["main~5..main"]
    )
    base: str | None = Field(
        default=None,
        max_length=200,
        description="What the commit is held against: a commit, `parent`, or `merge-base`, which is where it left "
        "`branch`. With kind bench both are measured in turn where an operator's sources differ; with kind compare "
        "whether they differ or not.",
    )
    branch: str | None = Field(
        default=None, max_length=200, description="For base merge-base; by default the watched branch."
    )
    kinds: list[Kind] = Field(default=["check", "bench"], min_length=1, max_length=4)
    operators: list[str] = Field(default=[], max_length=200)
    variants: list[str] = Field(default=[], max_length=200)
    cases: list[str] = Field(default=[], max_length=1000)
    suite: str = Field(
        default="quick", min_length=1, max_length=50, description="Which cases, unless `cases` names them."
    )
    device: str = Field(default="all", min_length=1, max_length=200, description="A device's key, or cpu, cuda or all.")
    priority: int = Field(default=0, ge=-10, le=10, description="Higher runs earlier.")
    seed: int = Field(default=0, ge=0, lt=2**31)
    budget_ms: int | None = Field(
        default=None, ge=1, le=600_000, description="Time to spend on timing one variant on one case."
    )
    profile: ProfileOptions = ProfileOptions()
    skip_unchanged: bool = Field(
        default=False,
        description="Leave out an operator at a commit whose sources are those of the nearest commit where the same "
        "was asked for.",
    )
    sanitize: Literal["memcheck", "racecheck", "initcheck", "address"] | None = Field(
        default=None,
        description="Check under this sanitizer; address looks at native code on a CPU, the others at a GPU's.",
    )
