"""`warpwatch kron`: what it prints and how it exits, in a checkout of its own whose second variant errs on demand."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from kernels.kron import operator
from warpwatch.cli.kron import KronCommand, parse
from warpwatch.worker.harness.problem import CaseProblem

from .conftest import ROOT
from .forked import ForkedCommands

Kron = Callable[..., subprocess.CompletedProcess[str]]

KRON = """
import os
import torch
from warpwatch.operator import Operator
from ._shipped import inputs, reference, cost, depth

operator = Operator(
    "kron", "", inputs=inputs, reference=reference, cost=cost, cases={}, gradients=("x", "w1", "w2"), depth=depth
)
operator.variant("v1", idea="the reference")(reference)

@operator.variant("v2", idea="errs on demand")
def v2(x, w1, w2, factors):
    err = os.environ.get("ERR")
    x = x.detach() + 1.01 * (x - x.detach()) if err == "x" else x
    y = reference(x, w1.detach() + 0 * w1 if err == "g" else w1, w2, factors)
    return y * 1.01 if os.environ.get("ERR") == "y" else y

@operator.variant("v3", idea="elsewhere", devices=("cuda",))
def v3(x, w1, w2, factors):
    raise AssertionError
"""


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("checkout")
    (root / "kernels").mkdir()
    (root / "warpwatch.toml").write_text("contract = 1\n")
    (root / "kernels" / "kron.py").write_text(KRON)
    shutil.copy(ROOT / "kernels" / "kron.py", root / "kernels" / "_shipped.py")
    # It imports its helpers from the folder that it lies in.
    for helper in ("_compiled.py", "_gradients.py"):
        shutil.copy(ROOT / "kernels" / helper, root / "kernels")
    return root


@pytest.fixture(scope="module")
def commands(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ForkedCommands]:
    folder = tmp_path_factory.mktemp("commands")
    variables = {"CUDA_VISIBLE_DEVICES": "", "WARPWATCH_HOME": str(folder / "home")}
    # The last ones are what torch imports at the first gradient, bench and profile of a process.
    late = ("torch.fx.experimental.symbolic_shapes", "torch.utils.benchmark", "torch.profiler")
    commands = ForkedCommands(folder, "warpwatch.cli", "warpwatch.cli.kron_layer", *late, **variables)
    yield commands
    commands.close()


@pytest.fixture
def kron(checkout: Path, commands: ForkedCommands) -> Kron:
    """Runs `warpwatch kron` in the checkout. err: what its second variant gets wrong."""

    def run(*arguments: str, err: str = "") -> subprocess.CompletedProcess[str]:
        return commands.run(checkout, "kron", *arguments, ERR=err)

    return run


def test_check_prints_norms_and_pairs(kron: Kron) -> None:
    done = kron("--dtype", "d", "16", "5", "3", "check")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert [line.split(" = ")[0] for line in lines[:4]] == ["||v1_y||", "||v1_g||", "||v2_y||", "||v2_g||"]
    assert float(lines[0].split(" = ")[1]) == pytest.approx((16 * 15) ** 0.5, rel=0.5)
    order = parse(["--dtype", "d", "16", "5", "3", "check"])
    problem = CaseProblem(
        operator, replace(operator.variants["v1"], function=operator.reference), order.case("bwd"), torch.device("cpu")
    )
    with problem.modes():
        g = problem.run(problem.data(0))["grad x"]
    # Of all digits, and of the gradient of x alone.
    assert lines[1] == f"||v1_g|| = {float(g.norm())!r}"
    assert lines[4:] == ["v1_y == v2_y: True (0.0e+00)", "v1_g == v2_g: True (0.0e+00)"]
    assert "v3: unsupported: v3 has no implementation for cpu" in done.stderr


@pytest.mark.parametrize(("err", "y", "g"), [("y", "False", "False"), ("g", "True", "True"), ("x", "True", "False")])
def test_check_fails_on_a_mismatch_of_outputs_or_of_any_gradient(kron: Kron, err: str, y: str, g: str) -> None:
    done = kron("check", "16", "5", "3", err=err)
    assert done.returncode == 1
    assert f"v1_y == v2_y: {y} (" in done.stdout
    assert f"v1_g == v2_g: {g} (" in done.stdout
    assert f"v2 bwd: grad {'x' if err == 'x' else 'w1'} off by" in done.stderr


def test_only_the_variants_that_are_named_are_compared(kron: Kron) -> None:
    done = kron("check", "--variants", "v2,v3", "16", "5", "3")
    assert done.returncode == 0
    assert [line.split(" = ")[0] for line in done.stdout.splitlines()] == ["||v2_y||", "||v2_g||"]
    done = kron("check", "--variants", "v2", "--implementation", "v1", "16", "5", "3")
    assert done.returncode == 0
    assert "||v1_y||" not in done.stdout
    assert "--implementation is ignored: check takes --variants" in done.stderr
    done = kron("bench", "--variants", "v2,v7", "16", "5", "3")
    assert done.returncode == 2
    assert "--variants v7: choose from v1, v2, v3" in done.stderr


def test_bench_prints_size_intensity_and_a_table(kron: Kron) -> None:
    done = kron("4", "8", "8", "bench")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("state size : 64\nAI         : 6.4e+00\n")
    table = done.stdout.splitlines()
    assert any(re.fullmatch(r"\[-+ benchmark -+\]", line) for line in table)
    assert any(re.fullmatch(r"1 threads: -+", line) for line in table)
    assert any(re.fullmatch(r" +\| +v1 +\| +v2 *", line) for line in table)
    assert any(re.fullmatch(r" +4 x 8 x 8 \(4\.096e\+03\) +\| +[\d.]+ +\| +[\d.]+ *", line) for line in table)
    # torch chooses the unit by the fastest time, and a busy machine is slow.
    assert {"Times are in microseconds (us).", "Times are in milliseconds (ms)."} & set(table)


def test_profile_writes_a_chrome_trace_and_nothing_into_the_current_folder(
    checkout: Path, kron: Kron, tmp_path: Path
) -> None:
    before = sorted(checkout.iterdir())
    steps = ("--wait", "0", "--active", "1", "4", "7", "5")
    done = kron("profile", "--implementation", "v2", *steps)
    assert done.returncode == 0, done.stderr
    path = Path(done.stdout.splitlines()[-1])
    assert (path.parent.parts[-2:], path.name) == (("home", "kron"), "v2_f_7x5.2.json")
    trace = json.loads(path.read_text())
    assert any("aten::" in event.get("name", "") for event in trace["traceEvents"])
    assert kron("profile", "--output", str(tmp_path / "new"), *steps).returncode == 0
    assert (tmp_path / "new" / "v1_f_7x5.2.json").exists()
    assert sorted(checkout.iterdir()) == before
    (tmp_path / "file").touch()
    done = kron("profile", "--output", str(tmp_path / "file" / "new"), *steps)
    assert (done.returncode, "--output" in done.stderr) == (2, True)


def test_profile_of_an_unknown_implementation_names_those_there_are(kron: Kron) -> None:
    done = kron("profile", "--implementation", "v9", "4", "7", "5")
    assert done.returncode == 2
    assert "choose from v1, v2" in done.stderr


@pytest.mark.parametrize("line", ["--dtype d 16 32 7 check", "check --dtype d 16 32 7", "16 --dtype d 32 7 check"])
def test_the_mode_may_come_first_or_last(line: str) -> None:
    assert parse(line.split()) == KronCommand("check", "d", "", 16, (32, 7), (), 1, "v1", 1, 1, 2, "")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("16 32", "name one of check, bench, profile"),
        ("check bench 16 32", "name one of"),
        ("check 16", "at least one factor"),
        ("check 16 0", "'0' is not a size"),
        ("check 16 x", "'x' is not a size"),
        ("check --dtype h 16 32", "invalid choice: 'h'"),
        ("profile --active 0 16 32", "--active 1 or more"),
        ("bench --threads 0 16 32", "--threads must be 1 or more"),
    ],
)
def test_a_line_that_makes_no_sense_is_explained(line: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        parse(line.split())
    assert caught.value.code == 2
    assert message in capsys.readouterr().err


def test_the_published_numbers_are_printed() -> None:
    order = parse(["32", "128", "128", "bench"])
    assert order.label == "32 x 128 x 128 (1.342e+08)"
    assert order.intensity == pytest.approx(124.12, abs=0.01)
    assert order.case("bwd").key == "batch=32,factors=128x128,f32,bwd"
