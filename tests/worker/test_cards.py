"""The card of a run is read by the worker itself: from NVML for a GPU, from the machine's id for a CPU."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from warpwatch.worker import cards
from warpwatch.worker.cards import read_card, read_model

UUID = "GPU-8f0b5a4e-0000-1111-2222-333333333333"


class BrokenError(Exception):
    """What NVML raises where a card does not tell."""


def _refuse(_handle: object) -> str:
    raise BrokenError


@pytest.fixture(autouse=True)
def _forget() -> Iterator[None]:
    read_card.cache_clear()
    yield
    read_card.cache_clear()


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    library = SimpleNamespace(
        NVMLError=BrokenError,
        nvmlInit=lambda: None,
        nvmlDeviceGetHandleByUUID=lambda uuid: uuid,
        nvmlDeviceGetDeviceHandleFromMigDeviceHandle=lambda _: UUID,
        nvmlDeviceGetUUID=lambda handle: handle,
        nvmlDeviceGetBoardPartNumber=lambda _: b"900-21010-0000-000",
        nvmlDeviceGetVbiosVersion=lambda _: "96.00.61.00.01",
        nvmlDeviceGetPciInfo=lambda _: SimpleNamespace(busId=b"00000000:41:00.0"),
    )
    monkeypatch.setitem(sys.modules, "pynvml", library)
    monkeypatch.setattr(cards, "gpu_ids", lambda: [UUID])
    return library


def test_a_gpu_is_named_by_its_uuid_board_vbios_slot_and_host(nvml: SimpleNamespace) -> None:
    card = read_card("cuda:0")
    assert card is not None
    assert (card.key, card.name) == (UUID, "8f0b5a4e")
    assert card.facts.keys() == {"uuid", "board", "vbios", "slot", "host"}
    assert (card.facts["board"], card.facts["slot"]) == ("900-21010-0000-000", "00000000:41:00.0")


def test_what_a_gpu_does_not_tell_is_left_out(nvml: SimpleNamespace) -> None:
    nvml.nvmlDeviceGetBoardPartNumber = _refuse
    card = read_card("cuda:0")
    assert card is not None
    assert "board" not in card.facts


def test_cards_of_one_model_and_driver_share_the_choices_of_autotuners(
    nvml: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(cards, "_DRIVER", tmp_path / "version")
    monkeypatch.setattr(cards, "gpu_ids", lambda: [UUID, "GPU-other"])
    (tmp_path / "version").write_text("580.159.04")
    assert read_model("cuda:0") == read_model("cuda:1")
    old_driver, first = read_model("cuda:0"), read_card("cuda:0")
    (tmp_path / "version").write_text("590.10.01")
    new_driver = read_model("cuda:0")
    read_card.cache_clear()
    nvml.nvmlDeviceGetBoardPartNumber = lambda _: b"900-21010-0040-000"
    assert len({old_driver, new_driver, read_model("cuda:0")}) == 3
    assert first is not None
    assert first.key not in new_driver


def test_gpus_that_tell_no_model_and_a_cpu_share_nothing(
    nvml: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(cards, "_DRIVER", tmp_path / "missing")
    monkeypatch.setattr(cards, "gpu_ids", lambda: [UUID, "GPU-other"])
    nvml.nvmlDeviceGetBoardPartNumber = _refuse
    assert [read_model(device) for device in ("cuda:0", "cuda:1", "cpu")] == [UUID, "GPU-other", ""]


def test_a_slice_is_the_card_that_it_is_cut_from(nvml: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cards, "gpu_ids", lambda: ["MIG-1-2-3"])
    card = read_card("cuda:0")
    assert card is not None
    assert card.key == UUID


def test_without_nvml_the_uuid_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    monkeypatch.setattr(cards, "gpu_ids", lambda: [UUID])
    card = read_card("cuda:0")
    assert card is not None
    assert card.facts.keys() == {"uuid", "host"}
    assert read_card("cuda:1") is None


def test_a_machine_is_named_by_a_hash_of_its_id(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cards, "_MACHINE_IDS", (str(tmp_path / "none"), str(tmp_path / "id")))
    assert read_card("cpu") is None, "a container that does not know its machine"
    read_card.cache_clear()
    (tmp_path / "id").write_text("3d1219c7c4c5404aaa1f6d2a48adfda4\n")
    card: Any = read_card("cpu")
    assert re.fullmatch("[0-9a-f]{32}", card.key)
    assert "3d1219c7" not in card.key
    assert card.facts.keys() == {"model", "microcode", "host"}
