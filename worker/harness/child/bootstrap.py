"""Entry script of the child process.

It loads the service's `warpwatch` package from its folder, whatever the interpreter's environment has installed. The
commit may bring packages called kernels, worker, server or db, so the folder above the package is never on sys.path.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import importlib
import importlib.util
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

PACKAGE = Path(__file__).absolute().parents[3]
"""The folder of the service's `warpwatch`. Its `worker` may be a link, which must not be resolved."""
REPLY_VARIABLE = "WARPWATCH_REPLY_FD"
EXIT_CANNOT_START = 2
COMPILERS = ("torch._inductor.compile_fx", "torch.nn.attention.flex_attention")
GRADIENTS = ("torch.fx.experimental.symbolic_shapes",)
"""Modules that torch imports at the first gradient of a process, and with them all of sympy."""
LATE_IMPORTS = (
    "numpy",
    "sympy",
    "torch.profiler",
    "torch.testing",
    "torch.utils.cpp_extension",
    "torch.utils.flop_counter",
    "torch._dynamo",
    *COMPILERS,
    "torch._inductor.codegen.cpp",
    "torch._inductor.codegen.triton",
    "triton",
    "triton.compiler",
    "triton.runtime.interpreter",
)
"""Modules that kernel code and torch's compilers import later than at a child's start."""


def parse_arguments(words: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Checks, benches and profiles the operators of one commit.")
    parser.add_argument("--root", type=Path, required=True, help="the commit's worktree")
    parser.add_argument("--operators", default="kernels", help="folder of operator files in it")
    parser.add_argument("--native", default="csrc", help="folder of native sources in it")
    parser.add_argument("--measured", type=Path, action="append", help="folder of the packages that are measured")
    parser.add_argument("--packages", default="", help="names of these packages, separated by commas")
    parser.add_argument("--contract", type=int, default=1, help="contract its operator files were written for")
    parser.add_argument("--device", default="cpu", help="cpu, or cuda:0 and so on")
    parser.add_argument("--libraries", type=Path, required=True, help="folder of the libraries that were built for it")
    parser.add_argument("--threads", type=int, default=0, help="CPU threads; 0 means one per core")
    parser.add_argument("--sanitize", default="", help="sanitizer that libraries are built for")
    parser.add_argument("--build", action="store_true", help="build libraries, and run no code of the commit")
    parser.add_argument("--import", dest="imports", action="store_true", help="import what children import, and exit")
    parser.add_argument(
        "--count", nargs=4, metavar=("OPERATOR", "VARIANT", "CASE", "SEED"), help="call once for ncu, and exit"
    )
    return parser.parse_args(words)


def load_package(name: str, folder: Path) -> None:
    """Import the package in `folder` as `name`, whatever sys.path says, unless the template of this child has."""
    if getattr(sys.modules.get(name), "__path__", None) == [str(folder)]:
        return
    spec = importlib.util.spec_from_file_location(
        name, folder / "__init__.py", submodule_search_locations=[str(folder)]
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)


def open_channels() -> tuple[IO[str], IO[str]]:
    """(requests, replies) on private descriptors, so that kernel code may read stdin and print."""
    requests = os.fdopen(os.dup(0), "r", encoding="utf-8")
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    descriptor = int(os.environ.pop(REPLY_VARIABLE))
    os.set_inheritable(descriptor, False)
    return requests, os.fdopen(descriptor, "w", encoding="utf-8")


def choose_cpus(threads: int) -> list[int]:
    """One allowed CPU per thread, on different physical cores as far as they go; 0 threads means one per core."""
    allowed = sorted(os.sched_getaffinity(0))
    first_of_core = [cpu for cpu in allowed if _lowest_sibling(cpu) == cpu]
    siblings = [cpu for cpu in allowed if _lowest_sibling(cpu) != cpu]
    return (first_of_core + siblings)[: threads or max(1, len(first_of_core))]


def _lowest_sibling(cpu: int) -> int:
    try:
        text = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list").read_text()
    except OSError:
        return cpu
    return int(text.replace("-", ",").split(",")[0])


def pin(threads: int) -> tuple[int, int]:
    """Pins this process; returns (threads to use, CPUs available before). Call it before torch starts threads."""
    if not hasattr(os, "sched_setaffinity"):
        available = os.cpu_count() or 1
        return threads or available, available
    available = len(os.sched_getaffinity(0))
    cpus = choose_cpus(threads)
    try:
        os.sched_setaffinity(0, cpus)
    except OSError as error:
        print(f"Warpwatch could not pin its threads: {error}", file=sys.stderr)
    return threads or len(cpus), available


def load_builder() -> Any:
    """The module `builder`, which needs no torch."""
    load_package("warpwatch", PACKAGE)
    return importlib.import_module("warpwatch.worker.harness.child.builder")


def load_harness(arguments: argparse.Namespace) -> Any:
    """Pins the process, sets its thread counts and returns the module `serve`."""
    arguments.threads, arguments.cores = pin(arguments.threads)
    os.environ["OMP_NUM_THREADS"] = os.environ["MKL_NUM_THREADS"] = str(arguments.threads)
    load_package("warpwatch", PACKAGE)
    # What an import makes stays. Looking for garbage meanwhile takes a tenth of the time of `import torch`, and the
    # first look afterwards takes 70 ms and would copy all pages that a fork shares with its template.
    gc.disable()
    try:
        return importlib.import_module("warpwatch.worker.harness.child.serve")
    finally:
        gc.freeze()
        gc.enable()


def load_modules(names: Sequence[str]) -> None:
    """Imports these modules of torch, with the collector as in `load_harness`."""
    gc.disable()
    try:
        for name in names:
            importlib.import_module(name)
    finally:
        gc.freeze()
        gc.enable()


def import_everything(arguments: argparse.Namespace) -> None:
    """Imports what children import at their start and later, so that Python stores its byte code."""
    load_builder()
    load_harness(arguments)
    for name in LATE_IMPORTS:
        with contextlib.suppress(Exception):
            importlib.import_module(name)


def main() -> int:
    arguments = parse_arguments(sys.argv[1:])
    if arguments.imports:
        import_everything(arguments)
        return 0
    if arguments.count:
        load_harness(arguments).count_once(arguments)
        return 0
    requests, replies = open_channels()
    if arguments.build:
        status: int = load_builder().serve(arguments, requests, replies)
        return status
    # Compilers and other programs started from here run without a sanitizer's runtime.
    os.environ.pop("LD_PRELOAD", None)
    try:
        harness = load_harness(arguments)
        server = harness.HarnessServer(arguments, requests, replies)
    except Exception as error:  # noqa: BLE001 - any error at start-up must reach the parent as one line.
        message = f"{sys.executable}: {type(error).__name__}: {error}"
        replies.write(json.dumps({"event": "fatal", "message": message}) + "\n")
        replies.flush()
        return EXIT_CANNOT_START
    code: int = server.run()
    return code


if __name__ == "__main__":
    sys.exit(main())
