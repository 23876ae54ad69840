"""Harnesses that can sit the exam of `warpwatch exam`, one module each, with two functions.

`check(reference, candidate, inputs) -> bool` returns whether the harness takes the candidate for right, and
`time(candidate, inputs) -> float` the seconds of a call that it believes. `inputs(seed)` draws a list of tensors, which
are the arguments of both. Either function may raise RefusedError. A module whose harness lies in a checkout defines
`use(checkout)` as well, which is called first. Beside the harnesses here, the path of any such file can sit the exam.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

Function = Callable[..., Any]
Inputs = Callable[[int], list[Tensor]]


class RefusedError(Exception):
    """The harness does not believe the candidate; the message says why."""
