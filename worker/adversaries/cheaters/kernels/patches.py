"""Calls that replace the clock, events, synchronisation and comparison, or change settings of the process."""

import sys
import time

import torch
from kernels._product import make_operator

operator = make_operator("patches", "Replaces functions that measure or check it.")

caught_by = {
    "timer": "replaced_function time.perf_counter_ns",
    "harness_timer": "replaced_function harness.timer_cpu.perf_counter_ns",
    "harness_code": "replaced_function harness.timer_cpu._time",
    "event": "replaced_function torch.cuda.Event.elapsed_time",
    "synchronize": "replaced_function torch.cuda.synchronize",
    "comparison": "replaced_function torch.Tensor.double",
    "more_threads": "changed_setting the number of CPU threads",
    "looser_precision": "changed_setting float32 matmul precision",
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
        if name.endswith(("harness.timer_cpu", "harness.timer_cuda")):
            module.perf_counter_ns = _slow_clock
    return a @ b


@operator.variant("harness_code", idea="replaces the code of a harness function")
def harness_code(a, b):
    for name, module in list(sys.modules.items()):
        if name.endswith("harness.timer_cpu"):
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


@operator.variant("more_threads", idea="uses more threads than the series")
def more_threads(a, b):
    torch.set_num_threads(MORE_THREADS)
    return a @ b


@operator.variant("looser_precision", idea="switches to TF32 for itself and for the reference")
def looser_precision(a, b):
    torch.set_float32_matmul_precision("medium")
    return a @ b
