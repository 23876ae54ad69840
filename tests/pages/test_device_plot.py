"""One operator over several devices."""

from __future__ import annotations

import json
from dataclasses import replace

import plotly.graph_objects as plotly
import pytest

from tests.pages.test_operator_figures import cell
from warpwatch.db.reads.devices import DeviceRow
from warpwatch.server.figures.device_plot import MOST_CASES, DeviceCells, compare_devices, device_figure, device_label
from warpwatch.server.figures.size_axis import SizeQuantity

H100 = DeviceRow(1, "h100", "cuda", "H100", 1, 0, 0, 1)
H200 = replace(H100, id=2, key="h200", name="H200")
COLUMNS = [
    DeviceCells(
        H100,
        "graph",
        [
            cell("n=8", "v1", 400.0, 1),
            cell("n=8", "v2", 200.0, 2),
            cell("n=16", "v1", 800.0, 3),
            cell("n=16", "v2", 1.0, 4, "wrong"),
        ],
    ),
    DeviceCells(H200, "graph", [cell("n=8", "v1", 100.0, 5)]),
]


def test_a_row_has_the_fastest_right_variant_of_every_device() -> None:
    small, large = compare_devices(COLUMNS, None)
    assert [time and (time.cell.variant, time.ratio, time.speedup) for time in small.times] == [
        ("v2", 2.0, 2.0),
        ("v1", 1.0, 1.0),
    ]
    assert [time and (time.cell.variant, time.ratio) for time in large.times] == [("v1", 1.0), None]
    (only,) = [row for row in compare_devices(COLUMNS, "v2") if any(row.times)]
    assert (only.case, only.times[1]) == ("n=8", None)


@pytest.mark.parametrize(
    ("quantity", "places"),
    [(SizeQuantity.TIME, [200.0, 800.0]), (SizeQuantity.SHARE, [50.0, 50.0]), (SizeQuantity.SPEEDUP, [2.0, 1.0])],
)
def test_every_device_has_its_mark(quantity: SizeQuantity, places: list[float]) -> None:
    figure = device_figure(COLUMNS, compare_devices(COLUMNS, None), quantity)
    first, second = figure["data"]
    assert (first["x"], first["y"]) == (places, ["n=8", "n=16"])
    assert first["marker"]["symbol"] != second["marker"]["symbol"], "devices are told apart without colour"
    assert first["customdata"][0][0] == "/history/2"
    plotly.Figure(json.loads(json.dumps(figure)))


def test_the_label_tells_who_is_the_fastest() -> None:
    label = device_label(COLUMNS, compare_devices(COLUMNS, None))
    assert "H100 is the fastest in 1 of 2 cases" in label
    assert "H200 is the fastest in 1 of 1 case" in label


def test_a_sum_of_kernels_is_faster_than_no_other_device() -> None:
    of_kernels = DeviceCells(H200, "graph", [replace(cell("n=8", "v1", 100.0, 5), metric="kernel")])
    small, _ = compare_devices([COLUMNS[0], of_kernels], None)
    assert [time and time.ratio for time in small.times] == [1.0, None]


def test_a_chart_of_many_cases_is_bounded() -> None:
    column = DeviceCells(H100, "graph", [cell(f"n={n}", "v1", 1.0) for n in range(MOST_CASES + 5)])
    rows = compare_devices([column], None)
    assert len(rows) == MOST_CASES + 5
    assert len(device_figure([column], rows, SizeQuantity.TIME)["data"][0]["x"]) == MOST_CASES
