"""Products of codes of eight bits and fewer, and attention over them: every variant against what the codes stand
for."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kernels import grouped_matmul, int4_linear, int8_matmul, kv_attention, scaled_matmul
from warpwatch.contract.words import Status
from warpwatch.operator import Case, Operator

from .conftest import check_variant, ready, runnable

MODULES = (scaled_matmul, int8_matmul, int4_linear, grouped_matmul, kv_attention)


def checks(compiled: bool = False) -> Iterator[Any]:
    """Parameters (operator, variant, case, device)."""
    for module in MODULES:
        cases = module.QUICK[1:2] if compiled else (*module.QUICK, *module.EDGE)
        for given in runnable(module.operator, cases, compiled=compiled):
            yield pytest.param(
                module.operator, *given.values, id=f"{module.operator.name}-{given.id}", marks=given.marks
            )


@pytest.mark.parametrize(("operator", "name", "case", "device"), [*checks(), *checks(compiled=True)])
def test_every_variant_is_right(operator: Operator, name: str, case: Case, device: str, build_cache: Path) -> None:
    if operator.variants[name].native:
        ready(operator, build_cache)
    reply = check_variant(operator, name, case, device)
    assert reply.status is Status.OK, reply.message
    assert not [probe.message for probe in reply.probes if probe.status == "refuses"]


@pytest.mark.parametrize(
    ("case", "reason"),
    [
        (scaled_matmul.sized("bf16", 8, 16, 32, "e4m3-row", "e4m3-tensor"), None),
        (scaled_matmul.sized("bf16", 8, 24, 144, "e4m3-1x128", "e4m3-128x128"), None),
        (scaled_matmul.sized("bf16", 8, 16, 40, "e4m3-row"), "whole 16 bytes"),
        (scaled_matmul.sized("bf16", 8, 12, 32, "e4m3-row"), "whole 16 bytes"),
        (scaled_matmul.sized("bf16", 8, 16, 256, "e4m3-1x128"), "128x128 of b"),
        (scaled_matmul.sized("bf16", 8, 16, 32, "e5m2-row", "e4m3-row"), "codes in e4m3"),
        (scaled_matmul.sized("bf16", 8, 16, 32, "mxfp8"), "scales in f32"),
        (scaled_matmul.sized("f32", 8, 16, 32, "e4m3-row"), "into bf16"),
    ],
)
def test_the_hopper_kernel_refuses_what_it_cannot_read(
    case: Case, reason: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scaled_matmul, "hopper_unsupported", lambda: None)
    refusal = scaled_matmul.v3_unsupported(case, "cuda")
    assert refusal is None if reason is None else reason in (refusal or "")


def test_costs_count_codes_and_scales() -> None:
    assert scaled_matmul.cost(scaled_matmul.sized("bf16", 8, 16, 256, "e4m3-row")).bytes == 24 * 260 + 2 * 8 * 16
    nvfp4 = scaled_matmul.sized("f32", 8, 16, 256, "nvfp4")
    assert scaled_matmul.cost(nvfp4).bytes == 24 * 128 + 24 * 16 + 8 + 4 * 8 * 16
    assert int4_linear.cost(int4_linear.sized("bf16", 2, 256, 16)).bytes == 16 * (128 + 8) + 2 * 2 * (256 + 16)
    assert int8_matmul.cost(int8_matmul.sized("i32", 8, 16, 256, "i8", "i8")).bytes == 24 * 256 + 4 * 8 * 16
    # Of three experts one has no tokens, so that its weights are not read.
    grouped = grouped_matmul.sized("bf16", 200, 192, 256, 3, *grouped_matmul.BLOCKS)
    assert grouped_matmul.cost(grouped).bytes == 200 * (256 + 8) + 2 * (192 * 256 + 4 * 4) + 2 * 200 * 192
    # Sequences of 8 and 6 tokens have two pages each.
    cache = kv_attention.cost(kv_attention.sized("bf16", 2, 4, 64, 2, 8, 4, kv_attention.CODES))
    assert cache.bytes == 2 * (14 * 2 * 64 + 4) + 2 * 2 * 2 * 4 * 64 + 4 * (4 + 2)
    assert cache.flops == 4 * 4 * 14 * 64
