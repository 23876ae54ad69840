"""The curves of a result: every line over the same places, named, and escaped."""

from __future__ import annotations

import re
from itertools import pairwise
from xml.etree import ElementTree

import pytest

from warpwatch.contract.codec import from_json, to_json
from warpwatch.contract.measurement import Curves
from warpwatch.server.figures.result_curves import (
    LEFT,
    LETTER,
    MOST_NAMED,
    NARROW,
    PLOT,
    RIGHT,
    WIDE,
    curves_sentence,
    curves_svg,
)

TOP = 29.0
"""Where the lines begin, below one row of names."""


def pictures(curves: Curves) -> list[ElementTree.Element]:
    """The wide one, and that of a phone."""
    return list(ElementTree.fromstring(f"<div>{curves_svg(curves)}</div>"))


def lines_of(picture: ElementTree.Element) -> list[list[tuple[float, float]]]:
    paths = [group.find("path") for group in picture.findall("g")]
    return [
        [(float(x), float(y)) for x, y in re.findall(r"([\d.]+) ([\d.]+)", path.get("d", ""))]
        for path in paths
        if path is not None
    ]


def places_of(picture: ElementTree.Element) -> list[str]:
    return [text.text or "" for text in picture.findall("text") if text.get("text-anchor") == "middle"]


def test_lines_share_one_scale() -> None:
    curves = Curves("round", "accuracy", [4.0, 2.0, 1.0], {"a": [1, 0.5, 0.5], "b": [0, 0, 0]})
    for picture, width in zip(pictures(curves), (WIDE, NARROW), strict=True):
        high, low = lines_of(picture)
        assert high[0] == (LEFT, TOP)
        assert high[2] == (width - RIGHT, TOP + PLOT / 2)
        assert {y for _, y in low} == {TOP + PLOT}


def test_whole_places_keep_their_digits() -> None:
    curves = Curves("weights left", "accuracy", [1842.0, 60.0, 0.25], {"ticket": [0.9, 0.9, 0.8], "dense": [0.9] * 3})
    assert places_of(pictures(curves)[0]) == ["1842", "60", "0.250"]
    assert curves_sentence(curves) == "At 0.250 weights left: dense 0.900, ticket 0.800"


def test_one_place_and_equal_values_are_drawn() -> None:
    ((place,),) = lines_of(pictures(Curves("round", "accuracy", [1.0], {"a": [0.5]}))[0])
    assert place == (LEFT, TOP + PLOT / 2)


def test_names_are_escaped_and_places_thinned() -> None:
    curves = Curves("<x>", "y", [float(i) for i in range(100)], {'<script a="b">': [0.0] * 100})
    assert "<script" not in curves_svg(curves)
    assert all(len(places_of(picture)) <= MOST_NAMED for picture in pictures(curves))


def test_a_phone_has_the_names_in_rows_and_no_text_on_another() -> None:
    names = ("winning ticket", "all weights", "new initial weights", "random mask")
    curves = Curves(
        "weights left", "accuracy", [float(at) for at in range(1110, 1099, -1)], {n: [0.5] * 11 for n in names}
    )
    wide, narrow = pictures(curves)
    for picture, width, rows in ((wide, WIDE, 1), (narrow, NARROW, 2)):
        keys = list(picture.iterfind("g/text"))
        assert len({key.get("y") for key in keys}) == rows
        assert all(float(key.get("x", "")) + LETTER * len(key.text or "") <= width for key in keys)
        assert all(y > float(keys[-1].get("y", "")) for line in lines_of(picture) for _, y in line)
        named = [float(text.get("x", "")) for text in picture.findall("text") if text.get("text-anchor") == "middle"]
        assert all(after - before >= 4 * LETTER for before, after in pairwise(named))


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
