"""Calls that replace the clock, events, synchronisation and comparison, or change settings of the process."""

import gc
import math
import statistics
import sys
import threading
import time

import torch
from kernels._product import make_operator

operator = make_operator("patches", "Replaces functions that measure or check it.")

caught_by = {
    "timer": "replaced_function time.perf_counter_ns",
    "harness_timer": "replaced_function harness.timers.cpu.perf_counter_ns",
    "harness_code": "replaced_function harness.timers.cpu._time",
    "event": "replaced_function torch.cuda.Event.elapsed_time",
    "synchronize": "replaced_function torch.cuda.synchronize",
    "comparison": "replaced_function torch.Tensor.double",
    "equality": "replaced_function torch.equal",
    "hidden_threads": "replaced_function threading.enumerate",
    "garbage": "replaced_function gc.collect",
    "finite": "replaced_function math.isfinite",
    "synchronize_code": "replaced_function torch.cuda.synchronize",
    "library_code": "replaced_function harness.bench.median",
    "more_threads": "changed_setting the number of CPU threads",
    "looser_precision": "changed_setting float32 matmul precision",
    "wider_default": "changed_setting the default dtype",
}

REAL = time.perf_counter_ns
MORE_THREADS = torch.get_num_threads() + 1


def _slow_clock() -> int:
    return REAL() // 10


@operator.variant("honest", idea="computes")
def honest(a, b):
    return a @ b


@operator.variant("timer", idea="replaces the clock by one that runs ten times too slowly")
def timer(a, b):
    time.perf_counter_ns = _slow_clock
    return a @ b


@operator.variant("harness_timer", idea="replaces the clock inside the harness's modules")
def harness_timer(a, b):
    for name, module in list(sys.modules.items()):
        if name.endswith(("harness.timers.cpu", "harness.timers.cuda")):
            module.perf_counter_ns = _slow_clock
    return a @ b


@operator.variant("harness_code", idea="replaces the code of a harness function")
def harness_code(a, b):
    for name, module in list(sys.modules.items()):
        if name.endswith("harness.timers.cpu"):
            module._time.__code__ = (lambda calls: (1000, [call() for call in calls][-1])).__code__
    return a @ b


@operator.variant("event", idea="replaces the elapsed time of events by 1 µs")
def event(a, b):
    torch.cuda.Event.elapsed_time = lambda start, end: 0.001
    return a @ b


@operator.variant("synchronize", idea="replaces the synchronisation by nothing")
def synchronize(a, b):
    torch.cuda.synchronize = lambda device=None: None
    return a @ b


@operator.variant("comparison", idea="makes every difference zero, and computes nothing")
def comparison(a, b):
    torch.Tensor.double = lambda self: torch.zeros(self.shape, dtype=torch.float64, device=self.device)
    return torch.zeros_like(a)


@operator.variant("equality", idea="makes all tensors equal")
def equality(a, b):
    torch.equal = lambda first, second: True
    return a @ b


@operator.variant("hidden_threads", idea="hides the threads that it could start")
def hidden_threads(a, b):
    threading.enumerate = list
    return a @ b


@operator.variant("garbage", idea="keeps what a collection would free")
def garbage(a, b):
    gc.collect = lambda generation=2: 0
    return a @ b


@operator.variant("finite", idea="makes every number finite, and computes none")
def finite(a, b):
    math.isfinite = lambda number: True
    return torch.full_like(a, torch.nan)


@operator.variant("synchronize_code", idea="leaves the function in its place, and replaces its code by nothing")
def synchronize_code(a, b):
    torch.cuda.synchronize.__code__ = (lambda device=None: None).__code__
    return a @ b


@operator.variant("library_code", idea="replaces the code of the median in the standard library")
def library_code(a, b):
    statistics.median.__code__ = (lambda data: min(data) / 10).__code__
    return a @ b


@operator.variant("more_threads", idea="uses more threads than the series")
def more_threads(a, b):
    torch.set_num_threads(MORE_THREADS)
    return a @ b


@operator.variant("looser_precision", idea="switches to TF32 for itself and for the reference")
def looser_precision(a, b):
    torch.set_float32_matmul_precision("medium")
    return a @ b


@operator.variant("wider_default", idea="makes new tensors twice as wide")
def wider_default(a, b):
    torch.set_default_dtype(torch.float64)
    return a @ b
