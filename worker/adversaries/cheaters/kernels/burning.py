"""Work between the calls, which makes look slow what is measured meanwhile, such as the base of a comparison."""

import queue
import threading
import time

import torch
from kernels._product import make_operator

operator = make_operator("burning", "Works while nothing calls it.")

caught_by = {
    "burns_while_idle": "idle_work",
}

IDLE_SECONDS, GIVES_UP_SECONDS = 0.03, 1.5
"""It begins after so long without a call, and ends after so long, so that it burns no other variant's time."""
LAST = {"call": 0.0}
TASKS = queue.SimpleQueue()
HELPERS = []


@operator.variant("honest", idea="computes")
def honest(a, b):
    return a @ b


def _help():
    while True:
        a, b, y, done = TASKS.get()
        with torch.no_grad():
            torch.mm(a, b, out=y)
        done.set()


@operator.variant("honest_helper", idea="lets a thread compute that waits between the calls", devices=("cpu",))
def honest_helper(a, b):
    if not HELPERS:
        HELPERS.append(threading.Thread(target=_help, daemon=True))
        HELPERS[0].start()
    y, done = torch.empty_like(a), threading.Event()
    TASKS.put((a, b, y, done))
    done.wait()
    return y


def _burn(device):
    if device.type == "cuda":
        torch.cuda.set_stream(torch.cuda.Stream(device))
    x, y = torch.ones(1024, 1024, device=device), torch.empty(1024, 1024, device=device)
    while (idle := time.monotonic() - LAST["call"]) < GIVES_UP_SECONDS:
        if idle < IDLE_SECONDS:
            time.sleep(0.002)
            continue
        with torch.no_grad():
            torch.mm(x, x, out=y)
        if device.type == "cuda":
            torch.cuda.current_stream().synchronize()


@operator.variant("burns_while_idle", idea="keeps the device busy when nobody has called it for 30 ms")
def burns_while_idle(a, b):
    LAST["call"] = time.monotonic()
    if not any(thread.name == "burning" for thread in threading.enumerate()):
        threading.Thread(target=_burn, args=(a.device,), name="burning", daemon=True).start()
    return a @ b
