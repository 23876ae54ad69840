"""Checks all CUDA code of this checkout: `python -m tests.cuda_code`; no GPU is needed.

nvcc compiles device code to machine code of one architecture, and the C++ compiler checks the bindings. The host's half
of a source and linking would take as long again and more, so those are left to `warpwatch build`, which `make nightly`
runs for all architectures. Sources that only instantiate templates are compiled together, because they share headers,
which take most of their time.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from warpwatch import _toolchain, native

SOURCES = Path(__file__).parent.parent / "csrc"
ARCH = _toolchain.ARCH_SPECIFIC[90]
INSTANTIATION_LINES = 6
"""Longer sources have names of their own, which would meet those of another."""


def main() -> int:
    sources = [path for path in sorted(SOURCES.glob("*/*")) if path.suffix in (".cpp", ".cu")]
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(os.cpu_count()) as pool:
        nvcc, cxx = _toolchain.cuda_compiler(Path(folder)), _toolchain.cxx_compiler(Path(folder))
        if nvcc is None:
            print("no CUDA compiler: put nvcc of the CUDA toolkit on PATH or set CUDA_HOME")
            return 1
        device = [nvcc.path, "-ccbin", cxx.path, *native.NVCC_FLAGS, "--Ofast-compile=max", "-cubin"]
        device += [f"-gencode=arch=compute_{ARCH},code=sm_{ARCH}", f"-I{SOURCES}", "--output-directory"]
        include = ["-isystem", str(_toolchain.torch().include), f"-I{SOURCES}"]
        # Every binding begins with torch's headers, which take four fifths of its check.
        header = Path(folder, "bindings.h")
        header.write_text('#include "common/tensor.h"\n')
        host = [cxx.path, *native.CXX_FLAGS, *include]
        precompiled = [*host, "-x", "c++-header", str(header), "-o", f"{header}.gch"]
        host += ["-fsyntax-only", "-include", str(header)]

        def runs(command: list[str]) -> bool:
            done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
            if done.returncode != 0:
                print(done.stdout, flush=True)
            return done.returncode == 0

        def compiles(source: Path) -> bool:
            kept = Path(folder, "cubins", source.parent.name)
            kept.mkdir(parents=True, exist_ok=True)
            return runs([*device, str(kept), str(source)] if source.suffix == ".cu" else [*host, str(source)])

        units = _join_instantiations(sources, Path(folder))
        results = pool.map(compiles, units) if runs(precompiled) else []
        compiled = sum(len(joined) for joined, is_right in zip(units.values(), results, strict=False) if is_right)
    print(f"CUDA code: {compiled} of {len(sources)} sources compile")
    return 0 if compiled == len(sources) > 0 else 1


def _join_instantiations(sources: list[Path], folder: Path) -> dict[Path, list[Path]]:
    """The files to compile, each with the sources that it consists of."""
    units: defaultdict[Path, list[Path]] = defaultdict(list)
    for source in sources:
        lines = source.read_text().splitlines()
        is_joined = source.suffix == ".cu" and len(lines) <= INSTANTIATION_LINES
        units[folder / f"{source.parent.name}_instantiations.cu" if is_joined else source].append(source)
    for unit, joined in units.items():
        if unit.parent == folder:
            unit.write_text("".join(f'#include "{source}"\n' for source in joined))
    return units


if __name__ == "__main__":
    sys.exit(main())
