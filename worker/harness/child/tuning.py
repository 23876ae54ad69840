"""Compiles the candidates of Triton's autotuners at the same time, before they are timed one after the other.

An autotuner compiles each candidate when its turn to be timed comes, and has the device meanwhile. Compilers need the
device not at all, and most of their work runs in other processes or without the interpreter's lock.
"""

from __future__ import annotations

import importlib
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

_MARK = "_warpwatch_candidates"


def compile_candidates_at_once() -> None:
    """Does so for every autotuner of this process, where Triton is loaded and can; calling it again changes nothing."""
    module = sys.modules.get("triton.runtime.autotuner")
    if module is None or hasattr(module.Autotuner, _MARK):
        return
    try:
        mode = importlib.import_module("triton.runtime._async_compile").AsyncCompileMode
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
            with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool, mode(pool, ignore_errors=True):
                for candidate in candidates:
                    # What cannot be compiled fails again when it is timed, which the autotuner takes note of.
                    with suppress(Exception):
                        tuner.fn.run(*arguments, **{**meta, **candidate.all_kwargs(), "warmup": True})
        return bench(tuner, *arguments, config=config, **meta)

    module.Autotuner.prune_configs, module.Autotuner._bench = remembering, prepared
    setattr(module.Autotuner, _MARK, ())
