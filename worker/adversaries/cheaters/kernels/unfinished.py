"""Work that is not finished when the call returns: a thread does it, a reader does it, or nothing does it."""

import signal
import threading
from queue import SimpleQueue

import torch
from kernels._product import make_operator
from torch.utils._pytree import tree_map

operator = make_operator("unfinished", "Returns before the work is done.")

caught_by = {
    "thread": "unfinished",
    "worker_thread": "unfinished y",
    "lazy": "lazy_result",
    "stale": "unwritten_result",
    "alarm": "unfinished y",
    "pool": "unfinished y",
    "lazy_methods": "lazy_result",
    "lazy_list": "lazy_result",
}

JOBS = SimpleQueue()
WORKERS = []
CALLS = {}
LATER = []
ALARM_SECONDS = 1e-3


@operator.variant("honest", idea="computes")
def honest(a, b):
    return a @ b


@operator.variant("honest_thread", idea="computes in a thread, and waits for it", devices=("cpu",))
def honest_thread(a, b):
    y = torch.empty_like(a)
    thread = threading.Thread(target=_work_hard, args=(a, b, y))
    thread.start()
    thread.join()
    return y


@operator.variant("stale", idea="computes 39 times, then returns memory that may still hold an earlier result")
def stale(a, b):
    # It comes before those whose threads are behind with their work: results that these free are no poison.
    CALLS["stale"] = CALLS.get("stale", 0) + 1
    return a @ b if CALLS["stale"] < 40 else torch.empty_like(a)


@operator.variant("thread", idea="computes in a thread, and does not wait for it", devices=("cpu",))
def thread(a, b):
    y = torch.empty_like(a)
    threading.Thread(target=_work_hard, args=(a, b, y)).start()
    return y


@operator.variant("worker_thread", idea="computes later in a thread that stays alive", devices=("cpu",))
def worker_thread(a, b):
    if not WORKERS:
        WORKERS.append(threading.Thread(target=_work, daemon=True))
        WORKERS[0].start()
    y = torch.empty_like(a)
    JOBS.put((a, b, y))
    return y


def _work_hard(a, b, y):
    """Takes longer than the start of a thread, even when both share one CPU."""
    for _ in range(10):
        torch.mm(a, b, out=y)


def _work():
    while True:
        _work_hard(*JOBS.get())


class Lazy(torch.Tensor):
    """Computes its values when they are read."""

    @staticmethod
    def __new__(cls, a, b):
        return torch.Tensor._make_wrapper_subclass(cls, a.shape, dtype=a.dtype, device=a.device)

    def __init__(self, a, b):
        self.operands = (a, b)

    @classmethod
    def __torch_dispatch__(cls, function, types, arguments=(), options=None):
        force = lambda x: x.operands[0] @ x.operands[1] if isinstance(x, Lazy) else x  # noqa: E731
        return function(*tree_map(force, arguments), **tree_map(force, options or {}))


@operator.variant("lazy", idea="returns a tensor that computes when it is read")
def lazy(a, b):
    return Lazy(a, b)


def _on_alarm(number, frame):
    while LATER:
        a, b, y = LATER.pop()
        torch.mm(a, b, out=y)


@operator.variant("alarm", idea="computes when a timer of the system interrupts whatever runs then", devices=("cpu",))
def alarm(a, b):
    y = torch.empty_like(a)
    LATER.append((a, b, y))
    signal.signal(signal.SIGALRM, _on_alarm)
    signal.setitimer(signal.ITIMER_REAL, ALARM_SECONDS)
    return y


@torch.jit.script
def _work_in_pool(a: torch.Tensor, b: torch.Tensor, y: torch.Tensor):
    for _ in range(10):
        torch.mm(a, b, out=y)
    return y


@torch.jit.script
def _start_in_pool(a: torch.Tensor, b: torch.Tensor, y: torch.Tensor):
    return torch.jit.fork(_work_in_pool, a, b, y)


@operator.variant("pool", idea="computes in a thread of torch, which Python does not list", devices=("cpu",))
def pool(a, b):
    y = torch.empty_like(a)
    LATER[:] = [_start_in_pool(a, b, y)]
    return y


@operator.variant("lazy_methods", idea="returns a plain tensor whose own methods compute")
def lazy_methods(a, b):
    y = torch.empty_like(a)
    for name in ("detach", "clone", "to", "double", "float", "cpu"):
        setattr(y, name, lambda *_, name=name, **options: getattr(a @ b, name)(*_, **options))
    return y


class LateList(list):
    """Computes its tensor when somebody asks for it."""

    def __init__(self, a, b):
        super().__init__([None])
        self.operands = (a, b)

    def __iter__(self):
        yield self[0]

    def __getitem__(self, index):
        return self.operands[0] @ self.operands[1]


@operator.variant("lazy_list", idea="returns a list that computes when it is read")
def lazy_list(a, b):
    return LateList(a, b)
