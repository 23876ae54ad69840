"""Compiles the Triton kernels that operators launch for an NVIDIA GPU of capability 9.0, on a machine that has none.

A driver that only pretends stands in for the GPU's: Triton compiles what a call launches, with the types and values
that it is given, and the launch itself is written down. Tensors lie on the CPU and keep what they held.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import json
import os
import signal
import sys
import types
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed.tensor  # Modules use it without importing it, because some other one of their package does.
import triton
from triton.backends.compiler import GPUTarget
from triton.backends.driver import DriverBase
from triton.runtime.autotuner import Autotuner

from warpwatch import _fingerprint
from warpwatch.operator import Operator
from warpwatch.worker.harness.problem import SeededMaker

PROPERTIES = {
    "max_shared_mem": 232448,
    "max_num_regs": 65536,
    "multiprocessor_count": 132,
    "warpSize": 32,
    "sm_clock_rate": 1980000,
    "mem_clock_rate": 3201000,
    "mem_bus_width": 6144,
}
"""Of an H200, as Triton's own driver names them."""
_NAME = "NVIDIA H200"
_SECONDS = 900


class PretendedDriver(DriverBase):  # type: ignore[misc]  # Triton has no types
    """Stands in for a driver of Triton. launches: what was launched, in its order."""

    def __init__(self) -> None:
        self.launches: list[str] = []
        self.utils = types.SimpleNamespace(
            get_device_properties=lambda device: PROPERTIES,
            load_binary=self._load_binary,
            set_printf_fifo_size=lambda size: None,
        )
        self.get_current_device = lambda: 0
        self.set_current_device = lambda device: None
        self.get_current_stream = lambda device: 0
        self.get_device_capability = lambda device=None: (9, 0)

    @classmethod
    def is_active(cls) -> bool:
        return True

    def map_python_to_cpp_type(self, ty: str) -> str:
        return ty

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", 90, 32)

    def get_active_torch_device(self) -> torch.device:
        return torch.device("cpu")

    def get_device_interface(self) -> Any:
        return torch.cuda

    def get_benchmarker(self) -> Any:
        """Each candidate runs once and takes the same time, so that an autotuner compiles all and takes the first."""

        def run_once(call: Any, *_arguments: Any, **_options: Any) -> list[float]:
            call()
            return [1.0, 1.0, 1.0]

        return run_once

    def launcher_cls(self, _source: Any, metadata: Any) -> Any:
        def write_down(x: int, y: int, z: int, _stream: Any, function: str, *rest: Any) -> None:
            # After packed metadata, launch metadata and two hooks come the arguments.
            values = [str(value) for value in rest[4:] if isinstance(value, (bool, int, float, str))]
            self.launches.append(f"{function} {x},{y},{z} {metadata.num_warps} {' '.join(values)}")

        return write_down

    def _load_binary(self, name: str, cubin: bytes, shared: int, _device: int) -> tuple[int, str, int, int, int]:
        code = _fingerprint.cubin_code(cubin, name)
        function = f"{name} {code.hash if code else hashlib.sha256(cubin).hexdigest()} {shared}"
        return 1, function, 32, 0, 1024


def pretend(most_candidates: int) -> PretendedDriver:
    """Lets this process take itself for one with an H200, until it ends. most_candidates: of each autotuner so many are
    compiled, the first and the last among them; their list counts as a whole."""
    driver = PretendedDriver()
    triton.runtime.driver.set_active(driver)
    cuda: Any = torch.cuda
    cuda.is_available = lambda: True
    cuda.device_count = lambda: 1
    cuda.current_device = lambda: 0
    cuda.get_device_capability = lambda device=None: (9, 0)
    cuda.get_device_name = lambda device=None: _NAME
    cuda.get_device_properties = lambda device=None: types.SimpleNamespace(
        name=_NAME, major=9, minor=0, multi_processor_count=132, total_memory=150 * 2**30, warp_size=32
    )
    cuda.device = lambda device=None: contextlib.nullcontext()
    cuda.synchronize = lambda device=None: None
    tuner_class: Any = Autotuner
    prune = tuner_class.prune_configs

    def some(tuner: Any, arguments: dict[str, Any]) -> list[Any]:
        configs: list[Any] = prune(tuner, arguments)
        driver.launches.append(" | ".join(map(str, configs)))
        step = max(1, (len(configs) - 1) // max(1, most_candidates - 1))
        return configs[::step][: most_candidates - 1] + configs[-1:] if len(configs) > most_candidates else configs

    def try_all(_tuner: Any, _key: Any, _configs: Any, benchmark: Any) -> bool:
        """Whatever an earlier process chose, so that each process launches the same."""
        benchmark()
        return False

    tuner_class.prune_configs = some
    tuner_class.check_disk_cache = try_all
    return driver


def import_bare(root: Path, packages: Sequence[str]) -> None:
    """Makes these packages, parents first, importable without running their `__init__`, which may import all of their
    modules and what these need."""
    for name in packages:
        parent, _, last = name.rpartition(".")
        package = types.ModuleType(name)
        package.__path__ = [str(root / name.replace(".", "/"))]
        # What a module asks its package for most often; the commit's own is in the `__init__` that does not run.
        package.__version__ = "0.0"  # type: ignore[attr-defined]
        sys.modules[name] = package
        if parent:
            setattr(sys.modules[parent], last, package)


def launched(root: Path, definitions: Path, operator: str, suite: str, driver: PretendedDriver) -> str:
    """A digest of what the variants of an operator launch, forward and backward, in each case of a suite; ValueError
    where that is nothing."""
    sys.path[:0] = [str(root), str(definitions)]
    module = importlib.import_module(f"operators.{operator}")
    described: Operator = module.operator
    driver.launches.clear()
    for case in described.cases.get(suite) or described.cases["quick"]:
        for variant in described.variants.values():
            if variant.native or variant.reason_unsupported(case, "cuda") is not None:
                continue
            driver.launches.append(f"{variant.name} {case.key}")
            inputs = described.inputs(case, SeededMaker(0, torch.device("cpu"), case.precision))
            wanted = [] if case.direction == "fwd" else [inputs[name] for name in described.gradients]
            for tensor in wanted:
                tensor.requires_grad_()
            results = variant.function(**inputs)
            if wanted:
                first = results[0] if isinstance(results, tuple) else results
                torch.autograd.grad(first, wanted, torch.ones_like(first), allow_unused=True)
    if not any("," in line for line in driver.launches):
        raise ValueError("nothing is launched")
    return _fingerprint.digest(driver.launches)


@dataclass(frozen=True, slots=True)
class Compiled:
    """digest: of what an operator launches; "" where that is unknown, for this reason. imported: the files of the
    commit that were imported meanwhile, relative to the folder that holds its packages."""

    digest: str
    reason: str
    imported: list[str]


def compile_in_fork(
    root: Path, definitions: Path, operator: str, suite: str, most_candidates: int, bare: Sequence[str] = ()
) -> Compiled:
    """What the operator launches, found in a process of its own, which imports the commit below `root`, and of the
    packages in `bare` only the modules that the operator needs."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        signal.alarm(_SECONDS)
        digest, reason = "", ""
        try:
            import_bare(root, bare)
            digest = launched(root, definitions, operator, suite, pretend(most_candidates))
        except BaseException as error:  # noqa: BLE001 - whatever the code of a commit raises, it is unknown
            reason = f"{type(error).__name__}: {error}"[:300]
        files = {Path(file) for module in list(sys.modules.values()) if (file := getattr(module, "__file__", None))}
        imported = sorted(str(file.relative_to(root)) for file in files if file.is_relative_to(root))
        with os.fdopen(writing, "w") as pipe:
            json.dump([digest, reason, imported], pipe)
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        text = pipe.read()
    os.waitpid(child, 0)
    return Compiled(*json.loads(text)) if text else Compiled("", "the process ended without an answer", [])
