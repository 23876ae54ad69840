"""The page that compares: the last two commits by default, the largest change first, a dot per row."""

from __future__ import annotations

import re
from dataclasses import replace
from html import unescape
from typing import Any
from xml.etree import ElementTree

import pytest
from fastapi.testclient import TestClient

from tests.builders import CASES, Lab
from warpwatch.contract.words import StatementDirection, StatementKind
from warpwatch.db.regressions import RegressionSeriesRow
from warpwatch.server.explanation.paired import StatedRow
from warpwatch.server.figures.dot_plot import MOST_ROWS, ChangeRow, cases_svg, dot_plot_svg, ratio_axis
from warpwatch.server.verdicts.statements import NO_DATA, Statement, state_rounds
from warpwatch.server.web.compare import worst_first


def row(ratio: float | None, *, separated: bool = True, case: str = "n=1", outcome: str | None = None) -> StatedRow:
    times = (100.0, 100.0 * (ratio or 1), ratio)
    low, high = (ratio * 0.9, ratio * 1.2) if ratio else (None, None)
    names = ("square", case, "v1", "v1", "ok", "ok")
    kind = StatementKind.SHIFT if separated else StatementKind.NOT_TOLD_APART
    statement = state_rounds(Statement(kind, ratio=ratio), outcome, ratio, low, high) if outcome else Statement(kind)
    more: dict[str, Any] = {"low": low, "high": high, "paired_outcome": outcome, "statement": statement}
    return StatedRow(*names, *times, separated, 1, 1, **more)


def test_the_largest_change_of_either_direction_comes_first() -> None:
    rows = [row(1.5), row(0.1), row(None, separated=False), row(3.0, separated=False), row(1.01)]
    assert [entry.ratio for entry in worst_first(rows)] == [0.1, 1.5, 1.01, 3.0, None]


def test_a_dot_per_row_on_the_side_of_its_change() -> None:
    decided = [row(2.0, case="<b>&", outcome="slower"), row(0.5, outcome="faster")]
    picture = dot_plot_svg([*decided, row(1.2), row(None)])
    assert picture is not None
    wide, narrow = ElementTree.fromstring(f"<div>{picture}</div>")
    places = {
        group.get("class"): float(circle.get("cx", "0")) for group in wide.iter("g") for circle in group.iter("circle")
    }
    assert places["better"] < places["same"] < places["worse"]
    for group in (*wide.iter("g"), *narrow.iter("g")):
        whisker, circle = group.find("path"), group.find("circle")
        assert whisker is not None
        assert circle is not None
        ends = re.search(r"M([\d.]+) [\d.]+H([\d.]+)", whisker.get("d") or "")
        assert ends is not None
        assert float(ends[1]) < float(circle.get("cx", "0")) < float(ends[2]), "an interval around the dot"
    for group in narrow.iter("g"):
        name, circle = group.find("text"), group.find("circle")
        assert name is not None
        assert circle is not None
        assert float(name.get("y", "0")) < float(circle.get("cy", "0")) - 8, "on a phone the name stands above its dot"
    assert dot_plot_svg([row(None)]) is None
    many = dot_plot_svg([row(1.5)] * 500)
    assert many is not None
    assert many.count("<circle") == 2 * MOST_ROWS


def test_separate_runs_colour_no_dot_however_far_they_are_apart() -> None:
    picture = dot_plot_svg([row(0.38), row(3.0, outcome="same"), row(1.5, outcome="unsure")])
    assert picture is not None
    tones = [group.get("class") for group in ElementTree.fromstring(f"<div>{picture}</div>").iter("g")]
    assert tones == ["same"] * 6, "three rows in two pictures, and none of them was decided"


def test_a_result_that_broke_or_was_repaired_colours_no_time() -> None:
    statements = [
        Statement(StatementKind.CONFIRMED, direction)
        for direction in (StatementDirection.BROKEN, StatementDirection.FIXED)
    ]
    picture = dot_plot_svg([replace(row(0.98), statement=statement) for statement in statements])
    tones = [group.get("class") for group in ElementTree.fromstring(f"<div>{picture}</div>").iter("g")]
    assert tones == ["same"] * 4


def test_the_axis_reaches_as_far_as_the_ratios_on_each_side() -> None:
    axis = ratio_axis([ChangeRow("a", ratio, None, None, NO_DATA) for ratio in (0.9, 2.3)], 0.0, 600.0)
    assert axis.x(1.0) - axis.x(0.9) < axis.x(2.3) - axis.x(1.0)
    assert axis.x(0.9) < 60, "the side without changes takes no room"
    assert [text for _, text in axis.ticks()] == ["0\u2009%", "+25\u2009%", "+50\u2009%", "+100\u2009%"]
    even = ratio_axis([ChangeRow("a", ratio, None, None, NO_DATA) for ratio in (0.4, 2.3)], 0.0, 900.0)
    texts = [text.replace("\u2009%", "") for _, text in even.ticks()]
    assert texts == ["−50", "−25", "0", "+25", "+50", "+100"]


def test_one_wide_interval_is_cut_off_at_an_arrow_and_squeezes_nothing() -> None:
    narrow = [RegressionSeriesRow(n, f"n={n}", "v1", "hot", "confirmed", None, 1.2, 1.15, 1.25) for n in (1, 2)]
    wide = RegressionSeriesRow(3, "n=3", "v1", "hot", "unsure", None, 1.1, 0.2, 17.5)
    plain, stretched = cases_svg(narrow), cases_svg([*narrow, wide])
    assert plain is not None
    assert stretched is not None

    def length_of_whisker(picture: str) -> float:
        found = re.search(r"M([\d.]+) [\d.]+H([\d.]+)", picture)
        assert found is not None
        return float(found[2]) - float(found[1])

    assert length_of_whisker(stretched) > 0.4 * length_of_whisker(plain)
    assert "l5 4" in stretched
    assert "l-5 4" in stretched
    assert "l5 4" not in plain


def test_a_regression_shows_the_interval_of_each_case() -> None:
    cases = [RegressionSeriesRow(n, f"n={n}", "v1", "hot", "confirmed", None, 1.2, 1.1, 1.3) for n in (1, 2)]
    unmeasured = RegressionSeriesRow(3, "n=3", "v1", "hot", "suspected", 1.2, None, None, None)
    picture = cases_svg([*cases, unmeasured])
    assert picture is not None
    wide, narrow = ElementTree.fromstring(f"<div>{picture}</div>")
    assert [group.get("class") for group in wide.iter("g")] == ["worse", "worse"]
    assert "narrow" in narrow.get("class", "").split()
    assert cases_svg([unmeasured]) is None


def test_a_comparison_holds_the_ratios_that_both_intervals_allow(client: TestClient, lab: Lab) -> None:
    lab.bench(0, {("v1", CASES[0]): 1000.0}, spread=0.1)
    lab.bench(1, {("v1", CASES[0]): 1500.0}, spread=0.1)
    parameters = {"repository": "kernels", "device": "test-cpu", "left": lab.shas[0], "right": lab.shas[1]}
    (compared,) = client.get("/api/v1/compare", params=parameters).json()["items"]
    assert compared["low"] == pytest.approx(1350 / 1100)
    assert compared["high"] == pytest.approx(1650 / 900)


def test_the_last_two_benchmarked_commits_are_compared(client: TestClient, lab: Lab) -> None:
    lab.bench(0, {("v1", CASES[0]): 1000.0, ("v2", CASES[0]): 1000.0})
    assert 'class="dots-plot"' not in client.get("/compare").text, "one commit has nothing to be compared with"
    lab.bench(2, {("v1", CASES[0]): 1500.0, ("v2", CASES[0]): 1000.0})
    page = client.get("/compare").text
    assert f'value="{lab.shas[0]}"' in page
    assert f'value="{lab.shas[2]}"' in page
    assert page.count("<circle") >= 2
    assert re.search(r">\d of 2 rows differs?</h2>", page)
    changes = client.get("/compare", params={"only": "changes"}).text
    assert "+50.0" in changes
    assert "not told apart" not in changes


def test_rows_of_one_side_are_not_counted_as_compared(client: TestClient, lab: Lab) -> None:
    lab.bench(0, {("v1", CASES[0]): 1000.0})
    lab.bench(2, {("v2", CASES[0]): 1000.0})
    assert "No row is timed on both sides" in client.get("/compare").text
    lab.bench(3, {("v1", CASES[0]): 1000.0, ("v2", CASES[0]): 1000.0})
    page = client.get("/compare").text
    assert "0 of 1 row differs" in page
    assert "1 not timed on both sides" in page
    assert "only in" not in page
    operator = re.search(r'both sides, by operator: <a href="([^"]+)">square</a> 1', page)
    assert operator is not None
    assert "only in head" in client.get(unescape(operator[1])).text


def test_an_ab_comparison_of_the_two_commits_decides(client: TestClient, lab: Lab) -> None:
    """Times of separate runs say that both cases became slower; an A/B comparison says that only one did."""
    slower, same, untried = (("v1", CASES[0]), ("v1", CASES[1]), ("v2", CASES[0]))
    lab.bench(0, dict.fromkeys((slower, same, untried), 20_000.0))
    lab.bench(1, dict.fromkeys((slower, same, untried), 24_000.0))
    job = lab.submit("compare", 1, base=0)
    lab.compare(job, {slower: ([20_000.0] * 6, [23_000.0] * 6), same: ([20_000.0] * 6, [20_010.0] * 6)})
    parameters = {"repository": "kernels", "device": "test-cpu", "left": lab.shas[0], "right": lab.shas[1]}
    rows = client.get("/api/v1/compare", params=parameters).json()["items"]
    paired = {(row["right_variant"], row["case"]): (row["paired_outcome"], row["paired_job_id"]) for row in rows}
    assert paired == {slower: ("slower", job), same: ("same", job), untried: (None, None)}
    csv = client.get("/api/v1/compare.csv", params=parameters).text
    assert "paired_outcome" in csv.splitlines()[0]
    page = client.get("/compare", params={"base": lab.shas[0], "head": lab.shas[1]}).text
    assert "2 of 3 rows differ" in page
    assert page.count(f'href="/jobs/{job}') == 2
    assert "+15.0\N{THIN SPACE}% slower</a>" in page
    assert "apart</span>" in page, "of separate runs nothing is said to be slower"
    kinds = {(row["right_variant"], row["case"]): row["statement"]["kind"] for row in rows}
    assert kinds == {slower: "confirmed", same: "not_told_apart", untried: "shift"}
    assert "no change</a>" in page
    changes = client.get("/compare", params={"base": lab.shas[0], "head": lab.shas[1], "only": "changes"}).text
    assert "no change</a>" not in changes
    under_two = lab.submit("compare", 1, base=0, toolchains=("old", "new"))
    lab.compare(under_two, {same: ([20_000.0] * 6, [30_000.0] * 6)})
    rows = client.get("/api/v1/compare", params=parameters).json()["items"]
    assert {row["paired_job_id"] for row in rows} == {job, None}, "two toolchains do not tell what two commits do"
    turned = client.get("/api/v1/compare", params=parameters | {"left": lab.shas[1], "right": lab.shas[0]}).json()
    assert {row["paired_outcome"] for row in turned["items"]} == {None}, "the A/B comparison had these as base and head"


def test_rounds_that_leave_a_speed_up_open_say_so_on_every_page(client: TestClient, lab: Lab) -> None:
    series = ("v1", CASES[0])
    lab.bench(0, {series: 20_000.0})
    lab.bench(1, {series: 19_000.0})
    job = lab.submit("compare", 1, base=0)
    lab.compare(job, {series: ([20_000.0] * 12, [20_000.0 * (0.88 if n % 2 else 0.995) for n in range(12)])})
    for path in (f"/compare?base={lab.shas[0]}&head={lab.shas[1]}", f"/jobs/{job}"):
        assert "not slower</" in client.get(path).text, path


def test_both_times_are_the_comparisons_where_separate_runs_measured_one_commit(client: TestClient, lab: Lab) -> None:
    alone = ("v3", CASES[0])
    lab.bench(1, {alone: 30_000.0})
    lab.compare(lab.submit("compare", 1, base=0), {alone: ([20_000.0] * 6, [23_000.0] * 6)})
    page = client.get("/compare", params={"base": lab.shas[0], "head": lab.shas[1]}).text
    assert page.count("in A/B") == 2
