"""The input sets that timed calls rotate through, and the check of what these calls computed.

Between batches of samples the contents of the sets move on by one set, in place. So a variant that caches results by
address, object or shape returns an old result, and the check after timing finds it.
"""

from __future__ import annotations

import gc
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cached_property, partial
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from warpwatch.contract.words import Fault

from ..failures import WrongResultError
from ..guards.diagnosis import decoys_of, explain
from ..oracle import Oracle
from ..problem import CaseData, CaseProblem, as_bytes, fill_with_poison, map_tensors, named_tensors

_SET_SEEDS = 7919
_RENEWED_SEEDS = 1_000_003
_VERIFIED = 3
_IN_A_ROW = 2
_DIAGNOSED = 3
"""Sets whose numbers, which have moved on through the others, are looked for in a wrong result."""
_DISTINCT = 16
"""Sets with different contents.

Further sets are copies: only CUDA graphs have so many, no host code runs in a replay to cache results, and drawing
takes time.
"""
_PADDING_UNIT = 512
_LARGEST_PADDING = 4096


class Rotation:
    """`count` input sets, each with a prepared call; with `scatter`, at random distances from each other in memory."""

    def __init__(self, problem: CaseProblem, seed: int, count: int, scatter: random.Random | None = None) -> None:
        self.problem = problem
        self.sets: list[CaseData] = []
        self._padding: list[Tensor] = []
        self._first_seed = seed
        self._seeds = set_seeds(seed, count)
        self._current_seeds = list(self._seeds)
        self._seeds_before_renewal: dict[int, int] = {}
        self._decoys = decoys_of(problem)
        # At most three sets, the first and the last among them.
        step = (count - 1) / (_VERIFIED - 1)
        self._verified = list(range(count)) if count <= _VERIFIED else [round(step * i) for i in range(_VERIFIED)]
        # A set, whether copies of it have its strides, and the most units of padding: no more than there are in a set,
        # because the allocator separates small and large tensors.
        drawn: list[tuple[CaseData, bool, int]] = []
        for index, set_seed in enumerate(self._seeds):
            if index < _DISTINCT:
                data = problem.data(set_seed)
                units = max(1, min(data.nbytes // _PADDING_UNIT, _LARGEST_PADDING))
                is_copied = all(tensor.stride() == torch.empty_like(tensor).stride() for _, tensor in data.tensors())
                drawn.append((data, is_copied, units))
            else:
                source, is_copied, units = drawn[index % _DISTINCT]
                data = source.map(lambda tensor: tensor.detach().clone()) if is_copied else problem.data(set_seed)
            self.sets.append(data)
            if scatter is not None:
                padding = scatter.randint(1, units) * _PADDING_UNIT
                self._padding.append(torch.empty(padding, dtype=torch.uint8, device=problem.device))
        self.calls: list[Callable[[], Any]] = [problem.call(data) for data in self.sets]
        self._next = 0

    def batch(self, count: int) -> tuple[list[Callable[[], Any]], int]:
        """(the next `count` calls, the index of the set of the last one)."""
        start, size = self._next, len(self.calls)
        self._next = (start + count) % size
        return [self.calls[(start + index) % size] for index in range(count)], (start + count - 1) % size

    def roll(self) -> None:
        """Moves the contents of every set on by one set, in place; in backward cases only the incoming gradients."""
        if not self.can_roll:
            return
        first = [tensor.clone() for tensor in self._rolled[0]]
        with torch.no_grad():
            for target, source in pairwise([*self._rolled, first]):
                # Of no tensors there is no list.
                if target:
                    torch._foreach_copy_(target, source)
        self._current_seeds = [*self._current_seeds[1:], self._current_seeds[0]]
        for index in range(len(self.sets)):
            self._refresh(index)

    @cached_property
    def _rolled(self) -> list[list[Tensor]]:
        """The tensors whose contents `roll` moves on, by set: no tensor of a set ever moves in memory."""
        return [[as_bytes(tensor) for _, tensor in self.problem.replaceable(data).tensors()] for data in self.sets]

    @cached_property
    def _addresses(self) -> set[int]:
        return addresses_of(self.sets)

    @cached_property
    def can_roll(self) -> bool:
        """Whether `roll` changes the numbers of every set."""
        # Further sets have the shapes and plain values of these.
        targets = [self.problem.replaceable(data) for data in self.sets[:_DISTINCT]]
        return len(targets) > 1 and all(target.fits(source) for target, source in pairwise([*targets, targets[0]]))

    def rewrite(self) -> None:
        """Copies the numbers of every set onto themselves: the same traffic as `roll`, and no new numbers."""
        with torch.no_grad():
            for tensors in self._rolled:
                if tensors:
                    # The data alone, so that the tensors keep their versions, which count writes.
                    torch._foreach_copy_([tensor.data for tensor in tensors], [tensor.clone() for tensor in tensors])

    def renew(self, indices: Sequence[int] = ()) -> None:
        """Draws fresh inputs for the sets that `verify` checks, since rolled contents return to their first place."""
        for index in indices or self._verified:
            seed = self._seeds[index] + _RENEWED_SEEDS
            target = self.problem.replaceable(self.sets[index])
            source = self.problem.replaceable(self.problem.data(seed))
            if target.fits(source):
                target.overwrite(source)
                self._seeds_before_renewal[index], self._current_seeds[index] = self._current_seeds[index], seed
                self._refresh(index)

    def spoil(self, result: Any) -> Any:
        """A copy of a result; the original is wiped, so that reused memory holds no right result."""
        copy = map_tensors(lambda tensor: tensor.detach().clone().requires_grad_(tensor.requires_grad), result)
        wipe(result, self._addresses)
        return copy

    def wipe(self, results: dict[int, Any], indices: Sequence[int] = ()) -> None:
        """As the function `wipe`, for those results that `verify` looks at when it is given the same."""
        looked_at = [index for index in indices or self._verified if index in results]
        wipe([results[index] for index in looked_at], addresses_of([self.sets[index] for index in looked_at]))

    def verify(self, results: dict[int, Any], indices: Sequence[int] = ()) -> None:
        """Raises WrongResultError when the result of a timed call is wrong, or a call changed its inputs.

        results: results of timed calls by the index of their set, all for the current contents of the sets. indices:
        the sets to look at; by default three, the first and the last among them.
        """
        for index in indices or self._verified:
            result = results[index] if index in results else self.calls[index]()
            self.problem.synchronize()
            pristine = self._pristine(index)
            changed = self.sets[index].changed_since(pristine)
            if changed is not None:
                message = f"The variant modifies its input {changed} in timed calls"
                raise WrongResultError(message, Fault.MODIFIED_INPUT, changed)
            named = self.problem.results(result)
            error = Oracle(self.problem, pristine, partial(self._pristine, index)).find_wrong(named)
            if error is not None:
                redraw, earlier = partial(self._pristine, index), self._earlier_contents(index)
                diagnosis = explain(self.problem, redraw, named, earlier, self._decoys)
                message = f"Wrong in timed calls: {error}{diagnosis.text}"
                raise WrongResultError(message, diagnosis.fault, *diagnosis.subjects)

    def verify_in_a_row(self) -> None:
        """Raises WrongResultError when a call that follows another at once is wrong on inputs that have moved on.

        To spoil a result takes time, and code may be wrong only when calls follow each other as in samples.
        """
        self.roll()
        results = [call() for call in self.calls[:_IN_A_ROW]]
        self.verify(dict(enumerate(results)), [len(results) - 1])

    def _refresh(self, index: int) -> None:
        self.calls[index] = self.problem.refreshed(self.calls[index], self.sets[index])

    def _earlier_contents(self, index: int) -> list[CaseData]:
        """Contents that set `index` may have had, and the first contents of set 0, as far as they differ from the
        current, and the inputs of the first call, whose memory the sets may have got."""
        rolled = [*self._current_seeds[:_DIAGNOSED], *self._seeds[:_DIAGNOSED]]
        seeds = dict.fromkeys([self._seeds_before_renewal.get(index), self._seeds[index], *rolled])
        drawn = [self._drawn(index, seed) for seed in seeds if seed is not None and seed != self._current_seeds[index]]
        return [*drawn, self.problem.data(self._first_seed)]

    def _pristine(self, index: int) -> CaseData:
        """The current contents of set `index`, drawn again from their seed."""
        return self._drawn(index, self._current_seeds[index])

    def _drawn(self, index: int, seed: int) -> CaseData:
        drawn = self.problem.data(seed)
        if not self.problem.backward:
            return drawn
        return CaseData(self.problem.data(self._seeds[index]).inputs, drawn.incoming)


def set_seeds(seed: int, count: int) -> list[int]:
    """The seeds of the sets of a rotation."""
    return [seed + _SET_SEEDS * (index % _DISTINCT + 1) for index in range(count)]


@contextmanager
def no_collection() -> Iterator[None]:
    """Disables garbage collection inside, so that no sample includes it and no CUDA graph captures it."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def addresses_of(sets: Iterable[CaseData]) -> set[int]:
    """Where the tensors of the sets lie."""
    return {tensor.untyped_storage().data_ptr() for data in sets for _, tensor in data.tensors()}


def wipe(result: Any, inputs: set[int]) -> None:
    """Fills results with poison, except views of an input: the gradient of a sum is the incoming gradient itself.

    A gradient that is zero everywhere may have no memory, and is left out too. inputs: see addresses_of.
    """
    for _, tensor in named_tensors(result):
        if not tensor._is_zerotensor() and tensor.untyped_storage().data_ptr() not in inputs:
            # An expanded tensor cannot be written, and owns less memory than its size.
            with suppress(RuntimeError), torch.no_grad():
                fill_with_poison(tensor)
