"""What kernel code tries against other processes on its GPU, and against the GPU itself, which outlives it."""

from __future__ import annotations

import base64
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tests.worker.conftest import processes_with
from warpwatch.settings import Settings
from warpwatch.worker import sandbox
from warpwatch.worker.host import Host

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")]
GIB = 2**30
VICTIM = """
import base64, pickle, sys, torch
kept = torch.full((2**24,), 7, dtype=torch.int32, device="cuda")
torch.cuda.synchronize()
print(base64.b64encode(pickle.dumps(kept.untyped_storage()._share_cuda_())).decode(), flush=True)
for line in sys.stdin:
    print(int((kept == 7).sum()), flush=True)
"""


@pytest.fixture
def home() -> Iterator[Path]:
    """A home folder that other users may enter."""
    with tempfile.TemporaryDirectory(prefix="gpu-") as folder:
        yield Path(folder)


@pytest.fixture
def victim() -> Iterator[subprocess.Popen[str]]:
    """Another process on the same GPU, which counts what it holds whenever it is asked."""
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", VICTIM], stdin=pipe, stdout=pipe, text=True) as process:
        yield process
        process.kill()


def is_unharmed(victim: subprocess.Popen[str]) -> bool:
    assert victim.stdin is not None
    assert victim.stdout is not None
    victim.stdin.write("\n")
    victim.stdin.flush()
    return victim.stdout.readline() == f"{2**24}\n"


def attack(home: Path, code: str) -> str:
    """What the code prints in a child that measures on the GPU."""
    confinement = Host(Settings(home=home), "cuda:0").confinement()
    if confinement.isolation != "full":
        pytest.skip("this host allows no full isolation")
    words = [sys.executable, "-P", "-c", code]
    done = sandbox.run_confined(confinement, words, Path("/"))
    return (done.stdout + done.stderr[-2000:] * (not done.stdout)).strip()


def free_bytes() -> int:
    """Of the GPU, as a new process sees it."""
    code = "import torch; print(torch.cuda.mem_get_info()[0])"
    return int(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout)


def test_a_handle_of_another_process_opens_nothing(home: Path, victim: subprocess.Popen[str]) -> None:
    """Even with the handle itself, which names memory of another process for whoever may share it."""
    assert victim.stdout is not None
    handle = victim.stdout.readline().strip()
    base64.b64decode(handle)
    code = f"""
import base64, pickle, torch
torch.zeros(1, device="cuda")
try:
    storage = torch.UntypedStorage._new_shared_cuda(*pickle.loads(base64.b64decode({handle!r})))
    torch.tensor([], dtype=torch.int32, device="cuda").set_(storage).fill_(0)
    torch.cuda.synchronize()
    print("opened")
except RuntimeError as error:
    print("refused")
"""
    assert attack(home, code) == "refused"
    assert is_unharmed(victim)


def test_a_child_has_the_nodes_that_cuda_needs_and_no_others(home: Path) -> None:
    """nvidia-cap1 configures MIG, and is root's; channels of IMEX share memory between processes and machines; the
    switches are everybody's."""
    code = """
import os
for folder in ("/dev/nvidia-caps", "/dev/nvidia-caps-imex-channels"):
    for name in os.listdir(folder) if os.path.isdir(folder) else []:
        try:
            os.close(os.open(f"{folder}/{name}", os.O_RDONLY))
            print(name)
        except OSError:
            pass
print(*[name for name in os.listdir("/dev") if name.startswith(("nvidia-nvswitch", "nvidia-nvlink", "nvidia-fs"))])
"""
    opened = attack(home, code).split()
    assert [
        name for name in opened if name in ("nvidia-cap1", "nvidia-cap2") or not name.startswith("nvidia-cap")
    ] == []


def test_no_mps_of_the_host_is_reached_and_none_is_left(home: Path) -> None:
    """Its server runs kernels of several processes in one context, where they read each other's memory."""
    code = f"""
import os, subprocess
folder, own = os.environ.get("CUDA_MPS_PIPE_DIRECTORY", "/tmp/nvidia-mps"), {str(home / "scratch")!r}
print(os.path.exists(folder), "CUDA_MPS_PIPE_DIRECTORY" in os.environ)
variables = os.environ | {{"CUDA_MPS_PIPE_DIRECTORY": own, "CUDA_MPS_LOG_DIRECTORY": own}}
try:
    subprocess.run(["nvidia-cuda-mps-control", "-d"], env=variables, timeout=20, capture_output=True)
except (OSError, subprocess.TimeoutExpired):
    pass
"""
    before = processes_with("nvidia-cuda-mps")
    assert attack(home, code) == "False False"
    assert processes_with("nvidia-cuda-mps") == before


@pytest.mark.parametrize(
    "code",
    [
        "torch.zeros(4, device='cuda')[torch.full((1,), 2**40, device='cuda')] = 1; torch.cuda.synchronize()",
        "torch.cuda._sleep(2**40); os.kill(os.getpid(), 9)",
        "kept = [torch.zeros(2**30, dtype=torch.uint8, device='cuda') for _ in range(1000)]",
        "torch.cuda._sleep(2**40); os._exit(0)",
    ],
    ids=["illegal address", "endless and killed", "all memory", "endless and ended"],
)
def test_a_child_leaves_the_gpu_as_it_was(home: Path, victim: subprocess.Popen[str], code: str) -> None:
    """Its errors, its kernels that never end and its memory are gone with it, and a neighbour goes on."""
    assert victim.stdout is not None
    victim.stdout.readline()
    before = free_bytes()
    attack(home, f"import os, torch\n{code}")
    assert is_unharmed(victim)
    assert free_bytes() > before - GIB
    alone = subprocess.run([sys.executable, "-c", VICTIM], input="\n", capture_output=True, text=True, check=True)
    assert alone.stdout.splitlines()[-1] == str(2**24)


def test_what_a_child_sets_for_its_context_ends_with_it(home: Path) -> None:
    """The part of the second-level cache that persists, the stack and the heap of kernels."""
    look = """
import ctypes, torch
torch.zeros(1, device="cuda")
driver, limits = ctypes.CDLL("libcuda.so.1"), []
for number in (0, 1, 2, 5, 6):
    value = ctypes.c_size_t()
    limits.append((driver.cuCtxGetLimit(ctypes.byref(value), number), value.value))
print(limits)
"""
    before = attack(home, look)
    assert before.startswith("[")
    change = look.replace("for number", "for number, size in ((0, 2**16), (2, 2**28), (6, 2**22)):\n"
                          "    driver.cuCtxSetLimit(number, ctypes.c_size_t(size))\nfor number", 1)  # fmt: skip
    assert attack(home, change) != before
    assert attack(home, look) == before
