"""What all probes of one check share, and how one says that it has nothing to look at."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from .oracle import Oracle
from .problem import CaseData, CaseProblem

Memory = set[tuple[str, str, str]]
"""(operator, variant, torch operator and direction) that a child has put through opcheck: once is enough."""
Calls = dict[Any, tuple[tuple[Any, ...], dict[str, Any]]]


class NotProbedError(Exception):
    """A probe has nothing to look at; the message says why."""


@dataclass(slots=True)
class ProbeContext:
    """seed: of the check.

    truth: for the numbers in `data`. calls: operators that the first probe saw called, and alive: what called them,
    since their arguments may stand for something that was prepared, such as the number of a plan.
    """

    problem: CaseProblem
    seed: int
    data: CaseData
    truth: Oracle
    memory: Memory
    calls: Calls = field(default_factory=dict)
    alive: list[Any] = field(default_factory=list)
