"""What is known of why something changed: machine code, circumstances and numerical errors on both sides of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from warpwatch.db.reads.rows.builds import CodeChange


@dataclass(frozen=True, slots=True)
class CodeEvidence:
    """Machine code at the nearest commits that were built on the device: at or before the base, and at or behind the
    head.

    base_hash, head_hash: fingerprints of all of it, empty where they are unknown. changes: kernels that differ.
    """

    base_sha: str
    head_sha: str
    base_hash: str
    head_hash: str
    changes: list[CodeChange]


@dataclass(frozen=True, slots=True)
class BenchSide:
    """How the worst series was timed at the nearest commit on one side.

    health: see contract.messages.BenchReply; facts: its environment.
    """

    commit_sha: str
    job_id: int
    median_ns: float
    low_ns: float
    high_ns: float
    measured_at: datetime
    health: dict[str, Any]
    facts: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Difference:
    """One fact that is not the same on both sides; None where a side does not tell."""

    name: str
    base: Any
    head: Any


@dataclass(frozen=True, slots=True)
class BenchEvidence:
    """The worst series as both commits' own benches timed it, and in what their environments differ.

    None: not timed on that side.
    """

    variant: str
    case: str
    base: BenchSide | None
    head: BenchSide | None
    differences: list[Difference]


@dataclass(frozen=True, slots=True)
class ErrorChange:
    """The error of one output or gradient against the oracle, as the nearest checks on both sides found it.

    right: whether a check took it for right; None, like an error, where that side did not tell of this tensor.
    """

    variant: str
    case: str
    tensor: str
    base_sha: str
    head_sha: str
    base_relative: float | None
    head_relative: float | None
    base_right: bool | None
    head_right: bool | None
    tolerance: float | None

    @property
    def ratio(self) -> float | None:
        """How many times the error grew; None where either side is unknown or was exact."""
        return (
            self.head_relative / self.base_relative if self.base_relative and self.head_relative is not None else None
        )


@dataclass(frozen=True, slots=True)
class ErrorEvidence:
    """checked: how many outputs and gradients both sides were asked for.

    changes: those whose error or rightness is another, worst first.
    """

    checked: int
    changes: list[ErrorChange] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Evidence:
    """What was measured on both sides of a change; None where nothing is known."""

    code: CodeEvidence | None
    bench: BenchEvidence | None
    errors: ErrorEvidence | None
