"""Sparklines: small lines whose marks stand where something changed."""

from __future__ import annotations

import re
from xml.etree import ElementTree

from warpwatch.server.figures.sparklines import EDGE, HEIGHT, WIDTH, change_sparkline, trend_sparkline


def numbers(path: str) -> list[tuple[float, float]]:
    return [(float(x), float(y)) for x, y in re.findall(r"(\d+) (-?[\d.]+)", path)]


def test_a_change_is_marked_between_its_two_values() -> None:
    picture = change_sparkline([1.0, 1.0, 2.0, 2.0], 2, "bad", "<kron>")
    assert picture is not None
    root = ElementTree.fromstring(picture)
    path, band = root.find("path"), root.find("rect")
    assert path is not None
    assert band is not None
    places = numbers(path.get("d", ""))
    assert places[0] == (EDGE, HEIGHT - EDGE), "the lowest level lies on the lower edge"
    assert places[-1] == (WIDTH - EDGE, EDGE)
    assert abs(float(band.get("x", "0")) - places[1][0]) < 1
    assert root.get("aria-label") == "<kron>"
    assert change_sparkline([1.0], 0, "bad", "") is None


def test_a_flat_line_lies_in_the_middle() -> None:
    picture = change_sparkline([3.0, 3.0], 0, "muted", "")
    assert picture is not None
    assert {y for _, y in numbers(picture.partition(" d=")[2])} == {HEIGHT / 2}


def test_pieces_of_a_trend_are_not_joined_and_little_noise_stays_little() -> None:
    picture = trend_sparkline([[(0, 0.0), (1, 0.001)], [(2, 0.0), (3, 0.001)]], 4, 0.05, "kron")
    path = ElementTree.fromstring(picture).find("path")
    assert path is not None
    assert path.get("d", "").count("M") == 2
    heights = [y for _, y in numbers(path.get("d", ""))]
    assert max(heights) - min(heights) < 1
    assert trend_sparkline([], 4, 0.05, "kron") == ""
