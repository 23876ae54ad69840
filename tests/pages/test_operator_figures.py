"""Pictures of one operator: its roofline, its variants over a size, and its histories side by side."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any
from xml.etree import ElementTree

import plotly.graph_objects as plotly
import pytest

from warpwatch.contract.catalogue import SizeQuestion
from warpwatch.db.reads.code import CaseRow
from warpwatch.db.reads.operator_cases import CaseChange, CaseSeries, MetricTime
from warpwatch.db.reads.overview import OverviewCell
from warpwatch.db.trends import RecentPoint
from warpwatch.server.figures.ceiling_rows import ceiling_rows, has_share_above_ceiling
from warpwatch.server.figures.overview_rows import best_variant
from warpwatch.server.figures.palette import variant_styles
from warpwatch.server.figures.questions import answer_metrics, answer_questions, compare_over
from warpwatch.server.figures.roofline import RooflinePoint, roofline_figure
from warpwatch.server.figures.size_axis import (
    SizeQuantity,
    crossovers,
    fastest_summary,
    size_figure,
    size_groups,
)
from warpwatch.server.figures.small_multiples import HEIGHT, case_choices, shown_series
from warpwatch.server.figures.speedups import rank_variants, standings


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


def test_a_time_within_two_per_cent_changes_no_leader() -> None:
    cases = [case(n, {"n": n}) for n in (1, 2, 4, 8)]
    times = {"v1": (10.0, 10.1, 10.1, 10.0), "v2": (11.0, 10.0, 9.0, 10.1)}
    cells = [
        cell(row.key, name, ns) for name, row_times in times.items() for row, ns in zip(cases, row_times, strict=True)
    ]
    (group,) = size_groups(cases, cells)["n"]
    (item,) = crossovers(group)
    assert (item.winner, item.loser, item.value) == ("v2", "v1", 2.0), "it was ahead at 2, by too little to count"


def test_a_sum_of_kernels_beats_no_time_of_a_graph() -> None:
    """The sum leaves out what passes between kernels, so it looks faster than it is."""
    cases = [case(n, {"n": n}) for n in (1, 2)]
    times = {"v1": (10.0, 20.0), "v2": (20.0, 10.0), "v3": (1.0, 1.0)}
    cells = [
        replace(cell(row.key, name, ns), metric="kernel" if name == "v3" else "graph")
        for name, row_times in times.items()
        for row, ns in zip(cases, row_times, strict=True)
    ]
    (group,) = size_groups(cases, cells)["n"]
    assert [(item.winner, item.loser) for item in crossovers(group)] == [("v2", "v1")]
    assert compare_over(group, "n", "v1") == "v1 wins below n 1.50; v2 takes 0.500× the time of v1 at n 2"
    assert compare_over(group, "n", "v3") is None, "nothing can be compared with it"


def test_between_sizes_of_several_parts_lies_nothing() -> None:
    sizes = ([64, 64], [128, 128], [32, 32, 32], [8, 8, 8, 8, 8])
    cases = [case(n, {"factors": list(size)}) for n, size in enumerate(sizes)]
    times = {"v1": (10.0, 20.0, 30.0, 40.0), "v2": (20.0, 10.0, 15.0, 20.0)}
    cells = [
        cell(row.key, name, ns) for name, row_times in times.items() for row, ns in zip(cases, row_times, strict=True)
    ]
    (group,) = size_groups(cases, cells)["factors"]
    assert crossovers(group) == []
    assert fastest_summary(group, "factors") == "the fastest is v1 at factors 64x64, v2 at factors 128x128 to 32x32x32"
    assert compare_over(group, "factors", "v1") == (
        "v1 wins at factors 64x64; v2 takes 0.500× the time of v1 at factors 32x32x32"
    )
    figure = size_figure(group, "factors", SizeQuantity.TIME)
    assert [trace["x"] for trace in figure["data"]] == [[0, 1, 2, 3]] * 2, "equal products stand side by side"
    assert figure["layout"]["xaxis"]["ticktext"] == ["64x64", "128x128", "8x8x8x8x8", "32x32x32"]


def test_a_declared_question_is_answered_from_the_times_and_is_asked_where_there_are_none() -> None:
    cases, cells = sparse()
    questions = [SizeQuestion("When does sparse win?", "sparsity", "dense"), SizeQuestion("And over n?", "n", "dense")]
    answered, unknown = answer_questions(questions, size_groups(cases, cells))
    sentence = "dense wins below sparsity 72.0; sparse takes 0.200× the time of dense at sparsity 90"
    assert answered.answers == [("m=64,f32,fwd", sentence)]
    assert unknown.answers == []
    assert answer_questions([SizeQuestion("?", "sparsity", "gone")], size_groups(cases, cells))[0].answers == []
    (group,) = size_groups(cases, cells)["sparsity"]
    assert compare_over(group, "sparsity", "sparse") == (
        "sparse wins from sparsity 72.0; dense takes 5.00× the time of sparse at sparsity 90"
    )


@pytest.mark.parametrize(
    ("ns", "beginning"),
    [
        (300.0, "dense is the fastest at every measured"),
        (30.0, "sparse beats dense at every measured value of sparsity"),
    ],
)
def test_a_question_without_a_crossover_has_an_answer(ns: float, beginning: str) -> None:
    cases, cells = sparse()
    cells = [replace(item, median_ns=ns) if item.variant == "sparse" else item for item in cells]
    (group,) = size_groups(cases, cells)["sparsity"]
    assert (compare_over(group, "sparsity", "dense") or "").startswith(beginning)


def test_sweeps_of_an_operator_that_declares_no_question_answer_which_variant_is_the_fastest() -> None:
    (question,) = answer_questions([], size_groups(*sparse()))
    assert question.text == "Which variant is the fastest over sparsity?"
    assert question.answers == [("m=64,f32,fwd", "sparse beats dense from sparsity 72.0")]


def test_a_variant_that_is_timed_at_one_size_alone_may_be_the_fastest_there() -> None:
    cases = [case(n, {"n": n}) for n in (1, 2, 4, 8)]
    cells = [cell(row.key, "v5", 13.0) for row in cases]
    groups = size_groups(cases, cells)
    assert fastest_summary(groups["n"][0], "n") == "v5 is the fastest at every size"
    (group,) = size_groups(cases, [*cells, cell(cases[0].key, "v3", 12.0)])["n"]
    assert fastest_summary(group, "n") == "the fastest is v3 at n 1, v5 at n 2 to 8"


def test_the_cost_of_caches_and_launches_is_that_of_the_fastest_variant() -> None:
    times = [
        ("cold", "n=1", "v1", 9.0),
        ("cold", "n=1", "v2", 6.0),
        ("hot", "n=1", "v1", 1.0),
        ("hot", "n=1", "v2", 3.0),
    ]
    times += [("cold", "n=2", "v1", 4.0), ("hot", "n=2", "v1", 4.0)]
    assert answer_metrics([MetricTime(*time) for time in times], "cpu") == [
        (
            "What do cold caches cost?",
            "A call on cold data takes 1.50× the time on hot data, the median of 2 cases, most at n=1: 2.00×",
        )
    ]
    times = [
        ("graph", "n=1", "v1", 3.0),
        ("hot", "n=1", "v1", 1.5),
        ("cold", "n=1", "v1", 90.0),
        ("call", "n=1", "v1", 12.0),
    ]
    assert [sentence for _, sentence in answer_metrics([MetricTime(*time) for time in times], "cuda")] == [
        "Cold data takes 2.00× the time of hot data at n=1",
        "A call from Python takes 4.00× the time in a CUDA graph at n=1",
    ]


def test_a_question_that_no_page_can_show_is_refused() -> None:
    with pytest.raises(ValueError, match="questions: text must have 1 to 150 letters"):
        SizeQuestion("?" * 151, "n", "v1")


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


def test_labels_of_near_crossings_stand_below_one_another() -> None:
    times = {1: (1.0, 2.0, 4.0), 2: (2.0, 1.0, 3.0), 3: (3.0, 2.0, 1.0)}
    cells = [cell(f"n={n},f32,fwd", f"v{place}", ns) for n, row in times.items() for place, ns in enumerate(row)]
    (group,) = size_groups([case(n, {"n": n}) for n in times], cells)["n"]
    notes = size_figure(group, "n", SizeQuantity.TIME)["layout"]["annotations"]
    assert [note["yshift"] for note in notes] == [0, -14]
    assert [note["xanchor"] for note in notes] == ["left", "right"], "a label to the right would make the axis longer"


def test_cases_without_precision_and_direction_have_no_empty_name() -> None:
    cases = [CaseRow(n, f"n={n}", {"n": n}, "", "", "contiguous", ["quick"], 0, 0) for n in (1, 2)]
    (group,) = size_groups(cases, [cell(row.key, "v1", 1.0) for row in cases])["n"]
    assert group.name == ""


# --- shares of the ceiling ------------------------------------------------------------------------------------


def shared(key: str, variant: str, ceiling_share: float | None, status: str | None = "ok") -> OverviewCell:
    return replace(cell(key, variant, 100.0, status=status), roofline_share=ceiling_share)


def test_a_row_per_case_has_a_mark_per_right_variant() -> None:
    cells = [shared("n=16", "v1", 0.5), shared("n=16", "v2", 0.25), shared("n=8", "v1", 0.75)]
    cells += [shared("n=8", "v2", 0.9, "wrong"), shared("n=8", "v3", None)]
    picture = ceiling_rows(cells, variant_styles(["v1", "v2", "v3"]))
    assert picture is not None
    wide, narrow = ElementTree.fromstring(f"<div>{picture}</div>")
    assert "the highest is 75\N{THIN SPACE}%, by v1 at n=8" in wide.get("aria-label", "")
    for svg in (wide, narrow):
        names = [group.get("data-variant") for group in svg.iter("g")]
        assert names == ["v1", "v1", "v2"], "n=8 above n=16; a wrong result has no mark"
    places = [float(circle.get("cx", "0")) for circle in wide.iter("circle")]
    assert places[0] > places[1] > places[2]
    assert ceiling_rows([shared("n=8", "v3", None)], variant_styles(["v3"])) is None
    long = [shared(f"batch=16,heads=12,size=4096x4096,sparsity=90,f32,{way}", "v1", 0.5) for way in ("fwd", "bwd")]
    picture = ceiling_rows(long, variant_styles(["v1"]))
    assert picture is not None
    assert picture.count(",f32,fwd</text>") == picture.count(",f32,bwd</text>") == 2, "cut names keep what differs"


def test_a_share_above_the_ceiling_stands_at_its_end_and_is_said() -> None:
    cells = [shared("n=16", "v1", 1.3), shared("n=16", "v2", 1.002)]
    picture = ceiling_rows(cells, variant_styles(["v1", "v2"]))
    assert picture is not None
    wide, _ = ElementTree.fromstring(f"<div>{picture}</div>")
    over, full = wide.iter("g")
    assert (over.find("circle"), full.find("path")) == (None, None), "an arrow and a dot"
    assert "130\N{THIN SPACE}% of the ceiling" in (over.findtext("title") or "")
    assert [has_share_above_ceiling(cells), has_share_above_ceiling(cells[1:])] == [True, False]


# --- which variant is the best --------------------------------------------------------------------------------


def test_variants_are_ranked_by_wins_then_by_their_distance() -> None:
    cells = [cell("n=1", "v1", 100.0), cell("n=1", "v2", 50.0), cell("n=1", "v3", 52.0)]
    cells.append(cell("n=1", "v4", 1.0, status="wrong"))
    cells += [cell("n=2", "v1", 80.0), cell("n=2", "v2", 40.0), cell("n=2", "v3", 39.0), cell("n=3", "v2", 9.0)]
    assert rank_variants(cells) == ["v2", "v3", "v1"]
    assert standings(cells) == {
        "v1": "2.03× the time of the fastest in 2 cases",
        "v2": "fastest in 2 of 3 cases, 1.04× the next",
        "v3": "fastest in 1 of 2 cases, 1.03× the next",
    }
    assert standings([cell("n=1", "v1", 1.0)]) == {"v1": "fastest in 1 of 1 case"}


def test_a_best_variant_that_loses_to_the_baseline_has_no_speedup() -> None:
    """The fastest variant of most cases may be behind the baseline in the median of all, and 1.00× says nothing."""
    cells = [cell("n=1", "v1", 100.0), cell("n=1", "v2", 99.9), cell("n=2", "v1", 100.0), cell("n=2", "v2", 99.9)]
    best = best_variant(cells)
    assert best is not None
    assert (best.name, best.is_ahead) == ("v2", False)
    ahead = best_variant([*cells[:2], cell("n=2", "v1", 100.0), cell("n=2", "v2", 50.0)])
    assert ahead is not None
    assert ahead.is_ahead


# --- histories ------------------------------------------------------------------------------------------------


def timed(key: str, variant: str, series: int, ns: float | None = 1.0, status: str | None = "ok") -> CaseSeries:
    return CaseSeries("spmm", key, variant, series, ["quick"], ns, 0.5, status)


def test_one_height_means_one_change_in_all_pictures() -> None:
    points = [RecentPoint(1, 1, 1, 1, 100.0), RecentPoint(1, 2, 2, 1, 200.0)]
    points += [RecentPoint(2, 1, 1, 1, 1000.0), RecentPoint(2, 2, 2, 2, 500.0), RecentPoint(3, 1, 1, 1, 1.0)]
    series = [timed("n=16", "v1", 2), timed("n=8", "v1", 1), timed("n=9", "v1", 3)]
    first, single, second = case_choices(series, shown_series(series), points, [])
    assert [first.case, single.case, second.case] == ["n=8", "n=9", "n=16"]
    edge = 5.0
    assert f" {edge:.1f}" in first.svg, "twice the time is the largest change of all, so it reaches the edge"
    assert f" {HEIGHT - edge:.1f}" in second.svg
    assert single.svg == "", "one point is no history"
    for picture in (first.svg, second.svg):
        assert ">+100\N{THIN SPACE}%<" in picture, "both have the same scale"
        assert ">\N{MINUS SIGN}50\N{THIN SPACE}%<" in picture
    assert re.search(r'd="M40 [\d.]+L211 [\d.]+"', first.svg)
    assert re.search(r'd="M40 [\d.]+M211 [\d.]+"', second.svg), "two environments are not joined"
    assert [picture.svg.count("<circle") for picture in (first, second)] == [0, 2], "a lone reading is a dot"


def test_a_case_shows_its_fastest_right_variant_or_the_chosen_one() -> None:
    series = [timed("n=8", "v1", 1, 9.0), timed("n=8", "v2", 2, 5.0), timed("n=8", "v3", 3, 1.0, "wrong")]
    assert [row.variant for row in shown_series(series)] == ["v2"]
    assert [row.variant for row in shown_series(series, variant="v3")] == ["v3"]


def test_a_case_shows_the_variant_whose_change_is_confirmed() -> None:
    series = [timed("n=8", "v1", 1, 5.0), timed("n=8", "v2", 2, 9.0), timed("n=8", "v3", 3, 7.0)]
    changes = [
        CaseChange("spmm", 3, 8, "slower", "suspected", 1.2, 4, "n=8", "v3"),
        CaseChange("spmm", 2, 9, "slower", "culprit", 1.2, 4, "n=8", "v2"),
    ]
    assert [row.variant for row in shown_series(series, changes)] == ["v2"]
    assert [row.variant for row in shown_series(series, changes[:1])] == ["v1"]
    faster = CaseChange("spmm", 1, 10, "faster", "culprit", 0.7, 6, "n=8", "v1")
    newest_first = [faster, *changes]
    assert [row.variant for row in shown_series(series, newest_first)] == ["v2"], "the open slow-down, not the news"
    (choice,) = case_choices(series, shown_series(series, newest_first), [], newest_first)
    assert [row.regression_id for row in choice.open] == [9, 10]


def test_marks_of_changes_are_coloured_where_they_were_decided() -> None:
    points = [RecentPoint(1, commit, commit, 1, 100.0) for commit in (1, 2, 3, 4)]
    series = [timed("n=8", "v1", 1), timed("n=8", "v2", 2)]
    changes = [
        CaseChange("spmm", 2, 9, "slower", "culprit", 1.2, 4, "n=8", "v2"),
        CaseChange("spmm", 1, 8, "slower", "suspected", 1.1, 3, "n=8", "v1"),
        CaseChange("spmm", 1, 7, "faster", "confirmed", 0.8, 2, "n=8", "v1"),
        CaseChange("spmm", 5, 6, "slower", "culprit", 1.2, 2, "n=16", "v1"),
    ]
    (choice,) = case_choices(series, series[:1], points, changes)
    assert re.findall(r'<rect class="(\w+)"', choice.svg) == ["faster", "suspected"]
    assert choice.svg.count("data-statement=") == 2, "the change of v2 is none of the line of v1"
    assert [row.regression_id for row in choice.open] == [9, 7], "of every variant of the case"
    assert [row.regression_id for row in choice.suspected] == [8]
    assert choice.variants == {1: "v1", 2: "v2"}, "a mark names its variant, because the picture is of one of them"
