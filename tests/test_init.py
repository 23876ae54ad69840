"""`warpwatch init` on small planted repositories: what it finds, what it writes, and what it refuses."""

from __future__ import annotations

import ast
import re
import runpy
import subprocess
import sys
import types
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner, Result

from tests.builders import run_git
from tests.worker.conftest import warpwatch
from warpwatch.cli.app import app
from warpwatch.operator import Operator, gap
from warpwatch.project import Project, parse_project
from warpwatch.worker.harness.problem import SeededMaker

LAUNCHES = """
import torch, triton
from . import kernels as k
from .kernels import add_kernel

open("/nowhere/at/all")  # whoever imports this fails


def forward(x, y, block=128):
    add_kernel[(1,)](x, y)


def double(x):
    k.twice_kernel[(x.numel(),)](x)


def harmless(x, table):
    return table[0](x)


class AddFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, y, block=128):
        return forward(x, y, block)


class FusedMulAdd(torch.autograd.Function):
    @staticmethod
    def setup_context(ctx, inputs, output): ...

    @staticmethod
    def forward(x, inputs):
        return double(x)


def _scale(x):
    k.twice_kernel[(1,)](x)
"""
KERNELS = """
import triton


@triton.jit
def add_kernel(x, y): ...


@triton.autotune(configs=[], key=[])
@triton.jit
def twice_kernel(x): ...
"""
CUSTOM = """
import torch
from torch.library import custom_op

lib = torch.library.Library("mine", "FRAGMENT")
lib.define("cube(Tensor x, int times=1, *, float scale) -> Tensor")
torch.library.define("mine::fourth", "(Tensor(a!) lambda) -> ()")


@custom_op("mine::square", mutates_args=())
def square(x: torch.Tensor, factor: float = 1.0) -> torch.Tensor:
    return x * x * factor
"""
POWER = """
import torch
from torch.library import custom_op


@custom_op("mine::power", mutates_args=())
def power(x: torch.Tensor, exponent: torch.types.Number) -> torch.Tensor:
    return x**exponent
"""
TRITON = {"src/lib/__init__.py": "", "src/lib/kernels.py": KERNELS, "src/lib/launch.py": LAUNCHES}
SETUP = """
from setuptools import setup
from torch.utils.cpp_extension import BuildExtension, CUDAExtension

open("ran", "w")
setup(
    name="fast", long_description=open("README.md").read(), packages=["fast"],
    ext_modules=[CUDAExtension("fast._C", ["csrc/fast.cpp"], include_dirs=["third_party/lib"])],
)
"""
BINDINGS = """
// m.def("commented", &commented);
torch::Tensor scale(const torch::Tensor& x, double factor = 2.0) { return x * factor; }

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
    m.def("scale", &scale, "Scales.");
    m.def("unknown", [](int n) { return n; });
    other.def("not_ours", &scale);
}
TORCH_LIBRARY(fast, library) {
    library.def("shift(Tensor x, "
                "int by, bool wrap=False) -> Tensor");
}
"""
GOOGLE = "#include <benchmark/benchmark.h>\nvoid f(benchmark::State& s) {}\nBENCHMARK(f);\n"
NVBENCH = "#include <nvbench/nvbench.cuh>\nvoid f(nvbench::state& s) {}\nNVBENCH_BENCH(f);\n"
PYTEST = "import lib\n\n\ndef test_double(benchmark):\n    benchmark(lib.double, 3)\n"
PROGRAMS = {
    "CMakeLists.txt": "project(p)\nadd_subdirectory(bench)\n",
    "bench/CMakeLists.txt": "add_executable(sum_bench sum.cpp more.cpp)\n",
    "bench/sum.cpp": GOOGLE,
    "bench/more.cpp": GOOGLE,
    "bench/copy.cu": NVBENCH,
    "lib.py": "def double(x):\n    return 2 * x\n",
    "tests/test_speed.py": PYTEST,
    "tests/test_right.py": "def test_double():\n    benchmark = 1\n    assert benchmark\n",
}


def plant(root: Path, files: Mapping[str, str]) -> Path:
    root.mkdir(exist_ok=True)
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    run_git(root, "init", "--quiet", "--initial-branch", "main")
    run_git(root, "add", "--all")
    run_git(root, "commit", "--quiet", "--message", "Start")
    return root


def init(*words: str | Path) -> Result:
    return CliRunner().invoke(app, ["init", *map(str, words)])


def written(folder: Path) -> tuple[Project, dict[str, ast.Module]]:
    """The project that was written, and the syntax of its operator files."""
    project = parse_project((folder / "warpwatch.toml").read_text())
    return project, {path.stem: ast.parse(path.read_text()) for path in (folder / project.operators).glob("*.py")}


def variant(tree: ast.Module) -> str:
    """What the variant of an operator file returns."""
    *_, function = tree.body
    assert isinstance(function, ast.FunctionDef)
    (statement,) = function.body
    assert isinstance(statement, ast.Return)
    assert statement.value is not None
    return ast.unparse(statement.value)


def test_functions_that_launch_triton_kernels(tmp_path: Path) -> None:
    root = plant(tmp_path / "repository", TRITON)
    result = init(root, "--output", tmp_path / "definitions")
    assert result.exit_code == 0, result.output
    project, operators = written(tmp_path / "definitions")
    assert project.measured is not None
    assert (project.measured.path, project.measured.packages, project.measured.build) == ("src", ("lib",), None)
    assert {name: variant(tree) for name, tree in operators.items()} == {
        "add": "AddFunction.apply(x, y)",
        "fused_mul_add": "FusedMulAdd.apply(x, inputs_)",
        "scale": "_scale(x)",
    }
    line = LAUNCHES.splitlines().index("class AddFunction(torch.autograd.Function):") + 1
    assert f"src/lib/launch.py:{line} " in result.output
    assert "operators/add.py" in result.output
    assert run_git(root, "status", "--porcelain") == "", "a definition beside the history leaves the checkout alone"


def test_operators_of_torch_library(tmp_path: Path) -> None:
    root = plant(tmp_path / "repository", {"mine/__init__.py": "", "mine/ops.py": CUSTOM, "tests/test_ops.py": CUSTOM})
    assert init(root).exit_code == 0
    project, operators = written(root)
    assert project.measured is not None
    assert project.measured.packages == ("mine",)
    assert {name: variant(tree) for name, tree in operators.items()} == {
        "cube": "torch.ops.mine.cube(x, scale=scale)",
        "fourth": "torch.ops.mine.fourth(lambda_)",
        "square": "square(x)",
    }


def test_native_modules_and_how_they_are_built(tmp_path: Path) -> None:
    files = {
        "setup.py": SETUP,
        "README.md": "",
        "docs/index.md": "",
        "fast/__init__.py": "",
        "csrc/fast.cpp": BINDINGS,
        "third_party/lib/lib.h": "",
    }
    root = plant(tmp_path / "repository", files)
    result = init(root)
    assert result.exit_code == 0, result.output
    assert not (root / "ran").exists(), "setup.py was run"
    project, operators = written(root)
    measured = project.measured
    assert measured is not None
    assert measured.build == "python setup.py build_ext --inplace"
    assert measured.sources == ("fast/**", "csrc/**")
    assert set(measured.inputs) == {
        "setup.py",
        "README.md",
        "third_party/lib/**",
        "fast/**",
        "csrc/**",
        "csrc/fast.cpp",
    }
    assert project.native != "csrc"
    calls = {name: variant(tree) for name, tree in operators.items()}
    assert calls.pop("unknown").startswith("gap(")
    assert calls == {"scale": "fast._C.scale(x, factor)", "shift": "torch.ops.fast.shift(x, by)"}


@pytest.mark.parametrize(
    ("name", "text", "start"),
    [
        ("pyproject.toml", '[build-system]\nbuild-backend = "scikit_build_core.build"\n', "pip install "),
        ("CMakeLists.txt", "project(p)\npybind11_add_module(_fast csrc/fast.cpp)\n", "cmake "),
        ("setup.py", "from setuptools import setup\nsetup(ext_modules=make())\n", "python setup.py "),
        ("setup.py", "from setuptools import setup\nsetup()\n", ""),
    ],
)
def test_the_build_command(name: str, text: str, start: str, tmp_path: Path) -> None:
    files = {"fast/__init__.py": "", "csrc/fast.cpp": BINDINGS, name: text}
    root = plant(tmp_path / "repository", files | {"tests/test_speed.py": PYTEST})
    assert init(root).exit_code == 0
    project = written(root)[0]
    assert project.measured is not None
    commands = [project.measured.build, project.programs[0].build]
    if start:
        assert all(command is not None and start in command for command in commands)
    else:
        assert commands == [None, None]


def test_benchmark_programs(tmp_path: Path) -> None:
    root = plant(tmp_path / "repository", PROGRAMS)
    assert init(root).exit_code == 0
    project, operators = written(root)
    assert operators == {}
    programs = {program.name: program for program in project.programs}
    formats = {name: program.format for name, program in programs.items()}
    assert formats == {"sum_bench": "google-benchmark", "copy": "nvbench", "speed": "pytest-benchmark"}
    assert programs["sum_bench"].command.startswith("$WARPWATCH_BUILD/sum_bench ")
    assert str(programs["sum_bench"].build).endswith("--target sum_bench")
    assert programs["speed"].build is None
    assert "tests/test_speed.py" in programs["speed"].command


def test_a_build_that_no_file_describes_fails_and_names_its_line(tmp_path: Path) -> None:
    root = plant(tmp_path / "repository", PROGRAMS)
    init(root)
    build = next(program.build for program in written(root)[0].programs if program.name == "copy")
    done = subprocess.run(["sh", "-c", str(build)], cwd=root, capture_output=True, text=True)
    lines = (root / "warpwatch.toml").read_text().splitlines()
    number = next(number for number, line in enumerate(lines, start=1) if "exit 1" in line)
    assert done.returncode == 1
    assert f"warpwatch.toml, line {number}:" in done.stderr
    assert "bench/copy.cu" in done.stderr


def test_programs_cannot_lie_beside_the_history(tmp_path: Path) -> None:
    root = plant(tmp_path / "repository", TRITON | {"tests/test_speed.py": PYTEST})
    assert init(root, "--output", tmp_path / "definitions").exit_code == 0
    assert written(tmp_path / "definitions")[0].programs == ()
    alone = plant(tmp_path / "alone", {"tests/test_speed.py": PYTEST})
    assert init(alone, "--output", tmp_path / "others").exit_code == 2
    assert not (tmp_path / "others").exists()


def test_a_package_without_kernels_gets_one_operator(tmp_path: Path) -> None:
    root = plant(tmp_path / "repository", {"plain/__init__.py": "", "plain/more.py": "", "tests/__init__.py": ""})
    assert init(root).exit_code == 0
    project, operators = written(root)
    assert project.measured is not None
    assert (project.measured.packages, set(operators)) == (("plain",), {"plain"})


def test_two_operators_of_one_name(tmp_path: Path) -> None:
    launch = "from lib.kernels import add_kernel\n\n\ndef add(x):\n    add_kernel[(1,)](x)\n"
    files = {"lib/__init__.py": "", "lib/kernels.py": KERNELS, "lib/ops.py": launch, "lib/gpu/ops.py": launch}
    root = plant(tmp_path / "repository", files)
    assert init(root).exit_code == 0
    assert set(written(root)[1]) == {"add", "gpu_add"}


def test_a_folder_called_operators_is_left_alone(tmp_path: Path) -> None:
    root = plant(tmp_path / "repository", TRITON | {"operators/theirs.py": ""})
    assert init(root).exit_code == 0
    assert written(root)[0].operators != "operators"
    assert [path.name for path in (root / "operators").iterdir()] == ["theirs.py"]


def test_a_repository_gets_a_manual_for_agents_unless_it_has_one(tmp_path: Path) -> None:
    root = plant(tmp_path / "repository", TRITON)
    assert "warpwatch.toml operators AGENTS.md" in init(root).output
    assert "warpwatch try" in (root / "AGENTS.md").read_text()
    other = plant(tmp_path / "other", TRITON | {"AGENTS.md": "ours"})
    result = init(other)
    assert (result.exit_code, (other / "AGENTS.md").read_text()) == (0, "ours")
    assert "stays as it is" in result.output
    assert "operators AGENTS.md" not in result.output


@pytest.mark.parametrize("name", ["warpwatch.toml", "operators/scale.py"])
def test_nothing_is_overwritten(name: str, tmp_path: Path) -> None:
    root, output = plant(tmp_path / "repository", TRITON), tmp_path / "definitions"
    (output / name).parent.mkdir(parents=True)
    (output / name).symlink_to(tmp_path / "nowhere")
    result = init(root, "--output", output)
    assert result.exit_code == 2
    assert name in result.output
    assert [path for path in output.rglob("*") if not path.is_dir()] == [output / name]
    assert not (tmp_path / "nowhere").exists()


def test_what_cannot_be_looked_at(tmp_path: Path) -> None:
    (tmp_path / "plain").mkdir()
    empty = plant(tmp_path / "empty", {"README.md": "words"})
    for folder in (tmp_path / "plain", tmp_path / "nowhere", empty):
        result = init(folder)
        assert result.exit_code == 2
        assert str(folder) in result.output
        assert not (folder / "warpwatch.toml").exists()


def test_hostile_files_are_passed_over(tmp_path: Path) -> None:
    secret = tmp_path / "secret.py"
    secret.write_text(CUSTOM)
    hostile = {
        "lib/broken.py": "def (",
        "lib/null.py": "\0",
        "lib/deep.py": "(" * 50_000,
        'lib/"""quoted.py': CUSTOM,
        "lib/line\nend.py": CUSTOM,
        "lib/torch.cpp": 'm.def("' * 20_000,
        "torch/__init__.py": CUSTOM,
        "pyproject.toml": "[broken",
    }
    root = plant(tmp_path / "repository", TRITON | {"src/" + name: text for name, text in hostile.items()})
    (root / "src" / "lib" / "linked.py").symlink_to(secret)
    (root / "src" / "linked").symlink_to(tmp_path)
    assert init(root).exit_code == 0
    project, operators = written(root)
    assert project.measured is not None
    assert project.measured.packages == ("lib",)
    assert set(operators) == {"add", "fused_mul_add", "scale"}


VENDOR = """
import torch, triton

from lib.kernels import add_kernel
from .shared import launch_options


def relu(x: torch.Tensor) -> torch.Tensor:
    add_kernel[(1,)](x, **launch_options)


def _internal(x):
    add_kernel[(1,)](x)


def scaled_sum(x, y, factor):
    add_kernel[(1,)](x, y)
"""
LIBRARY = {
    "lib/__init__.py": "from .ops import relu, scaled_sum\nfrom .other import unrelated\n",
    "lib/kernels.py": KERNELS,
    "lib/shared.py": "launch_options = {}\n",
    "lib/other.py": "def unrelated(x): ...\n",
    "lib/ops.py": VENDOR,
    "lib/backends/_ascend/ops.py": VENDOR,
    "lib/backends/_ascend/norm.py": VENDOR,
    "lib/test_ops.py": VENDOR.replace("relu", "tested"),
    "tests/test_ops.py": "from lib import scaled_sum\n",
}


def test_public_operators_with_tests_come_first_and_other_vendors_are_left_out(tmp_path: Path) -> None:
    root = plant(tmp_path / "repository", LIBRARY)
    result = init(root, "--output", tmp_path / "definitions", "--limit", "2")
    assert result.exit_code == 0, result.output
    assert set(written(tmp_path / "definitions")[1]) == {"relu", "scaled_sum"}
    found = [line.partition("→ operators/")[2] for line in result.output.splitlines() if "→" in line]
    assert found == ["scaled_sum.py", "relu.py"]
    assert "public, named in 2 files of tests, launches kernels" in result.output
    assert "of lower rank, not written without --limit 0: internal" in result.output
    assert "files for devices of other vendors, left out: 2 of ascend" in result.output
    assert init(root, "--output", tmp_path / "all", "--limit", "0").exit_code == 0
    assert set(written(tmp_path / "all")[1]) == {"relu", "scaled_sum", "internal"}


def test_each_operator_has_the_files_that_it_names_as_sources(tmp_path: Path) -> None:
    root = plant(tmp_path / "repository", LIBRARY)
    assert init(root, "--output", tmp_path / "definitions").exit_code == 0
    measured = written(tmp_path / "definitions")[0].measured
    assert measured is not None
    assert measured.sources_of("relu") == ("lib/ops.py", "lib/kernels.py", "lib/shared.py")
    assert measured.sources_of("no_such") == ("lib/**", "lib.py")


def test_one_list_names_each_gap_by_its_line(tmp_path: Path) -> None:
    root, output = plant(tmp_path / "repository", LIBRARY), tmp_path / "definitions"
    lines = init(root, "--output", output).output.splitlines()
    start = lines.index("left to fill:")
    rows = lines[start + 1 : lines.index("Then:")]
    path = output / "operators" / "scaled_sum.py"
    row = next(row for row in rows if str(path) in row)
    gaps = [number for number, line in enumerate(path.read_text().splitlines(), start=1) if 'gap("' in line]
    parts = ("inputs", "reference", "cost", "cases")
    listed = ", ".join(f"{part} (line {n})" for part, n in zip(parts, gaps, strict=True))
    assert row.endswith(f": {listed}; no test calls it")
    assert rows[-1].endswith("to compare with the documents: relu")
    assert "gap" not in (output / "operators" / "relu.py").read_text()


def test_modules_of_one_placeholder_are_told_apart_by_their_sources(tmp_path: Path) -> None:
    setup = """
import os
from setuptools import setup
from torch.utils.cpp_extension import CppExtension

second = [os.path.join("csrc", "second", "main.cpp")]
setup(ext_modules=[CppExtension("fast._A", ["csrc/first.cpp"]), CppExtension(name="fast._B", sources=second)])
"""
    text = "torch::Tensor {0}(torch::Tensor x) {{ return x; }}\n"
    text += 'PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {{ m.def("{0}", &{0}); }}\n'
    sources = {"csrc/first.cpp": text.format("relu"), "csrc/second/main.cpp": text.format("blur")}
    root = plant(tmp_path / "repository", {"setup.py": setup, "fast/__init__.py": "", **sources})
    assert init(root).exit_code == 0
    calls = {name: variant(tree) for name, tree in written(root)[1].items()}
    assert calls == {"relu": "fast._A.relu(x)", "blur": "fast._B.blur(x)"}


def test_exported_functions_stand_for_the_internal_operators_that_they_call(tmp_path: Path) -> None:
    """Nobody outside the package can make the arguments of its kernels, such as sorted rows."""
    setup = """
from setuptools import setup
from torch.utils.cpp_extension import CppExtension

setup(ext_modules=[CppExtension("fast._C", ["csrc/fast.cpp"])])
"""
    native = """
torch::Tensor isotonic(torch::Tensor s) { return s; }
PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("isotonic", &isotonic); }
TORCH_LIBRARY(fast, m) {
  m.def("knn(Tensor x, Tensor y, Tensor? ptr, int k) -> Tensor");
  m.def("walk(Tensor row, Tensor start, int length) -> Tensor");
}
static auto registry = torch::RegisterOperators().op("fast::version", [] { return 1; });
"""
    knn = """
import torch


def knn(x: torch.Tensor, y: torch.Tensor, k: int):
    return torch.ops.fast.knn(x, y, None, k)


def knn_graph(x: torch.Tensor, k: int):
    return knn(x, x, k)
"""
    walk = """
import torch


def walk(row: torch.Tensor, start: torch.LongTensor, length: int):
    \"\"\"Walks along edges.

    Args:
        row (LongTensor): Where they begin.
    \"\"\"
    return torch.ops.fast.walk(row, start, length)
"""
    sort = """
import torch

from ._C import isotonic as isotonic_cpu

_BY_DEVICE = {"cpu": isotonic_cpu}


class SoftSort(torch.autograd.Function):
    @staticmethod
    def forward(ctx, values):
        return _BY_DEVICE[values.device.type](values.sort()[0])


def soft_sort(values, strength=1.0):
    if len(values.shape) != 2:
        raise ValueError
    return SoftSort.apply(values)
"""
    exports = "from .knn import knn, knn_graph\nfrom .sort import *\nfrom .walk import walk\n"
    package = {"__init__.py": exports, "knn.py": knn, "sort.py": sort, "walk.py": walk}
    tests = """
from fast import knn, walk


def test_knn():
    for k in (1, 2):
        found = knn(x, y, k)


def test_walk():
    nodes = walk(row, start, 4)
    assert nodes.tolist() == [0, 1]
"""
    files = {"setup.py": setup, "csrc/fast.cpp": native, "tests/test_fast.py": tests}
    files |= {f"fast/{name}": text for name, text in package.items()}
    root = plant(tmp_path / "repository", files)
    result = init(root)
    assert result.exit_code == 0, result.output
    calls = {name: variant(tree) for name, tree in written(root)[1].items()}
    assert calls == {"knn": "knn(x, y, k)", "soft_sort": "soft_sort(values)", "walk": "walk(row, start, length)"}
    inputs = (root / "operators" / "walk.py").read_text()
    indices = 'make.integers(0, case["n"], case["n"])'
    assert f'{{"row": {indices}, "start": {indices}, "length": 4}}' in inputs
    assert "soft_sort(), which calls fast._C.isotonic" in result.output
    # Types and use say what is a tensor and what a number, so that the reference alone is left.
    gaps = result.output.partition("left to fill:")[2].partition("Then:")[0]
    assert re.findall(r"(\w+) \(line", gaps) == ["reference"] * 3
    reasons = dict(re.findall(r"operators/(\w+).py: .*; (.*)", gaps))
    assert reasons["knn"].startswith("tests/test_fast.py:5 calls it in a loop, a branch or an expression")
    assert reasons["walk"].startswith("tests/test_fast.py:10 compares its result with no other variable")


def test_a_native_module_beside_the_packages_that_import_it_is_measured(tmp_path: Path) -> None:
    binding = 'PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("forward", &forward); }\n'
    native = (
        f"at::Tensor forward(at::Tensor x, int k) {{ return x; }}\n#ifdef USE_CUDA\n{binding}#else\n{binding}#endif\n"
    )
    files = {
        "setup.py": "from setuptools import setup\n"
        "from torch.utils.cpp_extension import CUDAExtension\n"
        "setup(package_dir={'': 'python'}, ext_modules=[CUDAExtension('fast_backend', ['csrc/a.cpp'])])\n",
        "csrc/a.cpp": native,
        "python/fast/__init__.py": "from .ops import scale\n",
        "python/fast/ops.py": "import fast_backend as b\n\ndef scale(input1, k=2): return b.forward(input1, k)\n",
    }
    root = plant(tmp_path / "repository", files)
    result = init(root)
    assert result.exit_code == 0, result.output
    project, operators = written(root)
    assert project.measured is not None
    assert project.measured.packages == ("fast", "fast_backend")
    assert {name: variant(tree) for name, tree in operators.items()} == {"scale": "scale(input1)"}
    assert "calls fast_backend.forward →" in result.output, "both branches bind one function"


@pytest.mark.timeout(180)
def test_what_is_understood_is_measured_at_once(tmp_path: Path) -> None:
    """Functions that are made of torch alone, and functions that torch has by the same name."""
    code = """
import torch

SCALE = 1.0


def mish(x: torch.Tensor, beta: float = 1.0) -> torch.Tensor:
    \"\"\"Smooth.\"\"\"
    y = torch.nn.functional.softplus(x * beta)
    return x * torch.tanh(y)


def rms_norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return SCALE * x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * weight


def sparse(X, dim=-1):
    return mish(X) + SCALE


def without_tensors(n): ...
"""
    files = {"plain/__init__.py": "from .ops import mish, rms_norm, sparse, without_tensors\n", "plain/ops.py": code}
    root, output = plant(tmp_path / "repository", files), tmp_path / "definitions"
    result = init(root, "--output", output)
    assert result.exit_code == 0, result.output
    gaps = result.output.partition("left to fill")[2].partition("Then")[0]
    assert re.search(r"operators/sparse.py: reference \(line \d+\); no test calls it\n", gaps)
    assert gaps.count("(line") == 1
    (output / "operators" / "sparse.py").unlink()
    done = measure(root, output)
    assert done.exit_code == 0, done.output
    assert done.output.count("  pass") == 4


TESTED = {
    "lib/__init__.py": "",
    "lib/ops.py": """
import torch, triton

@triton.jit
def scale_kernel(x): ...

class Scale(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, gain, factor=2.0):
        if x.is_cuda:
            scale_kernel[(1,)](x)
        ctx.save_for_backward(x, gain)
        return factor * x * gain

    @staticmethod
    def backward(ctx, dy):
        x, gain = ctx.saved_tensors
        return 2 * dy * gain, (2 * dy * x).sum((0, 1)), None

def scale(x, gain, factor=2.0):
    return Scale.apply(x, gain, factor), None

class Halve(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        scale_kernel[(1,)](x)
        return x / 2

class Alone(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        scale_kernel[(1,)](x)
        return x
""",
    "tests/test_ops.py": """
import pytest, torch
from lib.ops import Halve, scale

device = "cuda"
SHAPES = [(8, 500, 64), (2, 7, 5)]

def naive(x, gain, factor):
    return (x * gain).mul(factor)

@pytest.mark.parametrize(("B", "T", "D"), [pytest.param(*shape, id="-".join(map(str, shape))) for shape in SHAPES])
@pytest.mark.parametrize("factor", [2.0])
@pytest.mark.parametrize("dtype", [torch.float32, pytest.param(torch.bfloat16, marks=pytest.mark.slow)])
def test_scale(B, T, D, factor, dtype):
    torch.manual_seed(1)
    x = torch.randn((B, T, D), dtype=dtype, device=device).requires_grad_()
    gain = torch.rand(D, dtype=dtype, device=device) + 1
    mine_x = x.clone().detach().requires_grad_(True)
    dy = torch.randn_like(x)
    mine, _ = scale(mine_x, gain, factor=factor)
    expected = naive(x, gain, factor)
    (expected * dy).sum().backward()
    torch.testing.assert_close(mine, expected)

@pytest.mark.parametrize("n", [16])
def test_halve(n):
    x = torch.randn(n, device=device)
    y = Halve.apply(x)
    z = scale(x, x)
    tolerance = 1e-3
    assert z.allclose(y, 0, tolerance)
""",
}


def test_inputs_and_references_follow_the_tests_of_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root, output = plant(tmp_path / "repository", TESTED), tmp_path / "definitions"
    result = init(root, "--output", output)
    assert result.exit_code == 0, result.output
    gaps = result.output.partition("left to fill")[2].partition("Then")[0]
    assert "scale.py" not in gaps
    assert re.search(r"halve.py: .*; tests/test_ops.py:\d+ compares it with scale, which launches kernels itself", gaps)
    assert re.search(r"alone.py: .*; no test calls it", gaps)
    # The file runs: its reference, and the call, which the test makes of a copy and through the public function.
    monkeypatch.syspath_prepend(root)
    monkeypatch.setitem(sys.modules, "triton", types.SimpleNamespace(jit=lambda function: function))
    names = runpy.run_path(str(output / "operators" / "scale.py"))
    operator: Operator = names["operator"]
    assert operator.gradients == ("x",)
    keys = {suite: [case.key for case in cases] for suite, cases in operator.cases.items()}
    assert keys["quick"][::2][:2] == ["B=2,T=7,D=5,f32,fwd", "B=8,T=500,D=64,f32,fwd"]
    assert keys["serving"] == ["B=1,T=2048,D=128,bf16,fwd", "B=16,T=256,D=128,bf16,fwd"]
    case = operator.cases["quick"][0]
    inputs = operator.inputs(case, SeededMaker(3, torch.device("cpu"), case.precision))
    assert operator.cost(case).flops == 2 * 7 * 5 + 5
    torch.testing.assert_close(operator.variants["lib"].function(**inputs), operator.reference(**inputs))


def test_a_gap_names_its_file_and_line() -> None:
    with pytest.raises(NotImplementedError) as caught:
        gap("write it")
    assert f"tests/test_init.py, line {caught.traceback[0].lineno + 1}:" in str(caught.value)


@pytest.mark.timeout(180)
def test_a_first_definition_is_measured_once_its_gaps_are_filled(tmp_path: Path) -> None:
    package = {"mine/__init__.py": "", "mine/ops.py": POWER}
    root, output = plant(tmp_path / "repository", package), tmp_path / "definitions"
    assert init(root, "--output", output).exit_code == 0
    path = output / "operators" / "power.py"
    number = next(n for n, line in enumerate(path.read_text().splitlines(), start=1) if "cases=" in line)
    unfilled = measure(root, output)
    assert unfilled.exit_code == 2, unfilled.output
    assert f"operators/power.py, line {number}:" in unfilled.output
    answers = {
        "return the arguments": '{"x": make.normal(case["n"]), "exponent": 3}',
        "compute the same": "x**exponent",
        "return Cost": 'Cost(flops=case["n"], bytes=8 * case["n"])',
        "declare cases": "case(n=64)",
    }
    lines = path.read_text().replace("import Operator, gap", "import Cost, Operator, case").splitlines()
    for index, line in enumerate(lines):
        for words, answer in answers.items():
            if f'gap("{words}' in line:
                start, end = line.index("gap("), line.index('")') + 2
                lines[index] = line[:start] + answer + line[end:]
    path.write_text("\n".join(lines))
    filled = measure(root, output)
    assert filled.exit_code == 0, filled.output


def measure(root: Path, definitions: Path) -> Result:
    words = ["run", "--repository", str(root), "--commits", "HEAD", "--kinds", "check", "--device", "cpu"]
    words += ["--output", str(root.parent / "results.wwb"), "--definitions", str(definitions)]
    return warpwatch(root.parent / "home", *words)


def test_a_setup_py_below_the_root_builds_from_its_folder(tmp_path: Path) -> None:
    files = {
        "setup.py": "from setuptools import setup\nsetup(name='docs')\n",
        "bindings/torch/setup.py": "from setuptools import setup\n"
        "from torch.utils.cpp_extension import BuildExtension, CUDAExtension\n"
        "setup(name='pk', packages=['pk'], ext_modules=[CUDAExtension('pk._C', ['csrc/a.cpp'])])\n",
        "bindings/torch/pk/__init__.py": "from . import _C\n",
        "bindings/torch/csrc/a.cpp": "#include <torch/extension.h>\nint go(int x) { return x; }\n"
        'PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("go", &go); }\n',
    }
    root = plant(tmp_path / "repository", files)
    assert init(root).exit_code == 0
    project, operators = written(root)
    assert project.measured is not None
    assert project.measured.build == "cd bindings/torch && python setup.py build_ext --inplace"
    assert set(project.measured.inputs) >= {"bindings/torch/setup.py", "bindings/torch/csrc/a.cpp"}
    assert variant(operators["go"]) == "pk._C.go(x)"
