"""One worker of a machine measures on a GPU at a time."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from warpwatch.worker.devices import find_devices, lock_device, physical_id
from warpwatch.worker.reporter import CannotRunError

HOLD = """
import sys
from warpwatch.worker.devices import lock_device
lock = lock_device("cuda:0", sys.argv[1])
print("held", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A driver that shows two GPUs."""
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\nprintf 'GPU 0: Big (UUID: GPU-aa)\\nGPU 1: Small (UUID: GPU-bb)\\n'\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")


def test_a_second_worker_is_refused(tmp_path: Path) -> None:
    """Also one of another process, and only while the first lives, however it ends."""
    physical = f"GPU-{tmp_path}"
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, physical], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "held\n"
        with pytest.raises(CannotRunError):
            lock_device("cuda:1", physical)
        neighbour = lock_device("cuda:0", f"{physical}-other")
        other.kill()
    lock = lock_device("cuda:0", physical)
    assert lock is not None
    assert neighbour is not None
    with pytest.raises(CannotRunError):
        lock_device("cuda:0", physical)
    lock.close()
    neighbour.close()


@pytest.mark.usefixtures("gpus")
@pytest.mark.parametrize(
    ("visible", "device", "physical"),
    [
        (None, "cuda:0", "GPU-aa"),
        (None, "cuda:1", "GPU-bb"),
        ("1", "cuda:0", "GPU-bb"),
        ("GPU-bb", "cuda:0", "GPU-bb"),
        ("MIG-cc", "cuda:0", "MIG-cc"),
    ],
)
def test_a_gpu_has_its_own_name_however_it_is_numbered(
    visible: str | None, device: str, physical: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert physical_id(device) == physical
    assert device in [found.name for found in find_devices()]


def test_a_processor_is_named_and_not_locked() -> None:
    assert physical_id("cpu") == physical_id("cpu")
    assert lock_device("cpu", physical_id("cpu")) is None
