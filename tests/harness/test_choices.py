"""Autotuners compile their candidates at once, and their choices are recorded while a check runs."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from warpwatch.contract.measurement import TunedCandidate, TunedChoice
from warpwatch.worker.harness.child.tuning import compile_candidates_at_once
from warpwatch.worker.harness.profile.choices import recorded_choices

autotuner = pytest.importorskip("triton.runtime.autotuner")


def test_the_choice_and_its_fastest_candidates() -> None:
    configs = [autotuner.Config({"BLOCK": block}, num_warps=4) for block in (64, 128, 256)]
    times = dict(zip(configs, ([0.003, 0, 0], [0.001, 0, 0], [float("inf")] * 3), strict=True))
    tuner = autotuner.Autotuner.__new__(autotuner.Autotuner)
    state = {"configs": configs, "configs_timings": times, "best_config": configs[1]}
    tuner.__dict__.update(state, base_fn=SimpleNamespace(__name__="rows"))
    original = autotuner.Autotuner.run
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(autotuner.Autotuner, "run", lambda *_arguments, **_options: "result")
        plain = autotuner.Autotuner.run
        with recorded_choices() as choices:
            assert tuner.run(1) == "result"
        assert autotuner.Autotuner.run is plain
    assert autotuner.Autotuner.run is original
    expected = [TunedCandidate(str(configs[1]), 1000.0), TunedCandidate(str(configs[0]), 3000.0)]
    assert choices == [TunedChoice("rows", str(configs[1]), expected, 3)]


class Kernel:
    """Notes what is compiled and what is run; one candidate cannot be compiled."""

    def __init__(self) -> None:
        self.done: list[tuple[str, int]] = []

    def run(self, *_arguments: Any, warmup: bool, **options: Any) -> None:
        self.done.append(("compile" if warmup else "run", options["BLOCK"]))
        if options["BLOCK"] == 128 and warmup:
            raise ValueError("too large")


def test_all_candidates_are_compiled_before_one_is_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("prune_configs", "_bench"):
        monkeypatch.setattr(autotuner.Autotuner, name, vars(autotuner.Autotuner)[name])
    compile_candidates_at_once()
    compile_candidates_at_once()
    try:
        kernel = Kernel()
        configs = [autotuner.Config({"BLOCK": block}) for block in (64, 128, 256)]
        tuner = autotuner.Autotuner.__new__(autotuner.Autotuner)
        state: dict[str, Any] = {"configs": configs, "fn": kernel, "base_fn": Kernel, "nargs": {}, "cache": {}}
        state |= {"keys": ["n"], "arg_names": ["n"], "early_config_prune": None, "perf_model": None}
        state |= {"pre_hook": lambda *_, **__: None, "post_hook": lambda *_, **__: None, "cache_results": False}
        tuner.__dict__.update(state, _do_bench=lambda call, quantiles: call() or [1.0, 1.0, 1.0])
        tuner.run(1, grid=(1,), warmup=False)
        compiled, timed = kernel.done[:3], kernel.done[3:]
        assert compiled == [("compile", block) for block in (64, 128, 256)]
        assert {kind for kind, _ in timed} == {"run"}
        tuner.run(1, grid=(1,), warmup=False)
        assert kernel.done[-1] == ("run", 64), "nothing is compiled once the choice is known"
        assert len(kernel.done) == 8
    finally:
        del autotuner.Autotuner._warpwatch_candidates
