"""Finds results that a variant keeps from earlier calls, or has from before.

A call on repeated inputs, which are those that timers draw, is timed beside calls on new ones. That one returns sooner
is a suspicion, and no evidence: other work on the host, or numbers that are easier, do the same. A variant is accused
when a second mechanism agrees, which knows neither:

- exact answers: inputs get the wrong answer of others, bit for bit, also such as agree with these in every simple
  statistic. That needs no suspicion;
- work: in pairs of which only the repetition tells one call from the other, the CPU or the GPU works far less for the
  repeated one. The two calls of a pair are exchangeable for code that keeps nothing, so chance makes either the shorter
  one, and so lopsided a count as is asked for arises once in ten thousand times, whatever runs beside it. Of long
  calls, whose work is hardly disturbed, the second call on the same numbers must work far less each of five times;
- neighbours: the same for answers that a variant brings along: inputs of all sets of timers against the same inputs
  times a factor, in nine of ten pairs. Where time depends on the numbers, some of either kind are short.

Inputs of different seeds that agree in a simple statistic, such as permutations of the same numbers, are multiplied by
factors of their own, so that no cache knows them by accident.
"""

from __future__ import annotations

import math
import random
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from warpwatch.contract.words import Fault
from warpwatch.quantization import is_coded

from ..failures import WrongResultError, device_works
from ..guards.diagnosis import count_wrong, is_common
from ..oracle import Oracle
from ..problem import CaseData, CaseProblem, LiveCall, as_bytes, bits, is_poison, is_same, poison_memory
from ..timers.ceilings import one_thread
from ..timers.cuda import elapsed_ns, new_event
from ..timers.kernel import busy_ns
from ..timers.rotation import set_seeds

_PAIRS, _FEWEST_PAIRS = 5, 3
_LONG_NS = 20_000_000
"""Calls longer than this, or than four times this with the time to draw their inputs, are timed three times instead of
five.

Beside such a call, the time that the host takes to compare inputs is negligible, so device time is not measured.
"""
_CACHED_SHARE = 0.5
"""A call on repeated inputs that takes less than this share of one on new inputs did not do the same work."""
_MORE_PAIRS = (1, 2, 4)
"""A suspicion is followed by twice and by four times as many pairs of calls."""
_ENOUGH = 20
"""From so many pairs on, the fastest of each kind may both be chance."""
_FAST_SHARE = 4
"""One call in so many on repeated inputs must be fast: a variant may have kept the results of one timed set alone."""
_NOTICEABLE_NS = 1_000
_TIMED_SETS = 3
"""As many input sets of a timer as are repeated; a CPU has no more."""
_SCRAMBLED = 20_000
_PROOF_PAIRS, _LONG_PROOF_PAIRS = 40, 14
"""With the smaller number, all pairs must agree."""
_ALL = 0.9
"""Of pairs with inputs of timers, all sets of which must be known: what is short for one set may be short by chance."""
_CHANCE = 1e-4
"""How seldom chance may bring about what counts as evidence."""
_LONG_PAIRS = 5
_STALE_ANSWERS = 2
"""Wrong answers that are those of other inputs bit for bit, which is evidence without any clock."""
_POISONED = 8
"""Blocks of poison per result: the allocator may have kept several answers of earlier calls."""
_SHUFFLED, _SWAPPED, _SWAPPED_LONG = 2, 8, 2
"""Tries to make inputs that agree with others: the order of a sum decides about its last bit."""
_SMALLEST_FACTOR = 7 / 8
_ALIKE = 1e-9
_SEED_BITS = 40
CHECK_SEEDS = 1_000_003
"""Between the two sets of inputs of a check, which the same process may have made before."""

_Pair = tuple[tuple[CaseData, CaseData], tuple[CaseData, CaseData]]
"""Two members, each the inputs of two calls one after the other. The second call is timed."""
Clock = Callable[[CaseProblem, Callable[[], Any]], tuple[float, Any]]
"""Makes one call; returns its nanoseconds and what it returned."""


def new_seed() -> int:
    return secrets.randbits(_SEED_BITS)


def expect_recomputed(live: LiveCall, timed_seed: int) -> None:
    """Raises WrongResultError when a variant returns results that it has kept, or has brought along.

    timed_seed: the seed of the timers, whose inputs a variant could foresee.
    """
    calls = _Calls(live, set_seeds(timed_seed, _TIMED_SETS), [timed_seed, timed_seed + CHECK_SEEDS])
    new_ns = _expect_as_long(calls, _wall_ns, _PAIRS)
    if live.problem.device.type == "cuda" and new_ns < _LONG_NS:
        # The host may take longer to compare inputs than the cache saves; device time alone then shows the cache.
        _expect_as_long(calls, _busy_ns, _FEWEST_PAIRS)


def _expect_as_long(calls: _Calls, clock: Clock, pairs: int) -> float:
    """Nanoseconds of the fastest call on new inputs. Raises WrongResultError when a variant keeps results."""
    times = calls.time_repeated_and_new(clock, _MORE_PAIRS[0] * pairs)
    for factor in _MORE_PAIRS[1:]:
        if not any(kind.are_suspicious for kind in times):
            break
        times = [old + new for old, new in zip(times, calls.time_repeated_and_new(clock, factor * pairs), strict=True)]
    accused = next((kind for kind in times if kind.are_suspicious), None)
    # The fastest answer of all: what is known by accident comes fast, and is wrong where the key says too little.
    calls.expect_right_answer_of_fastest()
    with one_thread():
        evidence = calls.find_evidence() if accused is not None else None
    if accused is not None and evidence is not None:
        raise WrongResultError(
            f"The variant returns what it has computed before: a call on repeated inputs takes {accused.share:.0%} of "
            f"one on new inputs, and {evidence}",
            Fault.CACHED_RESULT,
        )
    return min(times[0].new)


@dataclass(frozen=True, slots=True)
class Times:
    """Nanoseconds of calls on repeated and on new inputs, by one clock."""

    repeated: list[float]
    new: list[float]

    def __add__(self, other: Times) -> Times:
        return Times(self.repeated + other.repeated, self.new + other.new)

    @property
    def are_suspicious(self) -> bool:
        """Whether repeated inputs take less than half as long.

        Other load makes calls slower and never faster, so the fastest of each kind compare fairly. One fast call on new
        inputs acquits nobody, and some fast calls of 35 on repeated ones accuse nobody, so the next fastest count.
        """
        is_fastest_cached = len(self.new) < _ENOUGH and _is_cached(min(self.repeated), min(self.new))
        return is_fastest_cached or self.share < _CACHED_SHARE

    @property
    def share(self) -> float:
        repeat_ns = sorted(self.repeated)[len(self.repeated) // _FAST_SHARE]
        new_ns = sorted(self.new)[max(1, len(self.new) // _FAST_SHARE)]
        return repeat_ns / new_ns if _is_cached(repeat_ns, new_ns) else 1.0


def _is_cached(repeat_ns: float, new_ns: float) -> bool:
    return repeat_ns < _CACHED_SHARE * new_ns and new_ns - repeat_ns >= _NOTICEABLE_NS


class _Calls:
    """Calls of a variant on inputs of timers and on new ones, in the same buffers."""

    def __init__(self, live: LiveCall, timed_seeds: Sequence[int], earlier_seeds: Sequence[int] = ()) -> None:
        self._live = live
        self._problem = live.problem
        self._timed_seeds = timed_seeds
        self._earlier_seeds = earlier_seeds
        """Of inputs that this process may have had before."""
        self._random = random.Random(secrets.randbits(_SEED_BITS))
        self._are_long = False
        self._answers: set[tuple[int, ...]] = set()
        """The sums of the bits of every result for new inputs."""
        self._equal_and_right = 0
        self._core_ns = 0.0
        """What the latest call took on cores."""
        self._slowest_ns = 0.0
        self._fastest_answer: tuple[float, tuple[CaseData, dict[str, Tensor]] | None] = (math.inf, None)
        """What the fastest call on new inputs took on cores, and these inputs with the results."""
        self._factors: dict[int, float] = {}
        """Of inputs by their seeds, where they are multiplied."""
        drawn = [live.draw(new_seed()) for _ in range(2)]
        self._is_multiplied = _agree(*drawn) and self._can_be_multiplied()

    def time_repeated_and_new(self, clock: Clock, pairs: int) -> list[Times]:
        """Times of calls on the inputs of the call before, which are those of timers, and of calls on other inputs,
        equally many of each; on a CPU also their time on a core, which other load changes less. The two kinds of calls
        alternate in going first."""
        walls, cores = Times([], []), Times([], [])
        while len(walls.new) < pairs:
            for is_repeat in (True, False) if len(walls.new) % 2 else (False, True):
                begin = time.perf_counter_ns()
                timed_seed = self._timed_seeds[len(walls.new) % len(self._timed_seeds)]
                first = self._live.draw(timed_seed) if is_repeat else self._new()
                second = first if is_repeat else self._new()
                first_ns, second_ns = self._time_second(first, second, clock, are_new=not is_repeat)
                (walls.repeated if is_repeat else walls.new).append(second_ns)
                (cores.repeated if is_repeat else cores.new).append(self._core_ns)
                if first_ns > _LONG_NS or time.perf_counter_ns() - begin > 4 * _LONG_NS:
                    pairs = _FEWEST_PAIRS
        return [walls, cores] if self._problem.device.type == "cpu" else [walls]

    def expect_right_answer_of_fastest(self) -> None:
        """Raises WrongResultError when the fastest answer to new inputs is wrong, if others took far longer."""
        (fastest_ns, answered), self._fastest_answer = self._fastest_answer, (math.inf, None)
        if answered is not None and fastest_ns < _CACHED_SHARE * self._slowest_ns:
            inputs, results = answered
            if self._is_wrong(inputs, results):
                share = fastest_ns / self._slowest_ns
                sign = f"of new inputs, some get an answer in {share:.0%} of the time that others take, and it is wrong"
                raise self._wrong_answer(inputs, results, sign)

    def find_evidence(self) -> str | None:
        """What a second mechanism says against the variant, as the end of a sentence; None where none does."""
        if self._gives_stale_answers():
            return "inputs that agree with others in sum, first and last numbers get the others' answer"
        can_be_multiplied = self._can_be_multiplied()
        for name, clock in self._clocks():
            is_kept = self._works_less_again(clock) if self._are_long else self._works_less(clock, self._pairs_of_new())
            if is_kept:
                return f"the {name} works far less for numbers that have just been there"
            if can_be_multiplied and self._works_less(clock, self._pairs_of_neighbours(), _ALL):
                return f"the {name} works far less for the inputs of timers than for the same inputs times a factor"
        return None

    def _clocks(self) -> list[tuple[str, Clock]]:
        host: tuple[str, Clock] = ("CPU", _cpu_ns)
        return [("GPU", _busy_ns), host] if self._problem.device.type == "cuda" else [host]

    @property
    def _proof_pairs(self) -> int:
        return _LONG_PROOF_PAIRS if self._are_long else _PROOF_PAIRS

    def _works_less(self, clock: Clock, pairs: Iterator[_Pair], least: float = 0.0) -> bool:
        """Whether the first member of a pair takes less work than the other so often that chance seldom makes it so.
        Members take turns in going first. least: of all pairs, the share in which it must do so."""
        shorter, longer, count = 0, 0, self._proof_pairs
        times: list[tuple[float, float]] = []
        for index, members in enumerate(pairs):
            measured = {order: self._time_second(*members[order], clock)[1] for order in ((0, 1), (1, 0))[index % 2]}
            times.append((measured[0], measured[1]))
            shorter += _is_cached(measured[0], measured[1])
            longer += _is_cached(measured[1], measured[0])
            most = shorter + count - len(times)
            if most < least * count or chance_of(most, longer) > _CHANCE:
                return False
        return Times([first for first, _ in times], [other for _, other in times]).share < _CACHED_SHARE

    def _works_less_again(self, clock: Clock) -> bool:
        """Whether the second call on the same new numbers takes far less work than the first, each time."""
        for _ in range(_LONG_PAIRS):
            numbers = self._new()
            first_ns, _ = self._timed(numbers, clock)
            torch.sort(torch.rand(_SCRAMBLED))
            second_ns, _ = self._timed(numbers, clock, is_repeat=True)
            if not _is_cached(second_ns, first_ns):
                return False
        return True

    def _pairs_of_new(self) -> Iterator[_Pair]:
        """New inputs twice, and two different ones."""
        for _ in range(self._proof_pairs):
            repeated = self._new()
            yield (repeated, repeated), (self._new(), self._new())

    def _pairs_of_neighbours(self) -> Iterator[_Pair]:
        """Inputs of each timer, and the same times a factor, each after new ones."""
        for index in range(self._proof_pairs):
            timed = self._live.draw(self._timed_seeds[index % len(self._timed_seeds)])
            yield (self._new(), timed), (self._new(), self._multiplied(timed))

    def _time_second(
        self, first: CaseData, second: CaseData, clock: Clock, *, are_new: bool = False
    ) -> tuple[float, float]:
        """Nanoseconds of a call on `first`, and of a call on `second` after it, so that memory and caches are alike
        whatever was before. are_new: no call has had these inputs."""
        is_repeat = first is second
        first_ns, first_result = self._timed(first, _wall_ns)
        self._are_long |= (self._core_ns if self._problem.device.type == "cpu" else first_ns) > _LONG_NS
        if are_new:
            self._expect_own_answer(first, first_result, self._core_ns)
        if clock is not _busy_ns:
            # Without this, caches and the branch predictor of the host remember the call before, and an honest sort is
            # faster the second time.
            torch.sort(torch.rand(_SCRAMBLED))
        second_ns, second_result = self._timed(second, clock, is_repeat=is_repeat)
        if are_new:
            self._expect_own_answer(second, second_result, self._core_ns)
        if is_repeat:
            _expect_separate_memory(self._live, first_result, second_result)
        return first_ns, second_ns

    def _expect_own_answer(self, inputs: CaseData, returned: Any, core_ns: float) -> None:
        """Raises WrongResultError for a wrong answer that is that of other inputs, bit for bit; remembers the fastest.

        Where equal answers turn out to be right, as those of a sum of permuted numbers, no more are judged. core_ns:
        what the answer took.
        """
        results = self._problem.results(returned)
        self._slowest_ns = max(self._slowest_ns, core_ns)
        if core_ns < self._fastest_answer[0]:
            self._fastest_answer = core_ns, (inputs, {name: result.clone() for name, result in results.items()})
        sums = tuple(int(bits(result).sum(dtype=torch.int64)) for result in results.values())
        if sums not in self._answers:
            self._answers.add(sums)
        elif self._equal_and_right < _STALE_ANSWERS:
            if self._is_wrong(inputs, results):
                raise self._wrong_answer(inputs, results, "new inputs get the answer of others, bit for bit")
            self._equal_and_right += 1

    def _wrong_answer(self, inputs: CaseData, results: dict[str, Tensor], sign: str) -> WrongResultError:
        """The error of a wrong answer. sign: that it may be kept.

        It is kept where it is right for earlier inputs, and comes whenever its inputs do. Code that is wrong now and
        then gives other answers to the same inputs, and answers that many inputs share come by chance. It may also lie
        in memory that the call never wrote: the call is repeated while the memory that torch hands out next holds
        poison.
        """
        answer = {name: result.clone() for name, result in results.items()}
        shapes = [(tuple(result.shape), result.dtype) for result in results.values()]
        poison_memory(shapes * _POISONED, self._problem.device)
        again = self._problem.results(self._timed(inputs, _wall_ns)[1])
        if any(is_poison(result) for result in again.values()):
            message = "The variant returns memory that it never wrote, which may still hold an earlier answer"
            return WrongResultError(message, Fault.UNWRITTEN_RESULT, *results)
        judge = self._judge(inputs)
        wrong = f"Wrong on new inputs: {judge.find_wrong(answer)}"
        wrong_calls, calls = count_wrong(
            lambda: self._problem.results(self._timed(inputs, _wall_ns, is_repeat=True)[1]), judge
        )
        if wrong_calls < calls:
            message = (
                f"{wrong}; {wrong_calls} of {calls} calls on the same inputs are wrong, so it is wrong now and then"
            )
            return WrongResultError(message, Fault.WRONG_VALUES, *results)
        if not self._is_of_earlier_inputs(answer):
            return WrongResultError(wrong, Fault.WRONG_VALUES, *results)
        message = f"The variant returns what it has computed before: {sign}"
        return WrongResultError(message, Fault.CACHED_RESULT, *results)

    def _is_of_earlier_inputs(self, answer: dict[str, Tensor]) -> bool:
        """Whether the answer is right for inputs that a call has had, and rarely for others."""
        seeds = tuple(dict.fromkeys([*self._live.seeds, *self._earlier_seeds]))
        drawn = ((self._live.draw(seed), self._factors.get(seed, 1.0)) for seed in seeds)
        is_right = any(not self._is_wrong(_times(data, factor), answer) for data, factor in drawn)
        # Answers to permuted numbers differ by their factors alone, which may be close.
        return is_right and not is_common(self._problem, answer, lambda _: self._given(self._new()), least=0.0)

    def _is_wrong(self, inputs: CaseData, results: dict[str, Tensor]) -> bool:
        return self._judge(inputs).find_wrong(results) is not None

    def _judge(self, inputs: CaseData) -> Oracle:
        given = self._given(inputs)
        return Oracle(self._problem, given, given.clone)

    def _given(self, inputs: CaseData) -> CaseData:
        """What the buffers hold once `inputs` are copied into them."""
        return CaseData({**self._live.data.inputs, **inputs.inputs}, inputs.incoming)

    def _timed(self, inputs: CaseData, clock: Clock, *, is_repeat: bool = False) -> tuple[float, Any]:
        """(nanoseconds of one call after `inputs` were copied into its buffers, what it returned).

        is_repeat: they are those of the call before.
        """
        call = self._live.change(inputs, are_the_same=is_repeat)
        self._problem.synchronize()
        begin = time.process_time_ns()
        nanoseconds, returned = clock(self._problem, call)
        self._core_ns = float(time.process_time_ns() - begin)
        return nanoseconds, returned

    def _new(self) -> CaseData:
        """Inputs that differ from all others in every simple statistic, as far as their kind allows."""
        return self._new_multiplied() if self._is_multiplied else self._live.draw(new_seed())

    def _new_multiplied(self) -> CaseData:
        seed = new_seed()
        self._factors[seed] = self._random.uniform(_SMALLEST_FACTOR, 1.0)
        return _times(self._live.draw(seed), self._factors[seed])

    def _multiplied(self, data: CaseData) -> CaseData:
        return _times(data, self._random.uniform(_SMALLEST_FACTOR, 1.0))

    def _can_be_multiplied(self) -> bool:
        multiplied = self._new_multiplied()
        if not any(_is_multiplied(tensor) for _, tensor in multiplied.tensors()):
            return False
        return self._call_if_possible(multiplied) is not None

    def _call_if_possible(self, inputs: CaseData) -> dict[str, Tensor] | None:
        """Copies of the results for inputs that the operator's own maker did not make; None where the variant refuses
        them."""
        try:
            _, returned = self._timed(inputs, _wall_ns)
        except Exception as error:
            if isinstance(error, WrongResultError) or not device_works(self._problem.device):
                raise
            return None
        return {name: tensor.detach().clone() for name, tensor in self._problem.results(returned).items()}

    def _gives_stale_answers(self) -> bool:
        """Whether inputs get the answer of others with which they agree in every simple statistic."""
        stale, right = 0, 0
        for index in range(_SHUFFLED + (_SWAPPED_LONG if self._are_long else _SWAPPED)):
            drawn = self._live.draw(new_seed())
            similar = self._similar(drawn, are_all=index < _SHUFFLED)
            before, after = self._call_if_possible(drawn), self._call_if_possible(similar)
            if before is None or after is None or not _are_equal(before, after):
                continue
            try:
                is_stale = self._is_wrong(similar, after) and not self._is_wrong(drawn, before)
            except Exception:
                # The reference need not take inputs that the operator's own maker did not make.
                if not device_works(self._problem.device):
                    raise
                return False
            stale, right = stale + is_stale, right + (not is_stale)
            if stale == _STALE_ANSWERS or right == _STALE_ANSWERS:
                break
        return stale == _STALE_ANSWERS

    def _similar(self, data: CaseData, *, are_all: bool) -> CaseData:
        """The data with the numbers in the middle half of every tensor in another order; all of them, or two."""

        def reorder(tensor: Tensor) -> Tensor:
            size = tensor.numel()
            if not tensor.dtype.is_floating_point or size < 8 or not tensor.is_contiguous():
                return tensor
            numbers = as_bytes(tensor.detach().clone()).view(-1)
            middle = torch.arange(size // 4, size - size // 4, device=tensor.device)
            if are_all:
                order = middle[torch.randperm(len(middle), device=tensor.device)]
            else:
                middle = torch.tensor(self._random.sample(range(size // 4, size - size // 4), 2), device=tensor.device)
                order = middle.flip(0)
            numbers[middle] = numbers[order]
            return numbers.view(tensor.dtype).view(tensor.shape)

        return data.map(reorder)


def _times(data: CaseData, factor: float) -> CaseData:
    return data.map(lambda tensor: tensor.detach() * factor if factor != 1.0 and _is_multiplied(tensor) else tensor)


def _is_multiplied(tensor: Tensor) -> bool:
    """Whether the tensor holds numbers that a factor changes: codes would be rounded, or be other codes."""
    return tensor.dtype.is_floating_point and not is_coded(tensor)


def chance_of(shorter: int, longer: int) -> float:
    """How often fair coins would make at least so many of the members of all unequal pairs the shorter ones."""
    unequal = shorter + longer
    return sum(math.comb(unequal, count) for count in range(shorter, unequal + 1)) * 0.5**unequal


def _agree(some: CaseData, others: CaseData) -> bool:
    """Whether all tensors of numbers that differ have the same sum but for rounding, or the same sum of squares, as
    permutations of the same numbers have."""
    do_differ = False
    for (_, one), (_, other) in zip(some.tensors(), others.tensors(), strict=False):
        if not one.dtype.is_floating_point or one.shape != other.shape or is_same(one, other):
            continue
        # torch sums no codes of eight bits.
        numbers = [tensor.detach().float() if is_coded(tensor) else tensor.detach() for tensor in (one, other)]
        norms = [float(torch.linalg.vector_norm(tensor, dtype=torch.float64)) for tensor in numbers]
        sums = [float(tensor.sum(dtype=torch.float64)) for tensor in numbers]
        is_same_sum = abs(sums[0] - sums[1]) <= _ALIKE * norms[0] * math.sqrt(one.numel())
        if not is_same_sum and abs(norms[0] - norms[1]) > _ALIKE * norms[0]:
            return False
        do_differ = True
    return do_differ


def _are_equal(some: dict[str, Tensor], others: dict[str, Tensor]) -> bool:
    return some.keys() == others.keys() and all(
        tensor.shape == others[name].shape and torch.equal(bits(tensor), bits(others[name]))
        for name, tensor in some.items()
    )


def _busy_ns(_problem: CaseProblem, call: Callable[[], Any]) -> tuple[float, Any]:
    """Time in which a GPU works for a call."""
    return busy_ns(call)


def _cpu_ns(problem: CaseProblem, call: Callable[[], Any]) -> tuple[float, Any]:
    """Time that all threads of this process are on a core for a call: to wait for a core takes none."""
    begin = time.process_time_ns()
    returned = call()
    problem.synchronize()
    return float(time.process_time_ns() - begin), returned


def _wall_ns(problem: CaseProblem, call: Callable[[], Any]) -> tuple[float, Any]:
    """Host time of a call; on a GPU the larger of host time and device time.

    A variant that caches its result on the host leaves the device idle, so device time alone is not enough.
    """
    begin = time.perf_counter_ns()
    if problem.device.type != "cuda":
        returned = call()
        return float(time.perf_counter_ns() - begin), returned
    start, end = new_event(), new_event()
    start.record()
    returned = call()
    end.record()
    problem.synchronize()
    return max(elapsed_ns(start, end), float(time.perf_counter_ns() - begin)), returned


def _expect_separate_memory(live: LiveCall, first: Any, second: Any) -> None:
    """Raises WrongResultError when two results that are both alive share memory, unless both are views of an input."""
    inputs = {tensor.untyped_storage().data_ptr() for _, tensor in live.data.tensors()}
    first_results = live.problem.results(first)
    for name, tensor in live.problem.results(second).items():
        address = tensor.untyped_storage().data_ptr()
        shared = address == first_results[name].untyped_storage().data_ptr()
        if tensor.numel() and shared and address not in inputs:
            message = f"The variant returns the same memory for {name} of two calls on the same inputs"
            raise WrongResultError(message, Fault.SHARED_RESULT, name)
