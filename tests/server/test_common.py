"""What all changed cells have in common: planted patterns are reported; without a simple rule there is no statement."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from warpwatch.db.reads.cells import CellAround
from warpwatch.server.explanation.events import find_common


def series_cell(
    operator: str, variant: str, sizes: dict[str, Any], precision: str, direction: str, layout: str, device: str
) -> CellAround:
    """A cell of which nothing but its names counts here."""
    return CellAround(0, operator, variant, device, sizes, precision, direction, layout, None, None, None, None, None)


def grid(operator: str = "matmul", device: str = "h100") -> list[CellAround]:
    """Every variant on a spread of sizes, in two precisions and directions."""
    sizes = [
        (64, 64),
        (64, 65),
        (128, 127),
        (128, 192),
        (1024, 100),
        (1024, 1024),
        (4096, 96),
        (4096, 4096),
        (512, 2048),
    ]
    return [
        series_cell(operator, variant, {"M": m, "K": k, "factors": [k, 2 * k]}, precision, direction, layout, device)
        for variant in ("v1", "v2", "v3", "triton")
        for m, k in sizes
        for precision in ("f32", "f16")
        for direction, layout in (("fwd", "contiguous"), ("bwd", "contiguous"), ("fwd", "transposed"))
    ]


def told(holds: Callable[[CellAround], bool], cells: list[CellAround] | None = None) -> list[str]:
    every = cells or grid()
    return find_common([cell for cell in every if holds(cell)], [cell for cell in every if not holds(cell)])


@pytest.mark.parametrize(
    ("holds", "words"),
    [
        (lambda cell: cell.direction == "bwd", ["only backward"]),
        (lambda cell: cell.precision == "f16", ["only f16"]),
        (lambda cell: cell.variant in ("v3", "triton"), ["only triton and v3"]),
        (lambda cell: cell.layout == "transposed", ["only transposed"]),
        (
            lambda cell: cell.sizes["K"] % 64,
            ["only K % 64 ≠ 0", "largest of factors % 128 ≠ 0", "least of factors % 64 ≠ 0"],
        ),
        (lambda cell: cell.sizes["M"] >= 1024, ["only M ≥ 1024", "M % 1024 = 0"]),
        (lambda cell: cell.sizes["M"] == 512, ["only M = 512", "K = 2048", "largest of factors = 4096"]),
        (lambda cell: cell.variant == "v3" and cell.sizes["K"] % 64, ["only v3 where K % 64 ≠ 0"]),
        (lambda cell: cell.variant == "v3" and cell.direction == "bwd", ["only v3, backward"]),
    ],
)
def test_a_planted_pattern_is_named(holds: Callable[[CellAround], Any], words: list[str]) -> None:
    assert told(lambda cell: bool(holds(cell))) == words


def test_a_pattern_over_operators_and_devices() -> None:
    kron, square = grid("kron"), grid("square")
    assert find_common(kron, square) == ["only kron"]
    assert find_common(kron, []) == ["every case of kron"]
    assert find_common([*kron, *square], []) == ["every case of kron and square"]
    assert find_common(grid(device="h100"), grid(device="l4")) == ["only on h100"]


def test_sizes_that_some_cells_lack_say_nothing() -> None:
    changed = [series_cell("rope", "v1", {"n": n}, "f32", "fwd", "contiguous", "h100") for n in (8, 16)]
    same = [series_cell("kron", "v1", {"batch": 4}, "f32", "fwd", "contiguous", "h100")]
    assert find_common(changed, same) == ["only rope"]
    switched = [
        series_cell("rope", "v1", {"mode": mode}, "f32", "fwd", "contiguous", "h100") for mode in ("a", "b", 3, True)
    ]
    assert find_common(switched[:2], switched[2:]) == ["only mode = a and b"]


def test_nothing_is_guessed() -> None:
    every = grid()
    for seed in range(40):
        changed = random.Random(seed).sample(every, 12)
        assert find_common(changed, [cell for cell in every if cell not in changed]) == []
    assert find_common(every[:1], every[1:]) == [], "a single cell has everything in common with itself"
    assert find_common([], every) == []
    assert find_common(every, []) == ["every case of matmul"]


def test_what_is_unclear_contradicts() -> None:
    """A cell that may have changed too and is no v3 makes "only v3" a guess."""
    every = grid()
    changed = [cell for cell in every if cell.variant == "v3" and cell.precision == "f32"]
    same = [cell for cell in every if cell.variant in ("v1", "v2")]
    unclear = [cell for cell in every if cell.variant == "v3" and cell.precision == "f16"]
    assert find_common(changed, same, unclear) == ["only v3"]
    contrary = [cell for cell in every if cell.variant == "triton"]
    assert find_common(changed, same, contrary) == []
    assert find_common(changed, same[:-1], same[-1:]) == []
    assert find_common(every[:-1], [], every[-1:]) == []
