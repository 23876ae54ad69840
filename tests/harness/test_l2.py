"""Nothing of the L2 is set aside for lines that persist, and a variant that leaves some set aside is named."""

from __future__ import annotations

import ctypes
from typing import Any

import pytest
import torch

from warpwatch.contract.words import Fault
from warpwatch.worker.harness.failures import WrongResultError
from warpwatch.worker.harness.guards import l2
from warpwatch.worker.harness.guards.integrity import TamperGuard, watch


class Driver:
    """A driver that sets 1 KiB of the L2 aside by itself."""

    def __init__(self) -> None:
        self.set_aside, self.covered = 1024, 0

    def cuCtxGetLimit(self, size: Any, _limit: int) -> int:  # noqa: N802 - CUDA's name
        size._obj.value = self.set_aside
        return 0

    def cuCtxSetLimit(self, _limit: int, size: ctypes.c_size_t) -> int:  # noqa: N802
        self.set_aside = size.value
        return 0

    def cuStreamGetAttribute(self, _stream: Any, _attribute: int, policy: Any) -> int:  # noqa: N802
        policy._obj.bytes = self.covered
        return 0

    def cuStreamSetAttribute(self, _stream: Any, _attribute: int, policy: Any) -> int:  # noqa: N802
        self.covered = policy._obj.bytes
        return 0


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Driver:
    driver = Driver()
    monkeypatch.setattr(l2, "cuda_driver", lambda: driver)
    monkeypatch.setattr(l2, "_own_bytes", [])
    monkeypatch.setattr(l2, "_current_stream", lambda: ctypes.c_void_p(0))
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    return driver


def test_what_the_driver_sets_aside_is_taken_back_at_the_start(driver: Driver) -> None:
    guard = TamperGuard()
    assert driver.set_aside == 0
    with watch(guard):
        l2.expect_nothing_set_aside()


def test_what_a_variant_sets_aside_is_set_back_before_a_slice_and_named(driver: Driver) -> None:
    TamperGuard()
    driver.set_aside = 4096
    with pytest.raises(WrongResultError, match="set aside for persisting lines by 4096 bytes") as named:
        l2.expect_nothing_set_aside()
    assert (named.value.fault, named.value.subjects) == (Fault.CHANGED_SETTING, [l2.SET_ASIDE])
    assert driver.set_aside == 0


def test_what_is_left_after_calls_is_named_and_taken_back(driver: Driver) -> None:
    guard = TamperGuard()
    with pytest.raises(WrongResultError) as named, watch(guard):
        driver.set_aside, driver.covered = 2048, 512
    assert named.value.subjects == [l2.SET_ASIDE, l2.POLICY]
    assert (driver.set_aside, driver.covered) == (0, 0)


def test_who_takes_it_back_is_no_cheat(driver: Driver) -> None:
    with watch(TamperGuard()):
        driver.set_aside = 4096
        driver.set_aside = 0
        l2.expect_nothing_set_aside()


def test_without_a_driver_nothing_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(l2, "cuda_driver", lambda: None)
    l2.expect_nothing_set_aside()
    assert (l2.read_set_aside(), l2.read_policy()) == (0, 0)
    assert ctypes.sizeof(l2.AccessWindow) == 64
