"""One worker of a machine measures on a GPU at a time, and one job of all its processes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from warpwatch.worker.devices import device_turn, find_devices, lock_device, physical_id
from warpwatch.worker.reporter import CannotRunError, SilentReporter, Stopped

HOLD = """
import sys
from warpwatch.worker.devices import device_turn, lock_device
from warpwatch.worker.reporter import SilentReporter
lock = lock_device("cuda:0", sys.argv[1])
turn = device_turn("cuda:0", sys.argv[1], SilentReporter())
turn.__enter__()
print("held", flush=True)
sys.stdin.read()
"""


class Impatient(SilentReporter):
    """Stops a job that has to wait."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def log(self, text: str) -> None:
        self.lines.append(text)

    def should_stop(self) -> str | None:
        return "enough"


@pytest.fixture
def gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A driver that shows two GPUs."""
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\nprintf 'GPU 0: Big (UUID: GPU-aa)\\nGPU 1: Small (UUID: GPU-bb)\\n'\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")


def test_a_second_worker_is_refused_and_a_second_job_waits(tmp_path: Path) -> None:
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
        impatient = Impatient()
        with pytest.raises(Stopped, match="enough"), device_turn("cuda:0", physical, impatient):
            pass
        assert impatient.lines == ["waiting for cuda:0: another process of this machine measures on it"]
        with device_turn("cpu", physical, impatient), device_turn("cuda:0", f"{physical}-other", impatient):
            pass
        other.kill()
    with device_turn("cuda:0", physical, SilentReporter()):
        pass
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
