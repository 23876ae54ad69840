"""Autotuners compile their candidates at once, and their choices are recorded while a check runs."""

from __future__ import annotations

import importlib
import os
import select
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.worker.jailed_code import isolated_host, run
from warpwatch.contract.measurement import TunedCandidate, TunedChoice
from warpwatch.worker.harness.child import tuning
from warpwatch.worker.harness.child.tuning import compile_candidates_at_once
from warpwatch.worker.harness.profile.choices import recorded_choices

triton = pytest.importorskip("triton")
autotuner = importlib.import_module("triton.runtime.autotuner")
compiler = importlib.import_module("triton.backends.compiler")
language = importlib.import_module("triton.language")


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


class Driver:
    """Names a device; only the process that has it may ask."""

    def __init__(self) -> None:
        self.process = os.getpid()

    def get_current_target(self) -> Any:
        assert os.getpid() == self.process, "CUDA does not survive a fork"
        return compiler.GPUTarget("cuda", 90, 32)

    def get_current_device(self) -> int:
        assert os.getpid() == self.process, "CUDA does not survive a fork"
        return 0

    def get_current_stream(self, _device: int) -> int:
        return 0


@pytest.fixture
def tuned(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Candidates are compiled in parallel, for a device that this machine lacks, into a cache of the test's own."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(autotuner.driver, "_active", Driver())
    for name in ("prune_configs", "_bench"):
        monkeypatch.setattr(autotuner.Autotuner, name, vars(autotuner.Autotuner)[name])
    compile_candidates_at_once()
    compile_candidates_at_once()
    yield
    del autotuner.Autotuner._warpwatch_candidates


def scale(x, y, n, block: language.constexpr):  # type: ignore[no-untyped-def,name-defined]
    offsets = language.program_id(0) * block + language.arange(0, block)
    if language.target_info.is_cuda():
        language.store(y + offsets, language.load(x + offsets, offsets < n) * 2, offsets < n)


@pytest.mark.usefixtures("tuned")
def test_processes_compile_all_candidates_before_one_is_timed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    log = tmp_path / "log"

    def note(cache_hit: bool, **_facts: Any) -> None:
        with log.open("a") as lines:
            lines.write(f"{os.getpid()} {cache_hit}\n")

    monkeypatch.setattr(triton.knobs.compilation, "listener", note)
    configs = [triton.Config({"block": 64 << index}) for index in range(8)]
    jitted = triton.heuristics({})(triton.jit(scale))
    # A warm-up compiles and launches nothing, so that each candidate is "timed" by its compilation.
    tuner = triton.autotune(configs, ["n"], do_bench=lambda call, quantiles: call() or [1.0] * 3)(jitted)
    tensor = triton.runtime.jit.MockTensor(torch.float32)
    tuner.run(tensor, tensor, 4096, grid=(1,), warmup=True)
    lines = [line.split() for line in log.read_text().splitlines()]
    compiled = [pid for pid, hit in lines if hit == "False"]
    assert len(set(compiled)) == 8, "each candidate by a process"
    assert str(os.getpid()) not in compiled
    assert lines[8:] == [[str(os.getpid()), "True"]] * 8, "this process finds them in its cache"
    assert tuner.cache
    jitted.fn.device_caches.clear()
    tuner.cache.clear()
    tuner.run(tensor, tensor, 4096, grid=(1,), warmup=True)
    again = [line.split() for line in log.read_text().splitlines()][16:]
    assert {(pid, hit) for pid, hit in again} == {(str(os.getpid()), "True")}, "what is cached needs no process"


class Kernel:
    """Hands its compilations to the mode that is active, as Triton's kernels do."""

    def __init__(self, compilers: dict[int, Callable[[], Any]]) -> None:
        self.compilers = compilers
        self.timed: list[int] = []

    def run(self, *_arguments: Any, warmup: bool, **options: Any) -> None:
        if not warmup:
            self.timed.append(options["BLOCK"])
            return
        mode = importlib.import_module("triton.runtime._async_compile").active_mode.get()
        compiled = self.compilers[options["BLOCK"]]
        with pytest.MonkeyPatch.context() as patch:
            if compiled.__name__ == "hang":
                patch.setattr(tuning, "LIMIT_SECONDS", 0.5)
            assert mode.submit(str(options["BLOCK"]), compiled, None) is None


@pytest.mark.usefixtures("tuned")
def test_a_compiler_that_crashes_or_hangs_costs_its_candidate() -> None:
    receiving, sending = os.pipe()

    def crash() -> None:
        signal.raise_signal(signal.SIGUSR1)

    def hang() -> None:
        subprocess.run(["sleep", "600"], check=False, pass_fds=[sending])

    def fail() -> None:
        raise ValueError("too large")

    kernel = Kernel({32: fail, 64: crash, 128: lambda: None, 256: hang})
    configs = [autotuner.Config({"BLOCK": block}) for block in kernel.compilers]
    tuner = autotuner.Autotuner.__new__(autotuner.Autotuner)
    state: dict[str, Any] = {"configs": configs, "fn": kernel, "base_fn": Kernel, "nargs": {}, "cache": {}}
    state |= {"keys": ["n"], "arg_names": ["n"], "early_config_prune": None, "perf_model": None}
    state |= {"pre_hook": lambda *_, **__: None, "post_hook": lambda *_, **__: None, "cache_results": False}
    tuner.__dict__.update(state, _do_bench=lambda call, quantiles: call() or [1.0, 1.0, 1.0])
    tuner.run(1, grid=(1,), warmup=False)
    assert kernel.timed == [32, 128, 32], "the error of a compiler that raises is the tuner's to see"
    assert {configs[1], configs[3]} == {config for config, times in tuner.configs_timings.items() if times[0] > 1}
    os.close(sending)
    assert select.select([receiving], [], [], 5)[0], "the program that hangs is gone"
    os.close(receiving)


def test_a_child_may_compile_in_processes(tmp_path: Path) -> None:
    host = isolated_host(tmp_path / "home")
    code = """
import os
from warpwatch.worker.harness.child import tuning
tuning._is_cached = lambda key: False
driver = type("Driver", (), {"get_current_target": lambda driver: None})()
compilers = tuning._Compilers(driver)
for compilers.candidate in range(3):
    name = os.path.join(os.environ["TMPDIR"], str(compilers.candidate))
    compilers.submit("", lambda: open(name, "w").write(str(os.getpid())))
compilers.finish()
pids = {open(os.path.join(os.environ["TMPDIR"], str(candidate))).read() for candidate in range(3)}
print(len(pids - {str(os.getpid())}), compilers.failed)
"""
    assert run(host, tmp_path / "root", code) == ["3 []"], "by three processes, none of which failed"
