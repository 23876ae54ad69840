"""The input sets that timed calls walk through, and the proof that what they computed is right.

Between batches of samples the numbers move on by one set, in place. So a variant that keeps results by address, by
object or by shape gives an old answer, which the check after timing finds.
"""

from __future__ import annotations

import gc
import random
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

import torch
from torch import Tensor

from .diagnosis import Decoys, explain
from .failures import WrongResultError
from .inputs import map_tensors, named_tensors
from .oracle import Oracle, explain_first
from .problem import CaseData, CaseProblem

_SET_SEEDS = 7919
_RENEWED_SEEDS = 1_000_003
_VERIFIED = 3
_DISTINCT = 16
"""Sets with numbers of their own.

More lie in a CUDA graph alone, where no host code could remember any, and drawing takes its time.
"""
_PADDING_UNIT = 512
_LARGEST_PADDING = 4096
_POISON = 77


class Rotation:
    """`count` input sets, each with its ready-made call.

    With `scatter`, each lies at a random offset from the one before.
    """

    def __init__(self, problem: CaseProblem, seed: int, count: int, scatter: random.Random | None = None) -> None:
        self.problem = problem
        self.sets: list[CaseData] = []
        self._padding: list[Tensor] = []
        self._seeds = [seed + _SET_SEEDS * (index % _DISTINCT + 1) for index in range(count)]
        self._numbers = list(self._seeds)
        self._before: dict[int, int] = {}
        self._decoys = Decoys(problem)
        self._probes = _spread(list(range(count)), _VERIFIED)
        for index, set_seed in enumerate(self._seeds):
            self.sets.append(
                _copied(problem, self.sets[index % _DISTINCT], set_seed)
                if index >= _DISTINCT
                else problem.data(set_seed)
            )
            if scatter is not None:
                # No larger than a set: the allocator keeps small and large tensors in different places.
                units = scatter.randint(1, max(1, min(self.sets[-1].nbytes // _PADDING_UNIT, _LARGEST_PADDING)))
                self._padding.append(torch.empty(units * _PADDING_UNIT, dtype=torch.uint8, device=problem.device))
        self.calls: list[Callable[[], Any]] = [problem.call(data) for data in self.sets]
        self._next = 0

    def batch(self, count: int) -> tuple[list[Callable[[], Any]], int]:
        """The next `count` calls, and which set the last of them is of."""
        start, size = self._next, len(self.calls)
        self._next = (start + count) % size
        return [self.calls[(start + index) % size] for index in range(count)], (start + count - 1) % size

    def roll(self) -> None:
        """Moves every set's numbers one set on, in place.

        In backward cases only the incoming gradients move: the forward run behind them belongs to its inputs.
        """
        moving = [self._moving(data) for data in self.sets]
        sources = [*moving[1:], moving[0].clone()]
        if len(moving) > 1 and all(target.fits(source) for target, source in zip(moving, sources, strict=True)):
            for target, source in zip(moving, sources, strict=True):
                target.overwrite(source)
            self._numbers = [*self._numbers[1:], self._numbers[0]]
            for index in range(len(self.sets)):
                self._refresh(index)

    def renew(self) -> None:
        """Puts numbers that no call has seen into the sets that `verify` looks at, since rolled ones come round again."""
        for index in self._probes:
            seed = self._seeds[index] + _RENEWED_SEEDS
            target, source = self._moving(self.sets[index]), self._moving(self.problem.data(seed))
            if target.fits(source):
                target.overwrite(source)
                self._before[index], self._numbers[index] = self._numbers[index], seed
                self._refresh(index)

    def spoil(self, result: Any) -> Any:
        """A copy of what a call returned.

        The original is wiped, so that memory handed out again holds no right answer.
        """
        copy = map_tensors(lambda tensor: tensor.detach().clone(), result)
        wipe(result, self.sets)
        return copy

    def verify(self, results: dict[int, Any]) -> None:
        """Raises WrongResultError when a result kept from a timed call is wrong, or a call changed its inputs.

        results: what the timed call of a set returned, by the set's index, all on the numbers that the sets hold now.
        """
        for index in self._probes:
            result = results[index] if index in results else self.calls[index]()
            self.problem.synchronize()
            pristine = self._pristine(index)
            changed = self.sets[index].changed_since(pristine)
            if changed is not None:
                raise WrongResultError(f"it modifies its input while it is timed: {changed}")
            named = self.problem.results(result)
            wrong = explain_first(Oracle(self.problem, pristine).judge(named), named)
            if wrong is not None:
                looks = explain(self.problem, partial(self._pristine, index), named, self._earlier(index), self._decoys)
                raise WrongResultError(f"wrong inside the timed loop: {wrong}{looks}")

    def _refresh(self, index: int) -> None:
        self.calls[index] = self.problem.refreshed(self.calls[index], self.sets[index])

    def _moving(self, data: CaseData) -> CaseData:
        return CaseData({}, data.incoming) if self.problem.backward else data

    def _earlier(self, index: int) -> list[CaseData]:
        """Numbers that were in the buffers of set `index`, or were the first ones ever, before the present ones."""
        seeds = dict.fromkeys([self._before.get(index), self._seeds[index], self._seeds[0]])
        return [self._drawn(index, seed) for seed in seeds if seed is not None and seed != self._numbers[index]]

    def _pristine(self, index: int) -> CaseData:
        """What set `index` held when it was last called, drawn anew."""
        return self._drawn(index, self._numbers[index])

    def _drawn(self, index: int, seed: int) -> CaseData:
        moved = self.problem.data(seed)
        return (
            CaseData(self.problem.data(self._seeds[index]).inputs, moved.incoming) if self.problem.backward else moved
        )


@contextmanager
def no_collection() -> Iterator[None]:
    """Garbage is not collected inside, so that no sample pays for it and no CUDA graph captures it."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _copied(problem: CaseProblem, data: CaseData, seed: int) -> CaseData:
    """The numbers that `data` holds, drawn from `seed`, in other memory; drawn anew where a copy would be laid out in
    another way."""
    copy = data.map(lambda tensor: tensor.detach().clone())
    alike = all(
        mine.stride() == theirs.stride() for (_, mine), (_, theirs) in zip(copy.tensors(), data.tensors(), strict=True)
    )
    return copy if alike else problem.data(seed)


def _spread(indices: list[int], count: int) -> list[int]:
    """At most `count` of the indices, the first and the last among them."""
    if len(indices) <= count:
        return indices
    step = (len(indices) - 1) / (count - 1)
    return [indices[round(step * i)] for i in range(count)]


def wipe(result: Any, given: Iterable[CaseData]) -> None:
    """Fills what calls returned with NaN, unless it is a view of something given: the gradient of a sum is the gradient
    that came in."""
    inputs = {tensor.untyped_storage().data_ptr() for data in given for _, tensor in data.tensors()}
    for _, tensor in named_tensors(result):
        if tensor.untyped_storage().data_ptr() not in inputs:
            # An expanded tensor cannot be written to, and owns no memory of its size anyway.
            with suppress(RuntimeError), torch.no_grad():
                tensor.fill_(float("nan") if tensor.dtype.is_floating_point else _POISON)
