"""`warpwatch init` on small planted repositories: what it finds, what it writes, and what it refuses."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from tests.builders import run_git
from warpwatch.cli.app import app
from warpwatch.operator import gap
from warpwatch.project import Project, parse_project

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
    files = {"lib/__init__.py": "", "lib/kernels.py": KERNELS, "lib/ops.py": launch, "lib/npu/ops.py": launch}
    root = plant(tmp_path / "repository", files)
    assert init(root).exit_code == 0
    assert set(written(root)[1]) == {"add", "npu_add"}


def test_a_folder_called_operators_is_left_alone(tmp_path: Path) -> None:
    root = plant(tmp_path / "repository", TRITON | {"operators/theirs.py": ""})
    assert init(root).exit_code == 0
    assert written(root)[0].operators != "operators"
    assert [path.name for path in (root / "operators").iterdir()] == ["theirs.py"]


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


def test_a_gap_names_its_file_and_line() -> None:
    with pytest.raises(NotImplementedError) as caught:
        gap("write it")
    assert f"tests/test_init.py, line {caught.traceback[0].lineno + 1}:" in str(caught.value)


@pytest.mark.timeout(180)
def test_a_first_definition_is_measured_once_its_gaps_are_filled(tmp_path: Path) -> None:
    square = CUSTOM[: CUSTOM.index("lib = ")] + CUSTOM[CUSTOM.index("@custom_op") :]
    package = {"mine/__init__.py": "", "mine/ops.py": square}
    root, output = plant(tmp_path / "repository", package), tmp_path / "definitions"
    assert init(root, "--output", output).exit_code == 0
    path = output / "operators" / "square.py"
    number = next(n for n, line in enumerate(path.read_text().splitlines(), start=1) if "cases=" in line)
    unfilled = measure(root, output)
    assert unfilled.returncode == 2, unfilled.stdout
    assert f"operators/square.py, line {number}:" in unfilled.stdout + unfilled.stderr
    answers = {
        "return the arguments": '{"x": make.normal(case["n"])}',
        "compute the same": "x * x",
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
    assert filled.returncode == 0, filled.stdout + filled.stderr


def measure(root: Path, definitions: Path) -> subprocess.CompletedProcess[str]:
    words = ["run", "--repository", str(root), "--commits", "HEAD", "--kinds", "check", "--device", "cpu"]
    words += ["--output", str(root.parent / "results.wwb"), "--definitions", str(definitions)]
    environment = os.environ | {"WARPWATCH_HOME": str(root.parent / "home"), "COLUMNS": "200"}
    return subprocess.run(
        [sys.executable, "-m", "warpwatch", *words], cwd=root.parent, env=environment, capture_output=True, text=True
    )
