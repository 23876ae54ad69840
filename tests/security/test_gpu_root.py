"""CUDA, NVML, Triton and nvcc work in a child's own root, and nothing else of the host is there."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.worker.conftest import Diary
from warpwatch.contract.environment import Environment
from warpwatch.settings import Settings
from warpwatch.worker import levels, sandbox
from warpwatch.worker.host import Host

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")]
TORCH = """
import torch
a = torch.randn(512, 512, device="cuda")
print(torch.allclose(a @ torch.eye(512, device="cuda"), a, atol=1e-2))
pinned = torch.empty(2**28, dtype=torch.uint8, pin_memory=True)
print(int(pinned.fill_(3).cuda(non_blocking=True)[-1]))
"""
NVML = """
import ctypes
nvml = ctypes.CDLL("libnvidia-ml.so.1")
count = ctypes.c_uint()
print(nvml.nvmlInit_v2(), nvml.nvmlDeviceGetCount_v2(ctypes.byref(count)), count.value > 0)
"""
COMPILED = """
import torch
print(torch.compile(lambda x: torch.sin(x) + 1)(torch.zeros(1024, device="cuda")).sum().item())
"""
NVCC = """
import os, subprocess
os.chdir(os.environ["TMPDIR"])
open("a.cu", "w").write("__global__ void kernel(float *x) { x[threadIdx.x] *= 2; }")
print(subprocess.run(["nvcc", "-cubin", "-arch=native", "a.cu"], capture_output=True, text=True).stderr, end="")
print(os.path.getsize("a.cubin") > 0)
"""
LOOK = """
import os
names = os.listdir("/dev")
print(sum(name.startswith("nvidia") and name[6:].isdigit() for name in names), "nvidiactl" in names)
print(os.path.isdir("/home") and os.listdir("/home"), os.listdir("/run"), os.path.exists("/proc/driver/nvidia/version"))
"""


@pytest.fixture(scope="module")
def confinement(tmp_path_factory: pytest.TempPathFactory) -> sandbox.Confinement:
    home = tmp_path_factory.mktemp("gpu") / "home"
    try:
        return levels.confinement(home, None, device_kind="cuda")
    except levels.IsolationError as error:
        pytest.skip(f"this host shuts no child on a GPU in: {error}")


def run(confinement: sandbox.Confinement, code: str) -> list[str]:
    """The lines that the code prints in a child of a GPU."""
    jail = sandbox.Jail(confinement)
    try:
        command = jail.command([sys.executable, "-c", code], jail.inside)
        done = subprocess.run(
            command,
            pass_fds=jail.passed,
            env=jail.environment(),
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )
    finally:
        jail.close()
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_torch_computes_and_pins_memory(confinement: sandbox.Confinement) -> None:
    assert run(confinement, TORCH) == ["True", "3"]


def test_nvml_and_nvidia_smi_answer(confinement: sandbox.Confinement) -> None:
    assert run(confinement, NVML) == ["0 0 True"]
    if shutil.which("nvidia-smi"):
        (line, *_) = run(confinement, "import subprocess; subprocess.run(['nvidia-smi', '-L'], check=True)")
        assert line.startswith("GPU ")


def test_triton_compiles(confinement: sandbox.Confinement) -> None:
    assert run(confinement, COMPILED) == ["1024.0"]


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="needs nvcc")
def test_nvcc_compiles(confinement: sandbox.Confinement) -> None:
    assert run(confinement, NVCC)[-1] == "True"


def test_nothing_but_the_device_is_there(confinement: sandbox.Confinement) -> None:
    nodes, rest = run(confinement, LOOK)
    assert nodes.split()[1] == "True"
    assert int(nodes.split()[0]) >= 1
    assert rest == "False [] True"


def test_a_harness_and_a_fork_of_a_template_name_the_gpu(confinement: sandbox.Confinement, tmp_path: Path) -> None:
    host = Host(Settings(home=tmp_path / "home"), "cuda:0")
    for _ in range(2):
        with host.lone_child(Diary()) as child:
            environment = child.ask(Environment, "environment", 120, Diary())
            assert environment.device_kind == "cuda"
