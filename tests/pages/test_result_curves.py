"""The curves of a result: every line over the same places, named, and escaped."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest

from warpwatch.contract.codec import from_json, to_json
from warpwatch.contract.measurement import Curves
from warpwatch.server.figures.result_curves import (
    BOTTOM,
    HEIGHT,
    LEFT,
    MOST_NAMED,
    RIGHT,
    TOP,
    WIDTH,
    curves_sentence,
    curves_svg,
)


def lines_of(picture: str) -> list[list[tuple[float, float]]]:
    groups = ElementTree.fromstring(picture).findall("g")
    paths = [group.find("path") for group in groups]
    return [
        [(float(x), float(y)) for x, y in re.findall(r"([\d.]+) ([\d.]+)", path.get("d", ""))]
        for path in paths
        if path is not None
    ]


def test_lines_share_one_scale() -> None:
    high, low = lines_of(curves_svg(Curves("round", "accuracy", [4.0, 2.0, 1.0], {"a": [1, 0.5, 0.5], "b": [0, 0, 0]})))
    assert high[0] == (LEFT, TOP)
    assert high[2] == (WIDTH - RIGHT, (TOP + HEIGHT - BOTTOM) / 2)
    assert {y for _, y in low} == {HEIGHT - BOTTOM}


def test_whole_places_keep_their_digits() -> None:
    curves = Curves("weights left", "accuracy", [1842.0, 60.0, 0.25], {"ticket": [0.9, 0.9, 0.8], "dense": [0.9] * 3})
    assert re.findall(r'text-anchor="middle">([^<]+)', curves_svg(curves)) == ["1842", "60", "0.250"]
    assert curves_sentence(curves) == "At 0.250 weights left: dense 0.900, ticket 0.800"


def test_one_place_and_equal_values_are_drawn() -> None:
    ((place,),) = lines_of(curves_svg(Curves("round", "accuracy", [1.0], {"a": [0.5]})))
    assert place == (LEFT, (TOP + HEIGHT - BOTTOM) / 2)


def test_names_are_escaped_and_places_thinned() -> None:
    picture = curves_svg(Curves("<x>", "y", [float(i) for i in range(100)], {'<script a="b">': [0.0] * 100}))
    assert "<script" not in picture
    places = [text for text in ElementTree.fromstring(picture).findall("text") if text.get("text-anchor") == "middle"]
    assert len(places) <= MOST_NAMED


@pytest.mark.parametrize(
    "change",
    [
        {"at": []},
        {"lines": {}},
        {"lines": {"a": [1.0]}},
        {"lines": {"a" * 61: [1.0, 2.0]}},
        {"at": [0.0] * 1001, "lines": {"a": [0.0] * 1001}},
    ],
)
def test_what_no_chart_can_show_is_refused(change: dict[str, object]) -> None:
    curves = to_json(Curves("x", "y", [1.0, 2.0], {"a": [1.0, 2.0]}))
    assert from_json(Curves, curves).lines == {"a": [1.0, 2.0]}
    with pytest.raises(ValueError, match="expected"):
        from_json(Curves, curves | change)
