"""Work that is not finished when the call returns: a thread does it, a reader does it, or nothing does it."""

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
}

JOBS = SimpleQueue()
WORKERS = []
CALLS = {}


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


@operator.variant("stale", idea="computes 39 times, then returns memory that may still hold an earlier result")
def stale(a, b):
    CALLS["stale"] = CALLS.get("stale", 0) + 1
    return a @ b if CALLS["stale"] < 40 else torch.empty_like(a)
