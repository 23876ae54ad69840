"""The macro that renders statements: what it says, and what it tells machines."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from warpwatch.contract.words import Signal, StatementDirection, StatementKind, StatementSource
from warpwatch.server.reports.wording import statement_tone
from warpwatch.server.verdicts.statements import Statement
from warpwatch.server.web.render import environment

SLOWER = Statement(
    StatementKind.CONFIRMED,
    StatementDirection.SLOWER,
    1.41,
    1.38,
    1.44,
    StatementSource.TRIAL,
    regression_id=7,
    series_id=3,
    commit_sha="a" * 40,
)


def render(statement: Statement, **options: object) -> str:
    macros = environment().get_template("macros/statement.html").module
    return str(macros.mark(statement, **options)).replace("\u2009", " ")  # type: ignore[attr-defined]


def test_a_statement_about_a_launch_names_it_even_where_it_is_brief() -> None:
    launch = replace(SLOWER, signal=Signal.LAUNCH)
    assert re.sub("<[^>]+>", "", render(launch)) == "▲&#8239;launch +41.0 % slower"
    text = render(launch, brief=True)
    assert re.sub("<[^>]+>", "", text) == "▲&#8239;launch +41.0 % slower"
    assert '<span class="quiet"> slower</span>' in text
    assert 'data-signal="launch"' in text
    kernel = render(replace(SLOWER, signal=Signal.KERNEL), brief=True)
    assert re.sub("<span class=.quiet.*?</span>", "", kernel).count("kernel") == 2, "in the tooltip and for machines"


def test_a_statement_tells_machines_what_it_says() -> None:
    text = render(SLOWER, href="/regressions/7", shape="badge")
    assert text.startswith('<a class="statement slower badge" href="/regressions/7"')
    for attribute in (
        'data-statement="confirmed"',
        'data-direction="slower"',
        'data-series="3"',
        f'data-commit="{"a" * 40}"',
        'data-regression="7"',
    ):
        assert attribute in text
    assert re.sub("<[^>]+>", "", text).replace("&#8239;", " ") == "▲ +41.0 % slower"
    assert "+38.0 … +44.0 %" in text, "the interval is in the tooltip"


@pytest.mark.parametrize("kind", list(StatementKind))
def test_only_what_is_confirmed_has_an_arrow_and_a_direction(kind: StatementKind) -> None:
    direction = StatementDirection.SLOWER if kind in (StatementKind.CONFIRMED, StatementKind.SUSPECTED) else None
    statement = Statement(kind, direction, 1.41, status="crashed")
    for brief in (False, True):
        text = re.sub("<[^>]+>", "", render(statement, brief=brief))
        has_words = re.search(r"▲|▼|slower|faster", text) is not None
        assert has_words == (kind == StatementKind.CONFIRMED), text
    assert (statement_tone(statement) in ("slower", "faster")) == (kind == StatementKind.CONFIRMED)


def test_a_change_that_is_over_has_no_colour() -> None:
    ended = Statement(StatementKind.CONFIRMED, StatementDirection.SLOWER, 1.41, is_ended=True)
    assert 'class="statement plain"' in render(ended)
