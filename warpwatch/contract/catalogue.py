"""A commit, and its catalogue: operators with their variants and cases."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

LONGEST_QUESTION = 150
MOST_TIMEOUT_FACTOR = 10
"""How many times the usual time limit an operator may ask for."""


@dataclass(frozen=True, slots=True)
class CommitInfo:
    """One commit of the history. ordinal: the number of its ancestors, itself included."""

    sha: str
    parent_sha: str | None
    ordinal: int
    author: str
    authored_at: datetime
    subject: str


@dataclass(frozen=True, slots=True)
class CaseEntry:
    key: str
    sizes: dict[str, Any]
    precision: str
    direction: str
    layout: str
    suites: list[str]
    flops: int
    bytes: int


@dataclass(frozen=True, slots=True)
class VariantEntry:
    """since: the first commit that has the variant; empty where the file of the operator alone decides."""

    name: str
    idea: str
    outcome: str
    devices: list[str]
    native: bool
    since: str = ""


@dataclass(frozen=True, slots=True)
class SizeQuestion:
    """A question that times over one size of the cases answer.

    text: as the operator's page asks it. against: the variant that the others are compared with.
    """

    text: str
    size: str
    against: str

    def __post_init__(self) -> None:
        """ValueError, naming the field, for what no page can show."""
        for name in ("text", "size", "against"):
            if not 1 <= len(getattr(self, name)) <= LONGEST_QUESTION:
                raise ValueError(f"questions: {name} must have 1 to {LONGEST_QUESTION} letters")


@dataclass(frozen=True, slots=True)
class OperatorEntry:
    """One operator of a commit. `error` is set, and the lists are empty, when its file does not load.

    uses: operators whose native libraries it loads, where that is not only its own. missing_module: the module that it
    imports and that is not there, where that is the error. timeout_factor: how many times the usual limit a variant may
    take for one of its cases.
    """

    name: str
    summary: str
    variants: list[VariantEntry]
    cases: list[CaseEntry]
    error: str | None = None
    uses: list[str] = field(default_factory=list)
    missing_module: str | None = None
    timeout_factor: float = 1.0
    questions: list[SizeQuestion] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Catalogue:
    contract: int
    operators: list[OperatorEntry]
