"""Pictures of one operator: its roofline, its variants over a size, and its histories side by side."""

from __future__ import annotations

import json
from typing import Any

import plotly.graph_objects as plotly
import pytest

from warpwatch.db.reads.code import CaseRow
from warpwatch.db.reads.overview import OverviewCell
from warpwatch.db.trends import RecentPoint
from warpwatch.server.figures.palette import variant_colour
from warpwatch.server.figures.roofline import RooflinePoint, roofline_figure
from warpwatch.server.figures.size_axis import SizeQuantity, crossovers, size_figure, size_groups
from warpwatch.server.figures.small_multiples import HEIGHT, small_multiples


def case(number: int, sizes: dict[str, Any], direction: str = "fwd") -> CaseRow:
    key = ",".join([*(f"{name}={size}" for name, size in sizes.items()), "f32", direction])
    return CaseRow(number, key, sizes, "f32", direction, "contiguous", ["quick"], 1000, 10)


def cell(key: str, variant: str, ns: float | None, series: int = 1, status: str | None = "ok") -> OverviewCell:
    timed = (ns, 0.01, 0.5, 1.0, 1.0, None, None, None)
    return OverviewCell("spmm", key, variant, series, "a" * 40, *timed, status, "", "ok", "", None)


def accepted(figure: dict[str, Any]) -> None:
    plotly.Figure(json.loads(json.dumps(figure)))


# --- roofline -------------------------------------------------------------------------------------------------


def test_ceilings_have_their_names_and_rates() -> None:
    points = [RooflinePoint("v1", "n=1", 1000, 10, 1.0, "/history/1", "fwd")]
    peaks = {"copy": 1e12, "f32": 5e13, "f64": 6e13, "bf16": 1e15}
    figure = roofline_figure(points, peaks)
    labels = {note["text"].replace("\N{THIN SPACE}", " "): note for note in figure["layout"]["annotations"]}
    assert set(labels) == {"f32 50.0 TFLOP/s", "f64 60.0 TFLOP/s", "copy 1.00 TB/s"}, "bf16 is beyond the shown range"
    assert labels["f32 50.0 TFLOP/s"]["yanchor"] == "top", "two close ceilings have their labels on two sides"
    assert labels["f64 60.0 TFLOP/s"]["yanchor"] == "bottom"
    accepted(figure)


def test_the_bandwidth_has_no_label_on_a_short_slope() -> None:
    points = [RooflinePoint("v1", "n=1", 100_000, 10, 1.0, "/history/1", "fwd")]
    figure = roofline_figure(points, {"copy": 1e12, "f32": 5e13})
    assert [note["text"] for note in figure["layout"]["annotations"]] == ["f32 50.0\N{THIN SPACE}TFLOP/s"]


def test_an_arrow_leads_from_the_earlier_rate() -> None:
    points = [
        RooflinePoint("v1", "n=1", 1000, 10, 1.0, "/history/1", "fwd", 10.0),
        RooflinePoint("v1", "n=2", 1000, 10, 1.0, "/history/2", "bwd", 1.01),
    ]
    figure = roofline_figure(points, {"copy": 1e12})
    (arrow,) = [note for note in figure["layout"]["annotations"] if note["showarrow"]]
    assert arrow["y"] - arrow["ay"] == pytest.approx(1.0), "ten times as fast is one decade"
    assert arrow["x"] == arrow["ax"] == 2.0
    (marks,) = figure["data"]
    assert marks["marker"]["symbol"] == ["circle", "diamond"]
    accepted(figure)


# --- sizes ----------------------------------------------------------------------------------------------------


def sparse() -> tuple[list[CaseRow], list[OverviewCell]]:
    """Dense takes 100 at every sparsity; sparse takes 180, 120 and 20; one case has another size."""
    cases = [case(n, {"m": 64, "sparsity": s}) for n, s in enumerate((50, 70, 90))] + [
        case(9, {"m": 128, "sparsity": 50})
    ]
    times = (180.0, 120.0, 20.0, 1.0)
    cells = [cell(row.key, "dense", 100.0) for row in cases]
    cells += [cell(row.key, "sparse", ns) for row, ns in zip(cases, times, strict=True)]
    return cases, cells


def test_cases_that_differ_in_one_size_are_a_group() -> None:
    groups = size_groups(*sparse())
    assert {name: [(g.name, [p.value for p in g.points]) for g in of] for name, of in groups.items()} == {
        "sparsity": [("m=64,f32,fwd", [50, 70, 90])],
        "m": [("sparsity=50,f32,fwd", [64, 128])],
    }


def test_sizes_of_several_parts_count_as_their_product_and_texts_not_at_all() -> None:
    cases = [case(1, {"size": [2, 3], "kind": "a"}), case(2, {"size": [4, 5], "kind": "a"})]
    groups = size_groups(cases, [cell(row.key, "v1", 1.0) for row in cases])
    assert {name: [point.value for point in of[0].points] for name, of in groups.items()} == {"size": [6, 20]}
    assert [point.text for point in groups["size"][0].points] == ["2x3", "4x5"]


def test_a_wrong_or_untimed_variant_is_on_no_line() -> None:
    cases = [case(n, {"n": n}) for n in (1, 2)]
    cells = [cell(cases[0].key, "v1", 1.0), cell(cases[1].key, "v1", 1.0, status="wrong")]
    assert size_groups(cases, cells) == {}
    assert size_groups(cases, [cell(row.key, "v1", None) for row in cases]) == {}


def test_the_crossover_lies_between_the_cases_around_it() -> None:
    (group,) = size_groups(*sparse())["sparsity"]
    (item,) = crossovers(group)
    assert (item.winner, item.loser) == ("sparse", "dense")
    # ln 1.2 above at 70, ln 0.2 below at 90: the lines cross a tenth of the way.
    assert item.value == pytest.approx(70 + 20 * 0.1017, abs=0.01)


@pytest.mark.parametrize("quantity", SizeQuantity)
def test_every_variant_is_a_line_over_the_size(quantity: SizeQuantity) -> None:
    (group,) = size_groups(*sparse())["sparsity"]
    figure = size_figure(group, "sparsity", quantity)
    heights = {trace["name"]: trace["y"] for trace in figure["data"]}
    assert (
        heights["sparse"]
        == {
            SizeQuantity.TIME: [180.0, 120.0, 20.0],
            SizeQuantity.SHARE: [50.0, 50.0, 50.0],
            SizeQuantity.SPEEDUP: [100 / 180, 100 / 120, 5.0],
        }[quantity]
    )
    assert len(figure["layout"]["shapes"]) == len(figure["layout"]["annotations"]) == 1
    assert figure["data"][0]["customdata"][0][0] == "/history/1"
    accepted(figure)


# --- histories ------------------------------------------------------------------------------------------------


def test_one_height_means_one_change_in_all_pictures() -> None:
    points = [RecentPoint(1, 1, 1, 1, 100.0), RecentPoint(1, 2, 2, 1, 200.0)]
    points += [RecentPoint(2, 1, 1, 1, 1000.0), RecentPoint(2, 2, 2, 2, 500.0), RecentPoint(3, 1, 1, 1, 1.0)]
    cells = [cell("n=16", "v1", 1.0, 2), cell("n=8", "v1", 1.0, 1), cell("n=8", "v2", 1.0, 3)]
    first, second = small_multiples(cells, points)
    assert [first.case, second.case] == ["n=8", "n=16"]
    edge = 5.0
    assert f" {edge:.1f}" in first.svg, "twice the time is the largest change of all, so it reaches the edge"
    assert f" {HEIGHT - edge:.1f}" in second.svg
    assert first.svg.count(variant_colour("v1")) == 1
    assert "v2" not in first.svg, "one point is no history"
    assert "L" in first.svg.split("stroke")[0]
    assert "M5 42.0M255 79.0" in second.svg, "two environments are not joined"
