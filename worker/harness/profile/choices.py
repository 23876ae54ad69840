"""Records what Triton's autotuners choose during a call, with the times of the candidates where they are known."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from warpwatch.contract.measurement import LONGEST_NS, MOST_LAUNCHED, TunedCandidate, TunedChoice

_MOST_CANDIDATES = 8
"""The fastest of them are kept."""
_LONGEST = 500


@contextmanager
def recorded_choices() -> Iterator[list[TunedChoice]]:
    """Fills the list with the choice of every autotuner that runs within the block, once the block has ended.

    Only a check does this: while it lasts each launch of a tuned kernel takes longer.
    """
    choices: list[TunedChoice] = []
    seen: dict[tuple[int, str], tuple[Any, Any]] = {}
    module = sys.modules.get("triton.runtime.autotuner")
    if module is None:
        yield choices
        return
    run = module.Autotuner.run

    def observed(tuner: Any, *arguments: Any, **options: Any) -> Any:
        result = run(tuner, *arguments, **options)
        if len(tuner.configs) > 1:
            # Without a second tuning since, the times are those of this choice.
            seen[id(tuner), str(tuner.best_config)] = tuner, tuner.best_config
        return result

    module.Autotuner.run = observed
    try:
        yield choices
    finally:
        module.Autotuner.run = run
        choices += [_choice(tuner, config) for tuner, config in seen.values()][:MOST_LAUNCHED]


def _choice(tuner: Any, chosen: Any) -> TunedChoice:
    timings = getattr(tuner, "configs_timings", None) or {}
    times = sorted((_milliseconds(time) * 1e6, str(config)[:_LONGEST]) for config, time in timings.items())
    candidates = [TunedCandidate(name, ns) for ns, name in times if 0 < ns <= LONGEST_NS][:_MOST_CANDIDATES]
    # An autotuner keeps the times of its last tuning alone, which may have been for other arguments.
    config = str(chosen)[:_LONGEST]
    is_own = bool(candidates) and candidates[0].config == config
    name = str(tuner.base_fn.__name__)[:_LONGEST]
    return TunedChoice(name, config, candidates if is_own else [], len(tuner.configs))


def _milliseconds(time: Any) -> float:
    """Triton keeps the median with two quantiles, or one number."""
    return float(time[0] if isinstance(time, (list, tuple)) else time)
