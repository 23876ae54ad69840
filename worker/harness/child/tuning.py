"""Compiles the candidates of Triton's autotuners at the same time, before they are timed one after the other.

An autotuner compiles each candidate when its turn to be timed comes, and has the device meanwhile. Compilers need the
device not at all, but they hold the interpreter's lock, so each candidate gets a process.
"""

from __future__ import annotations

import gc
import hashlib
import importlib
import multiprocessing
import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from time import monotonic
from typing import Any

LIMIT_SECONDS = 120.0
"""Longest time that the compilation of one candidate may take."""
_MARK = "_warpwatch_candidates"
_FAILED = "_warpwatch_failed"


class _Compilers:
    """Processes that compile candidates into Triton's cache, at most one per core. It stands where Triton expects its
    own asynchronous compilation, which has threads."""

    def __init__(self, driver: Any) -> None:
        self.candidate: Any = None
        self.failed: list[Any] = []
        self._driver, self._target = driver, driver.get_current_target()
        self._running: dict[BaseProcess, tuple[Any, int, float]] = {}

    def submit(self, key: str, compile_kernel: Callable[[], Any], *_callbacks: Any) -> None:
        """Triton calls this in place of its compiler. It takes the None for a kernel that is not compiled yet, and
        finds the kernel in its cache when the candidate is timed."""
        if _is_cached(key):
            return
        while len(self._running) >= len(os.sched_getaffinity(0)):
            self._reap()
        process = multiprocessing.get_context("fork").Process(target=self._compile, args=(compile_kernel,), daemon=True)
        process.start()
        assert process.pid is not None
        # What hangs may be a program that the process has started, which ends with its group. Whichever of the two is
        # first makes the group.
        os.setpgid(process.pid, 0)
        self._running[process] = self.candidate, process.pid, monotonic() + LIMIT_SECONDS

    def finish(self) -> None:
        while self._running:
            self._reap()

    def _compile(self, compile_kernel: Callable[[], Any]) -> None:
        """The life of a process. CUDA does not survive a fork: nothing may be freed here, and the driver may not be
        asked for the device."""
        os.setpgid(0, 0)
        gc.disable()
        self._driver.get_current_target = lambda: self._target
        try:
            compile_kernel()
        except Exception:  # noqa: BLE001 - the candidate fails again when it is timed, which the autotuner takes note of.
            sys.exit(1)

    def _reap(self) -> None:
        """Waits until a process ends or has had its time."""
        first = min(deadline for _, _, deadline in self._running.values())
        wait([process.sentinel for process in self._running], max(0.0, first - monotonic()))
        for process, (candidate, group, deadline) in list(self._running.items()):
            if late := process.exitcode is None and monotonic() >= deadline:
                os.killpg(group, signal.SIGKILL)
                process.join()
            if process.exitcode is not None:
                del self._running[process]
                # The kernel kills a process where memory is short; alone, the candidate may have enough.
                if late or (process.exitcode < 0 and process.exitcode != -signal.SIGKILL):
                    self.failed.append(candidate)


def compile_candidates_at_once() -> None:
    """Does so for every autotuner of this process, where Triton is loaded and can; calling it again changes nothing."""
    module = sys.modules.get("triton.runtime.autotuner")
    if module is None or hasattr(module.Autotuner, _MARK):
        return
    try:
        active = importlib.import_module("triton.runtime._async_compile").active_mode
    except (ImportError, AttributeError):
        # Older versions compile one at a time.
        return
    prune, bench = module.Autotuner.prune_configs, module.Autotuner._bench

    def remembering(tuner: Any, *arguments: Any) -> Any:
        configs = prune(tuner, *arguments)
        setattr(tuner, _MARK, list(configs))
        return configs

    def prepared(tuner: Any, *arguments: Any, config: Any, **meta: Any) -> Any:
        # Only the first candidate that is timed finds them: nothing is compiled where the choice is known.
        candidates, tuner.__dict__[_MARK] = tuner.__dict__.get(_MARK, ()), ()
        if len(candidates) > 1:
            compilers = _Compilers(module.driver.active)
            before = active.set(compilers)
            try:
                for compilers.candidate in candidates:
                    # What fails here fails again when the candidate is timed.
                    with suppress(Exception):
                        tuner.fn.run(*arguments, **{**meta, **compilers.candidate.all_kwargs(), "warmup": True})
            finally:
                active.reset(before)
                compilers.finish()
            tuner.__dict__[_FAILED] = compilers.failed
        if config in tuner.__dict__.get(_FAILED, ()):
            # Its compiler crashed or hung, and would take this process with it.
            return [float("inf")] * 3
        return bench(tuner, *arguments, config=config, **meta)

    module.Autotuner.prune_configs, module.Autotuner._bench = remembering, prepared
    setattr(module.Autotuner, _MARK, ())


def _is_cached(key: str) -> bool:
    """Whether Triton's cache has a kernel: its last file names the others."""
    cache = importlib.import_module("triton.runtime.cache")
    manager = cache.get_cache_manager(hashlib.sha256(key.encode()).hexdigest())
    return any(Path(manager.cache_dir).glob("__grp__*"))
