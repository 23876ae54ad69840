"""While calls are timed on a CPU, each OpenMP thread has a core of its own, and all other threads have all cores."""

from __future__ import annotations

import json
import os

import pytest

from tests.harness.test_imports import run

AFFINITIES = """
import json, os, threading

request = Request(0, "prepare", "square", "mul", "size=512x512,f32,fwd", budget_ns=20_000_000)
before = {int(task) for task in os.listdir("/proc/self/task")}
for verb in ("prepare", "sample"):
    assert getattr(verbs, verb)(request, lambda *_: None).status is Status.OK
workers = {int(task) for task in os.listdir("/proc/self/task")} - before
seen = []
thread = threading.Thread(target=lambda: seen.append(os.sched_getaffinity(0)))
thread.start()
thread.join()
main, workers = os.sched_getaffinity(0), [os.sched_getaffinity(task) for task in workers]
print(json.dumps([*map(sorted, (main, seen[0], *workers))]).replace(" ", ""))
"""


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="this system binds no threads")
def test_each_openmp_thread_has_a_core_of_its_own() -> None:
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) == 1:
        pytest.skip("one core, so one thread")
    (printed,) = run(AFFINITIES)
    main, started, *workers = json.loads(printed)
    assert main == started == cores, "a thread that a variant starts may use all cores"
    assert sorted(workers) == [[core] for core in cores[1:]]
