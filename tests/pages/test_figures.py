"""Figures: what is joined, what is marked, and that Plotly takes them."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import plotly.graph_objects as plotly

from warpwatch.contract.words import Status
from warpwatch.db.reads.builds import CodeCommit, CodeHistory, CodeSeries, KernelCode
from warpwatch.db.reads.history import PointRow, SeriesChange, SeriesHistory, SeriesRow, StatusMark
from warpwatch.db.regressions import RegressionSeriesRow
from warpwatch.server.figures.charts import SYMBOLS, history_figure, rounds_figure
from warpwatch.server.figures.code_charts import code_figure
from warpwatch.server.figures.history_layers import MOST_MARKS, quantiles
from warpwatch.server.figures.history_marks import MOST_BANDS, SAME, SLOWER
from warpwatch.server.figures.history_view import HistoryView, HorizontalAxis, VerticalAxis
from warpwatch.server.figures.noise_summary import LevelShift, NoiseSummary
from warpwatch.server.figures.palette import GREY, PALETTE, variant_styles
from warpwatch.server.figures.roofline import RooflinePoint, roofline_figure
from warpwatch.server.reports.formats import STATUS_NAMES
from warpwatch.server.web.history import (
    chart_label,
    environment_facts,
    in_range,
    only_environment,
    pivot,
    sampled_points,
    table_rows,
)

WHEN = datetime(2026, 1, 1, tzinfo=UTC)


def point(ordinal: int, median: float, environment: int = 1, subject: str = "A change") -> PointRow:
    sha = f"{ordinal:040x}"
    return PointRow(
        ordinal,
        sha,
        ordinal,
        subject,
        "Ann",
        WHEN,
        environment,
        median,
        median * 0.99,
        median * 1.01,
        0.02,
        9,
        0.5,
        "copy",
        ordinal,
    )


def history(points: list[PointRow], marks: list[StatusMark] | None = None, variant: str = "v1") -> SeriesHistory:
    series = SeriesRow(1, "kernels", "kron", "n=1,f32,fwd", variant, "gpu", "GPU", "graph", "1", 1000, 8000)
    return SeriesHistory(
        series, points, marks or [], {1: {"torch": "2.13", "driver": "1"}, 2: {"torch": "2.14", "driver": "1"}}
    )


def lines(figure: dict[str, Any]) -> list[dict[str, Any]]:
    return [trace for trace in figure["data"] if trace["mode"] == "lines+markers"]


def accepted(figure: dict[str, Any]) -> None:
    """Plotly's own schema knows every attribute, and the figure survives JSON."""
    plotly.Figure(json.loads(json.dumps(figure)))


def test_every_status_has_a_symbol_and_a_name() -> None:
    assert set(SYMBOLS) == set(STATUS_NAMES) == set(Status)
    assert len({symbol for symbol, _ in SYMBOLS.values()}) == len(Status), "shapes tell statuses apart without colour"


def test_environments_are_separate_lines_with_a_border_that_says_why() -> None:
    figure = history_figure([history([point(1, 1e4), point(2, 1.1e4), point(5, 9e3, environment=2)])])
    assert [trace["x"] for trace in lines(figure)] == [[0, 1], [2]]
    assert [trace["y"] for trace in lines(figure)] == [[10.0, 11.0], [9.0]]
    assert figure["layout"]["yaxis"]["title"]["text"] == "median, µs"
    assert [shape["x0"] for shape in figure["layout"]["shapes"]] == [1.5]
    assert figure["layout"]["annotations"][0]["text"] == "torch 2.14"
    accepted(figure)


def test_a_click_leads_to_the_commit_and_subjects_are_no_markup() -> None:
    figure = history_figure([history([point(3, 1e4, subject="Use <b> & <a href='x'>")])])
    (commit,) = figure["layout"]["meta"]["commits"]
    assert commit[:3] == [0, f"{3:040x}", "Use &lt;b&gt; &amp; &lt;a href=&#x27;x&#x27;&gt;"]
    assert figure["layout"]["meta"]["address"] == "/commits/SHA?repository=kernels"
    (median,) = lines(figure)
    assert (median["meta"]["commits"], median["meta"]["times"]) == ([0], [[1e4, 9900.0, 10100.0]])
    assert median["meta"]["remarks"][median["meta"]["remark"][0]] == "<br>50\N{THIN SPACE}% of peak bandwidth"


def test_what_points_share_is_written_once() -> None:
    """Of 10,000 points, five variants at 2,000 commits, the page was 3.5 MB."""
    subject = "A subject of the usual length, which has some fifty letters"
    points = [replace(point(n, 1e4 + n / 7), subject=subject) for n in range(200)]
    one, two = (
        len(json.dumps(history_figure([history(points, variant=f"v{n}") for n in range(variants)])))
        for variants in (1, 2)
    )
    assert (two - one) / len(points) < 100, "bytes for one more point of a commit that is there"


def test_commits_without_a_time_are_marked_in_a_strip() -> None:
    marks = [
        StatusMark(f"{2:040x}", 2, "check", "wrong", "y is wrong"),
        StatusMark(f"{2:040x}", 2, "bench", "crashed", "it fell"),
    ]
    figure = history_figure([history([point(1, 1e4), point(3, 1e4)], marks)])
    strip = {trace["name"]: trace for trace in figure["data"] if trace.get("yaxis") == "y2"}
    assert strip["wrong"]["x"] == strip["crashed"]["x"] == [1]
    assert figure["layout"]["yaxis2"]["ticktext"] == ["bench", "check"]
    assert strip["wrong"]["y"] == [1]
    assert figure["layout"]["yaxis"]["domain"][0] > figure["layout"]["yaxis2"]["domain"][1]
    low = history_figure([history([point(1, 1e4), point(3, 1e4)], marks)], is_low=True)
    assert low["layout"]["yaxis2"]["domain"][1] > 0.2, "two names of 11 pixels fit in 110 pixels"
    accepted(figure)


def test_several_variants_are_named_and_share_the_commits() -> None:
    both = [history([point(1, 1e4), point(2, 1e4)]), history([point(2, 2e4)], variant="v2")]
    figure = history_figure(both, view=HistoryView(log_scale=True))
    assert [(trace["name"], trace["showlegend"]) for trace in lines(figure)] == [("v1", True), ("v2", True)]
    assert lines(figure)[1]["x"] == [1]
    assert figure["layout"]["yaxis"]["type"] == "log"
    accepted(figure)


def test_shifts_of_level_are_pale_marks_without_a_verdict() -> None:
    """Only trials decide what is slower or faster; a shift is neither red nor green, and no arrow."""
    steps = [
        LevelShift("b" * 40, f"{2:040x}", 1, 2, 1.3),
        LevelShift("b" * 40, f"{3:040x}", 2, 3, 0.5, is_code_changed=False),
        LevelShift("b" * 40, "e" * 40, 8, 9, 1.1),
    ]
    figure = history_figure([history([point(1, 1e4), point(2, 1.3e4), point(3, 6.5e3)])], {1: steps})
    marks = {trace["name"]: trace for trace in figure["data"] if trace["mode"] == "markers"}
    assert {name: (trace["x"], trace["y"]) for name, trace in marks.items()} == {
        "shift": ([1], [13.0]),
        "shift, same code": ([2], [6.5]),
    }, "a shift behind the last point shown has no mark"
    assert {trace["marker"]["color"] for trace in marks.values()} == {SAME}
    assert "triangle" not in json.dumps(figure)
    assert "slower" not in json.dumps(figure)
    address, *_, size, _ = marks["shift"]["customdata"][0]
    assert (address, size) == (f"/commits/{2:040x}?repository=kernels", "+30.0\N{THIN SPACE}%")
    accepted(figure)
    assert history_figure([history([point(1, 1e4)])], {}) == history_figure([history([point(1, 1e4)])])


def test_a_confirmed_change_takes_the_place_of_the_level_shift_it_confirms() -> None:
    """One change has one number, the ratio of its A/B comparison."""
    change = SeriesChange(7, "slower", "culprit", 1.17, 1.16, 1.18, "b" * 40, 2, f"{3:040x}", 3, 1, None)
    points = [point(1, 100.0), point(2, 102.0), point(3, 118.0), point(4, 119.0), point(5, 90.0), point(6, 91.0)]
    slower, faster = (
        LevelShift(f"{at:040x}", f"{at + 1:040x}", at, at + 1, ratio) for at, ratio in ((2, 1.15), (4, 0.8))
    )
    figure = history_figure([replace(history(points), changes=[change])], {1: [slower, faster]})
    (shift,) = [trace for trace in figure["data"] if trace.get("name") == "shift"]
    assert shift["x"] == [4], "of the two shifts the one that no trial has confirmed"
    accepted(figure)


def test_nothing_measured_is_still_a_figure() -> None:
    accepted(history_figure([history([])]))
    accepted(roofline_figure([], {}))


def test_rounds_are_joined_in_pairs() -> None:
    series = RegressionSeriesRow(1, "n=1", "v1", "graph", "confirmed", 1.2, 1.2, 1.1, 1.3, [1e4, 1.1e4], [1.2e4, 1.3e4])
    figure = rounds_figure(series)
    joined, base, head = figure["data"]
    assert joined["x"] == [1, 1, 1, 2, 2, 2]
    assert joined["y"] == [10.0, 12.0, None, 11.0, 13.0, None]
    assert (base["y"], head["y"]) == ([10.0, 11.0], [12.0, 13.0])
    accepted(figure)


def test_the_roofline_bends_at_the_ridge() -> None:
    points = [
        RooflinePoint("v1", "n=1", 1_000_000, 10_000, 1000.0, "/history/1"),
        RooflinePoint("v1", "n=2", 0, 10, 1.0, "/history/2"),
    ]
    figure = roofline_figure(points, {"copy": 1e12, "f32": 5e13})
    ceiling, measured = figure["data"]
    assert ceiling["x"] == [25.0, 50.0, 400.0]
    assert ceiling["y"] == [25e12, 50e12, 50e12]
    assert (measured["x"], measured["y"]) == ([100.0], [1e12])
    accepted(figure)


def test_the_table_compares_within_an_environment_only() -> None:
    marks = [StatusMark(f"{2:040x}", 2, "check", "wrong", ""), StatusMark(f"{4:040x}", 4, "bench", "crashed", "")]
    found = table_rows(
        [
            history(
                [point(1, 100.0), point(2, 110.0), point(3, 50.0, environment=2), point(5, 55.0, environment=2)], marks
            )
        ]
    )
    assert [row.commit_sha[-1] for row in found] == ["5", "4", "3", "2", "1"]
    assert [row.change and round(row.change, 3) for row in found] == [1.1, None, None, 1.1, None]
    assert [len(row.marks) for row in found] == [0, 1, 0, 1, 0]
    assert found[1].point is None


def test_only_what_differs_tells_environments_apart() -> None:
    one = history([point(1, 1.0), point(2, 1.0, environment=2)])
    assert environment_facts([one]) == {1: [("torch", "2.13")], 2: [("torch", "2.14")]}
    assert [row.ordinal for row in only_environment(one, 2).points] == [2]


def test_names_from_kernel_code_are_no_markup() -> None:
    """Plotly shows names, labels and texts as HTML."""
    bold = "<b>v1</b>"
    marks = [StatusMark("1".zfill(40), 1, "check", Status.WRONG, "<i>wrong</i>")]
    histories = [history([point(1, 1e3), point(2, 1e3)], marks, variant) for variant in (bold, "v2")]
    roofline = roofline_figure(
        [RooflinePoint(bold, "<i>n=1</i>", 1000, 10, 1e3, "/history/1")], {"copy": 1e12, "<u>f32</u>": 1e13}
    )
    written = json.dumps([history_figure(histories), roofline])
    assert [tag for tag in ("<b>v1", "<i>", "<u>") if tag in written] == []


def test_thirteen_variants_are_told_apart_and_six_of_them_are_coloured() -> None:
    names = [*(f"v{number}" for number in range(1, 5)), *(f"library{number}" for number in range(9))]
    styles = variant_styles(names)
    assert [styles[name].own for name in ("v1", "v2", "v3")] == list(PALETTE[:3])
    assert len({(style.own, style.symbol) for style in styles.values()}) == len(names)
    assert len({(style.own, style.dash) for style in styles.values()}) == len(names)
    assert len({(style.own, style.filling) for style in styles.values()}) == len(names)
    assert {name for name in names if styles[name].colour != GREY} == {name for name in names if styles[name].is_lit}
    best = ["v4", *names[8:]]
    lit = variant_styles(names, best)
    assert len({style.colour for style in lit.values() if style.is_lit}) == len(best), "no two lit ones share a colour"
    everything = variant_styles(names, names)
    assert len({(style.colour, style.symbol) for style in everything.values()}) == len(names)


def test_a_variant_has_its_colour_in_every_chart_of_an_operator() -> None:
    names = ["v1", "v2", "v3", "cublas"]
    styles = variant_styles(names)
    both = [history([point(1, 1e4), point(2, 1e4)], variant=name) for name in ("v3", "cublas")]
    charts = [
        history_figure(both, styles=styles),
        history_figure(both[:1], styles=styles),
        roofline_figure([RooflinePoint("v3", "n=1", 1000, 10, 1e3, "/history/1")], {}, styles),
    ]
    own = [trace["meta"]["own"] for chart in charts for trace in chart["data"] if trace.get("name") == "v3"]
    assert own == [PALETTE[2]] * 3


def test_grey_lines_lie_below_and_have_no_band() -> None:
    both = [history([point(1, 1e4), point(2, 1e4)], variant=name) for name in ("v1", "v2")]
    figure = history_figure(both, styles=variant_styles(["v1", "v2"], ["v1"]))
    assert [(trace["name"], trace["line"]["color"]) for trace in lines(figure)] == [("v2", GREY), ("v1", PALETTE[0])]
    fills = [trace["fillcolor"] for trace in figure["data"] if trace.get("fill") == "tonexty"]
    assert [fill.rsplit(",", 1)[1] for fill in fills] == ["0.0)", "0.18)"]
    accepted(figure)


def test_the_legend_of_marks_names_the_line_as_well() -> None:
    mark = StatusMark(f"{2:040x}", 2, "check", "wrong", "y is wrong")
    figure = history_figure([history([point(1, 1e4), point(3, 1e4)], [mark])])
    assert [trace["name"] for trace in figure["data"] if trace.get("showlegend", True)] == ["v1", "wrong"]
    plain = history_figure([history([point(1, 1e4), point(3, 1e4)])])
    assert [trace["name"] for trace in plain["data"] if trace.get("showlegend", True)] == []


def test_a_change_that_no_trial_has_decided_has_a_grey_band() -> None:
    def labelled(phase: str) -> tuple[str, str]:
        change = SeriesChange(7, "slower", phase, 1.08, None, None, f"{1:040x}", 1, f"{2:040x}", 2, 1, None)
        layout = history_figure([replace(history([point(1, 1e4), point(2, 1e4)]), changes=[change])])["layout"]
        (label,) = layout["annotations"]
        return layout["shapes"][0]["fillcolor"], label["text"]

    assert labelled("culprit")[0] == SLOWER
    colour, text = labelled("unpaired")
    assert colour == SAME
    assert ">suspected +8.0" in text


def test_labels_of_changes_have_room_above_the_lines() -> None:
    change = SeriesChange(7, "slower", "culprit", 1.17, None, None, f"{1:040x}", 1, f"{2:040x}", 2, 1, None)
    layout = history_figure([replace(history([point(1, 1e4), point(2, 1e4)]), changes=[change])])["layout"]
    (label,) = layout["annotations"]
    assert (label["yref"], label["y"], label["yanchor"]) == ("paper", 1, "top")
    assert layout["yaxis"]["domain"][1] < 1
    assert history_figure([history([point(1, 1e4)])])["layout"]["yaxis"]["domain"][1] == 1


def test_machine_code_of_one_commit_is_drawn_as_bars() -> None:
    code = KernelCode("kernel", "sm_90", registers=32)
    commit = CodeCommit("a" * 40, 1, "Change", "hash", 1.5)
    for commits, kind in (([commit], "bar"), ([commit, commit], "scatter")):
        history = CodeHistory(
            "square", "gpu", "sm_90", ["sm_90"], commits, [CodeSeries("kernel", [code] * len(commits))]
        )
        figure, _ = code_figure(history, "registers", "kernels")
        assert {trace["type"] for trace in figure["data"]} == {kind}
        accepted(figure)


def test_heights_are_times_or_relative_or_shares() -> None:
    series = history([point(1, 2e4), point(2, 1e4)])
    heights = {axis: lines(history_figure([series], view=HistoryView(y=axis)))[0]["y"] for axis in VerticalAxis}
    assert heights == {
        VerticalAxis.TIME: [20.0, 10.0],
        VerticalAxis.FIRST: [1.0, 0.5],
        VerticalAxis.ROOFLINE: [50.0, 50.0],
    }
    bare = replace(series, points=[replace(series.points[0], roofline_share=None)])
    figure = history_figure([bare], view=HistoryView(y=VerticalAxis.ROOFLINE))
    assert lines(figure)[0]["y"] == [None]
    accepted(figure)


def test_commits_stand_at_their_dates_and_a_range_is_shown() -> None:
    points = [replace(point(n, 1e4), authored_at=WHEN + timedelta(days=n)) for n in (1, 3, 4)]
    figure = history_figure([history(points)], view=HistoryView(x=HorizontalAxis.DATE))
    days = [(place - WHEN.timestamp() * 1000) / 86_400_000 for place in lines(figure)[0]["x"]]
    assert days == [1, 3, 4]
    assert figure["layout"]["xaxis"]["type"] == "date"
    accepted(figure)
    view = HistoryView(first=f"{3:040x}", last=f"{4:040x}")
    assert history_figure([history(points)], view=view)["layout"]["xaxis"]["range"] == [0.4, 2.6]
    whole = history_figure([history(points)])["layout"]
    assert whole["xaxis"]["range"] == [-0.6, 2.6]
    assert history_figure([history(points)], view=HistoryView(first="ffff"))["layout"] == whole
    assert [commit[:2] for commit in whole["meta"]["commits"]] == [
        [place, f"{n:040x}"] for place, n in enumerate((1, 3, 4))
    ]


def test_what_is_indistinguishable_is_a_band_around_each_level() -> None:
    points = [point(1, 100.0), point(2, 102.0), point(3, 200.0), point(4, 204.0), point(5, 1.0, environment=2)]
    shift = LevelShift(f"{2:040x}", f"{3:040x}", 2, 3, 2.0)
    noise = NoiseSummary(1, 4, 0, 202.0, 0.01, 0.01, 0.05, [shift])
    figure = history_figure([history(points)], noise={1: [noise]})
    bands = [trace for trace in figure["data"] if trace.get("fill") == "toself"]
    assert [(band["x"], [round(y, 4) for y in band["y"]]) for band in bands] == [
        ([0, 1, 1, 0], [95.95, 95.95, 106.05, 106.05]),
        ([2, 3, 3, 2], [191.9, 191.9, 212.1, 212.1]),
    ]
    accepted(figure)
    change = SeriesChange(7, "slower", "culprit", 2.0, None, None, f"{2:040x}", 2, f"{3:040x}", 3, 1, None)
    confirmed = history_figure([replace(history(points), changes=[change])], noise={1: [replace(noise, steps=[])]})
    assert [trace for trace in confirmed["data"] if trace.get("fill") == "toself"] == bands, "a verdict splits as well"
    noisy = replace(noise, detectable=3.0)
    assert history_figure([history(points)], noise={1: [noisy]}) == history_figure([history(points)])


def test_samples_are_drawn_beside_their_point() -> None:
    few, many = [9e3, 1e4, 1.1e4], [float(n) for n in range(1000)]
    assert quantiles(few) == few
    assert (len(quantiles(many)), quantiles(many)[0], quantiles(many)[-1]) == (MOST_MARKS, 0.0, 999.0)
    figure = history_figure([history([point(1, 1e4), point(2, 1e4)])], samples={2: few})
    (strip,) = [trace for trace in figure["data"] if trace["mode"] == "markers"]
    assert strip["y"] == [9.0, 10.0, 11.0]
    assert all(0.5 < x < 1.5 for x in strip["x"])
    assert len(set(strip["x"])) == 3
    accepted(figure)


def test_long_histories_are_drawn_without_an_element_per_point() -> None:
    figure = history_figure([history([point(n, 1e4) for n in range(700)])])
    (line,) = [trace for trace in figure["data"] if "meta" in trace]
    assert line["mode"] == "lines"
    assert len(line["x"]) == 700


def test_the_table_has_a_row_per_commit_and_follows_the_range() -> None:
    mark = StatusMark(f"{3:040x}", 3, "check", "wrong", "", "Bad", "A", WHEN)
    both = [
        history([point(1, 100.0), point(2, 110.0)], [mark]),
        history([point(2, 50.0)], variant="v2"),
    ]
    rows = pivot(table_rows(both))
    assert [(row.commit_sha[-1], sorted(row.cells), row.subject) for row in rows] == [
        ("3", ["v1"], "Bad"),
        ("2", ["v1", "v2"], "A change"),
        ("1", ["v1"], "A change"),
    ]
    view = HistoryView(first=f"{2:040x}", last=f"{2:040x}")
    assert {row.commit_sha[-1] for row in in_range(table_rows(both), both, view)} == {"2"}
    assert sampled_points(both, view) == [2, 2]


def test_the_label_of_a_chart_tells_its_key_numbers() -> None:
    label = chart_label([history([point(1, 100.0), point(2, 150.0)])])
    for number in ("150", "2 commits", "+50.0"):
        assert number in label


def test_of_many_changes_the_open_and_worst_ones_have_bands() -> None:
    def changed(number: int, ratio: float, phase: str) -> SeriesChange:
        base, head = f"{number:040x}", f"{number + 1:040x}"
        return SeriesChange(number, "slower", phase, ratio, None, None, base, number, head, number + 1, 1, None)

    changes = [changed(number, 2.0, "fixed") for number in range(MOST_BANDS)]
    changes += [changed(80, 1.1, "culprit"), changed(81, 3.0, "fixed")]
    series = replace(history([point(number, 1e4) for number in range(100)]), changes=changes)
    labels = [note["text"] for note in history_figure([series])["layout"]["annotations"] if note["name"] == "change"]
    assert len(labels) == MOST_BANDS
    assert "/regressions/80" in labels[0]
    assert "/regressions/81" in labels[1]
