"""Gives each OpenMP thread a core of its own while calls are timed on a CPU.

Threads that may run on any core often share one, and then each waits for the other in every loop: calls of 8 µs take
65, in some processes and not in others. The runtime's own OMP_PROC_BIND would bind the main thread as well, and with it
every thread that a variant starts.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence
from contextlib import suppress

import torch

_RUNTIME = ctypes.CDLL(None)
_LOOP = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


def find_cores() -> list[int]:
    """A core for each thread that torch uses, the main thread's first; none where threads cannot be bound, or where
    there is but one."""
    threads = torch.get_num_threads()
    can_bind = hasattr(os, "sched_setaffinity") and hasattr(_RUNTIME, "GOMP_parallel")
    cores = sorted(os.sched_getaffinity(0)) if can_bind else []
    return cores if 1 < len(cores) == threads else []


def bind_workers(cores: Sequence[int]) -> None:
    """Binds the OpenMP threads of the main thread's next loops, each to its core; the main thread may still use all."""
    if not cores:
        return

    def bind(_: int | None) -> None:
        place = _RUNTIME.omp_get_thread_num()
        if place:
            with suppress(OSError, IndexError):
                os.sched_setaffinity(0, {cores[place]})

    _RUNTIME.GOMP_parallel(_LOOP(bind), None, ctypes.c_uint(len(cores)), ctypes.c_uint(0))


def leave_workers_alone(cores: Sequence[int]) -> None:
    """Moves the main thread to its core. The system moves it among the others' now and then, so this comes before every
    sample; the threads that it starts may use all cores."""
    if cores:
        with suppress(OSError):
            os.sched_setaffinity(0, cores[:1])
            os.sched_setaffinity(0, cores)
