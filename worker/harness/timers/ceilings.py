"""Measures the ceilings of a device, for roofline shares: copy bandwidth, and matrix products in each precision.

Repeated in a few milliseconds they are a canary, which tells with the state of a card whether it is fit to measure.
Those of a CPU are a fraction of what it can do where other work runs beside them, so its bounds accuse instead.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import cycle
from time import perf_counter_ns
from typing import Any

import torch
from torch import Tensor

from warpwatch.contract.messages import CanaryReply, CeilingsReply
from warpwatch.contract.words import Status

from ..problem import DTYPES, precision_switches
from .cpu import last_level_cache
from .cuda import elapsed_ns, new_event
from .health import DeviceHealth
from .kernel import busy_ns

_BUDGET_NS = {"cpu": 300_000_000, "cuda": 200_000_000}
_FEWEST = 3
_COPY_BYTES = {"cpu": 64 * 2**20, "cuda": 2**30}
_MATRIX = {"cpu": 1024, "cuda": 8192}
_PRECISIONS = {"cpu": ("f32", "f64"), "cuda": ("f32", "tf32", "bf16", "f16", "f64")}
_ELEMENTS = ("e4m3", "i8")
"""Number formats whose products a GPU may have instructions for, besides those of its precisions."""
_MEMORY_SHARE = 8
_SHORT_MATRIX, _SHORT_COPY_BYTES = 256, 2**20
"""Calls of less than a millisecond, of which other work interrupts some and not all."""


def measure_ceilings(device: torch.device) -> CeilingsReply:
    """Measures each ceiling as the best of several repetitions, since it is the most that the device can do."""
    peaks = {"copy": _copy_bandwidth(device)}
    for precision in _PRECISIONS[device.type]:
        with torch.no_grad(), precision_switches(precision):
            peaks[precision] = _matmul_rate(device, precision, _MATRIX[device.type])
    for element in _ELEMENTS if device.type == "cuda" else ():
        # Of cards without such instructions, torch refuses the product.
        with torch.no_grad(), suppress(RuntimeError):
            peaks[element] = _coded_rate(device, element, _MATRIX["cuda"])
    if device.type == "cuda":
        torch.cuda.empty_cache()
    return CeilingsReply(Status.OK, "", peaks)


def measure_bounds() -> CeilingsReply:
    """Rates that no call on this CPU exceeds by far, whatever else runs: what one thread does in its best short call,
    times the cores. So they are more than the cores together can do."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    cpu, n = torch.device("cpu"), _SHORT_MATRIX
    # Pieces of what no cache holds.
    count = max(_COPY_BYTES["cpu"], 2 * last_level_cache()) // _SHORT_COPY_BYTES
    source = torch.randn(count, _SHORT_COPY_BYTES // 4)
    pieces = cycle(zip(source.clone(), source, strict=True))

    def copy() -> None:
        target, numbers = next(pieces)
        target.copy_(numbers)

    with torch.no_grad(), one_thread():
        rates = {"copy": 2 * _SHORT_COPY_BYTES / _best_seconds(cpu, copy)}
        for precision in ("f32", "bf16"):
            rates[precision] = _matmul_rate(cpu, precision, n)
        with suppress(RuntimeError):
            rates["i8"] = _coded_rate(cpu, "i8", n)
    return CeilingsReply(Status.OK, "", {name: cores * rate for name, rate in rates.items()})


@contextmanager
def one_thread() -> Iterator[None]:
    """Lets torch use one thread: of several, those that wait for another on a busy host spin, which looks like work."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def measure_canary(device: torch.device) -> dict[str, float]:
    """Repeats the copy and the f32 product in a few milliseconds, to compare with the ceilings of the device.

    Returns bytes per second for "copy" and FLOP per second for "f32".
    """
    with torch.no_grad(), precision_switches("f32"):
        rates = {"copy": _copy_bandwidth(device, 0), "f32": _matmul_rate(device, "f32", _MATRIX[device.type], 0)}
    if device.type == "cuda":
        torch.cuda.empty_cache()
    return rates


def _copy_bandwidth(device: torch.device, budget_ns: int | None = None) -> float:
    """Bytes read plus bytes written per second, on buffers far larger than any cache."""
    size = _COPY_BYTES[device.type]
    if device.type == "cpu":
        size = max(size, 2 * last_level_cache())
    else:
        size = min(size, torch.cuda.get_device_properties(device).total_memory // _MEMORY_SHARE)
    # Random numbers, because memory that was never written may map to one page of zeros.
    source = torch.randn(size // 4, device=device)
    target = torch.empty_like(source).copy_(source)
    return 2 * source.numel() * 4 / _best_seconds(device, lambda: target.copy_(source), budget_ns)


def _matmul_rate(device: torch.device, precision: str, n: int, budget_ns: int | None = None) -> float:
    """FLOP per second of a product of two matrices of n × n normally distributed numbers."""
    a = torch.randn(n, n, device=device).to(DTYPES[precision])
    b = torch.randn(n, n, device=device).to(DTYPES[precision])
    out = a @ b
    return 2 * n**3 / _best_seconds(device, lambda: torch.mm(a, b, out=out), budget_ns)


def _coded_rate(device: torch.device, element: str, n: int, budget_ns: int | None = None) -> float:
    """The same of codes: e4m3 with one scale into bf16, and whole numbers of eight bits into 32."""
    numbers = (torch.randn(n, n, device=device) for _ in range(2))
    if element == "i8":
        a, b = ((32 * matrix).clamp(-128, 127).to(torch.int8) for matrix in numbers)
        return 2 * n**3 / _best_seconds(device, lambda: torch._int_mm(a, b.t()), budget_ns)
    a, b = (matrix.to(torch.float8_e4m3fn) for matrix in numbers)
    one = torch.ones((), device=device)

    def product() -> Tensor:
        # The sums of a training's forward pass: without promotion to f32 they are as fast as the card allows.
        return torch._scaled_mm(a, b.t(), one, one, out_dtype=torch.bfloat16, use_fast_accum=True)

    return 2 * n**3 / _best_seconds(device, product, budget_ns)


def _best_seconds(device: torch.device, call: Callable[[], object], budget_ns: int | None = None) -> float:
    """Seconds of the fastest call of at least four, and of all that fit into `budget_ns`."""
    best = _seconds(device, call)
    end = perf_counter_ns() + (_BUDGET_NS[device.type] if budget_ns is None else budget_ns)
    repetitions = 0
    while repetitions < _FEWEST or perf_counter_ns() < end:
        best = min(best, _seconds(device, call))
        repetitions += 1
    return best


def _seconds(device: torch.device, call: Callable[[], object]) -> float:
    """Seconds of one call: device time on a GPU, host time on a CPU."""
    if device.type == "cpu":
        begin = perf_counter_ns()
        call()
        return (perf_counter_ns() - begin) / 1e9
    start, end = new_event(), new_event()
    start.record()
    call()
    end.record()
    end.synchronize()
    return elapsed_ns(start, end) / 1e9


_BUSY_PERCENT = 5
_OWN_SECONDS, _OWN_SHARE = 0.1, 0.05
"""How long this process rests to see whether kernels of its own run meanwhile, and the share from which they do."""
_HOT_CELSIUS = 85
_BELOW_LIMIT = 5
"""The margin in degrees below the temperature at which the card slows down."""


def inspect(device: torch.device) -> CanaryReply:
    """Reads NVML and runs a short copy and product on a GPU.

    A CPU is always shared, so it has no troubles: its load is stored with every measurement instead.
    """
    health = DeviceHealth(device)
    if device.type == "cpu":
        return CanaryReply(Status.OK, facts=health.read())
    facts = health.standing()
    if facts.get("utilization", 0) > _BUSY_PERCENT:
        facts["own_share"] = busy_ns(lambda: time.sleep(_OWN_SECONDS))[0] / (_OWN_SECONDS * 1e9)
    rates = measure_canary(device)
    # A card that is too hot or short of power throttles under load first.
    facts["held_back_under_load"] = [reason for reason in health.throttle_reasons().split(", ") if reason]
    return CanaryReply(Status.OK, troubles=troubles(facts), rates=rates, facts=facts)


def troubles(facts: dict[str, Any]) -> list[str]:
    """Reasons not to measure, from the facts of DeviceHealth.standing; a missing fact is no reason."""
    reasons = []
    if facts.get("utilization", 0) > _BUSY_PERCENT:
        others = facts.get("others") or []
        by = f" (processes {', '.join(map(str, others))})" if others else ""
        is_own = facts.get("own_share", 0.0) > _OWN_SHARE
        whose = "code of the commit that nothing called" if is_own else "other work"
        reasons.append(f"{whose} keeps it {facts['utilization']} % busy{by if not is_own else ''}")
    throttling = dict.fromkeys([*facts.get("held_back", []), *facts.get("held_back_under_load", [])])
    if throttling:
        reasons.append(f"it is throttled: {', '.join(throttling)}")
    limit = facts.get("limit_celsius", _HOT_CELSIUS + _BELOW_LIMIT) - _BELOW_LIMIT
    if facts.get("celsius", 0) > limit:
        reasons.append(f"it is at {facts['celsius']} °C, above {limit} °C")
    return reasons
