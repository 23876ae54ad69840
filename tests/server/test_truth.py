"""One long story, and every page, report, badge and answer about it: each coloured element and each verdict word is
what the statements say.

main    1 ─ 2 ─ 3 ─ 4 ─ 5 ─ 6 ─ 7 ─ 8 ─ 9 ─ 10 ─ 11 ─ 12 ─ 13 ─ 14
wip         └─ w1 (v3 is slower, never merged)

3, 7 and 13 change the manual, 5 only imports a module. At 4 v3 becomes slower on two cases, at 6 v2 faster, at 8 v3 has
its old time again on one of the two cases, at 9 v2 is wrong and at 10 right again, 11 does not build, and 14 makes v2
slower, which no trial has decided. v1 is torch's own: its code never changes, and its times scatter.

5 to 13 are measured on a GPU, too: there 10 makes the launches of v2 slower, and 12 makes those of v3 slower and its
kernels faster.
"""

from __future__ import annotations

import random
import re
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from tests.apps import create_app
from tests.builders import CASES, CPU, GPU, Lab, run_git
from tests.conftest import emptied
from tests.server.simulated import BASE_NS, V1, V2, V3, Cell, Machine, Truth
from tests.server.story import Story
from tests.server.truth import PERCENT, Claim, claims_of
from warpwatch.contract.words import NoticeKind, Signal, StatementDirection, StatementKind, Status
from warpwatch.db.channels import Listener
from warpwatch.db.database import Database
from warpwatch.db.reads.devices import list_devices
from warpwatch.db.reads.lines import read_line
from warpwatch.db.reads.overview import OverviewCell, read_overview
from warpwatch.db.regressions import read_regression
from warpwatch.server.explanation import statements as stated_module
from warpwatch.server.figures import overview_rows, verdict_timeline
from warpwatch.server.judge import Judge
from warpwatch.server.reports import formats
from warpwatch.server.reports.notices import change_notice, withdrawn_notices
from warpwatch.server.verdicts import statements as rules
from warpwatch.server.verdicts.statements import Statement
from warpwatch.server.web import render
from warpwatch.settings import Settings

V3_SECOND = ("v3", CASES[1])
CELLS = (V1, V2, V3, V3_SECOND)
SLOW, FAST = 1.4, 0.6


@dataclass
class Planted(Truth):
    """The factor of time of a cell at each commit, the commits at which it is wrong, and those that do not build."""

    factors: dict[Cell, dict[int, float]] = field(default_factory=lambda: defaultdict(dict))
    wrong: set[tuple[Cell, int]] = field(default_factory=set)
    failing: set[int] = field(default_factory=set)

    def status(self, cell: Cell, number: int) -> Status:
        if number in self.failing:
            return Status.BUILD_FAILED
        return Status.WRONG if (cell, number) in self.wrong else Status.OK

    def time(self, cell: Cell, number: int) -> float:
        return BASE_NS * self.factors[cell].get(number, 1.0)


@dataclass
class Scattering(Machine):
    """A machine on which v1, torch's own, takes very different times from run to run."""

    def _timed(self, cell: Cell, number: int) -> float | Status:
        value = super()._timed(cell, number)
        return value * self.chance.choice((0.8, 1.0, 1.3)) if cell == V1 and isinstance(value, float) else value


@pytest.fixture(scope="module")
def database_url(shared_database: Database) -> str:
    return emptied(shared_database)


@pytest.fixture(scope="module")
def database(shared_database: Database, database_url: str) -> Database:
    assert database_url
    return shared_database


@pytest.fixture(scope="module")
def story(database: Database, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Story]:
    folder: Path = tmp_path_factory.mktemp("truth")
    settings = Settings(home=folder / "home", database_url=database.url)
    app = create_app(settings, database, judge=False)
    with TestClient(app, base_url="http://127.0.0.1:8321", raise_server_exceptions=False) as client:
        yield tell(client, settings, database, folder)


def tell(client: TestClient, settings: Settings, database: Database, folder: Path) -> Story:
    """Makes the repository, and measures and judges all of it."""
    source = folder / "kernels"
    (source / "kernels").mkdir(parents=True)
    run_git(source, "init", "--quiet", "--initial-branch", "main")
    lab = Lab(database, source, [], folder)
    truth = Planted()
    judge = Judge(settings, database)
    machine = Scattering(client, lab, judge, truth, cells=CELLS, chance=random.Random(3))
    story = Story(source, machine, settings, database)
    factors = dict.fromkeys(CELLS, 1.0)
    changes: dict[str, dict[Cell, float]] = {
        "4": {V3: SLOW, V3_SECOND: SLOW},
        "6": {V2: FAST},
        "8": {V3: 1.0},
        "14": {V2: FAST * SLOW},
    }
    for number in range(1, 15):
        name = str(number)
        is_manual = name in ("3", "7", "13")
        story.commit(name, None if is_manual else f"{'import math' if number >= 5 else ''}\nSTATE = {number}\n")
        factors |= changes.get(name, {})
        for cell in CELLS:
            truth.factors[cell][story.names[name]] = factors[cell]
        if number == 2:
            run_git(source, "checkout", "--quiet", "-b", "wip")
            story.commit("w1", "STATE = 'work in progress'\n")
            truth.factors[V3][story.names["w1"]] = SLOW
            run_git(source, "checkout", "--quiet", "main")
    truth.wrong = {(V2, story.names["9"])}
    truth.failing = {story.names["11"]}
    story.fetch()
    for number in range(1, 15):
        story.measure(str(number))
        if number < 14:
            story.work()
    measure_on_gpu(story)
    return story


@dataclass
class OnGpu(Machine):
    """A machine that leaves the jobs of other devices alone."""

    def waiting(self) -> list[dict[str, Any]]:
        return [job for job in super().waiting() if job["device_key"] == GPU.device_key]


def measure_on_gpu(story: Story) -> None:
    """The host's time of calls changes, beside kernels that do not and kernels that do."""
    lab, (tenth, twelfth) = story.machine.lab, (story.names[name] for name in ("10", "12"))
    launches = {V2: {tenth: SLOW}, V3: {twelfth: SLOW}}
    truth = Truth(times={V3: {twelfth: FAST}}, launches=launches)
    machine = OnGpu(story.client, lab, story.machine.judge, truth, cells=(V2, V3), between=0.003, within=0.003)
    lab.switch(GPU)
    for number in range(5, 14):
        machine.bench(story.names[str(number)])
        machine.work()
    lab.switch(CPU)


@dataclass
class World:
    """What is true of the story: the statements that an element may render, by what it is about."""

    by_series: dict[tuple[int, str], set[tuple[str, str | None]]] = field(default_factory=lambda: defaultdict(set))
    by_regression: dict[int, set[tuple[str, str | None]]] = field(default_factory=lambda: defaultdict(set))
    signals: dict[int, set[str | None]] = field(default_factory=lambda: defaultdict(set))
    """The signals of the series that show a regression, and of the one that it is named by."""
    numbers: dict[int, set[str]] = field(default_factory=lambda: defaultdict(set))
    """The changes that may be written of a regression."""
    fixes: dict[int, str] = field(default_factory=dict)
    """The commits that ended changes."""
    answers: dict[str, Any] = field(default_factory=dict)
    """Answers of the API, whose statements must not change."""


def view(statement: Statement) -> tuple[str, str | None]:
    return str(statement.kind), str(statement.direction) if statement.direction else None


def read_world(story: Story) -> World:
    world = World()
    shas = list(story.machine.lab.shas)
    with story.database.session() as session:
        line = read_line(session, story.machine.lab.repository)
        assert line is not None
        cells = session_cells(story)
        ids = {number for cell in cells for number in (cell.series_id, cell.launch_series_id) if number}
        statements = stated_module.read_statements(session, ids, shas, line)
        for (series_id, sha), statement in statements.items():
            world.by_series[series_id, sha].add(view(statement))
        for row in list_rows(story):
            detail = read_regression(session, row["id"])
            assert detail is not None
            whole = rules.state_regression(detail.regression)
            world.by_regression[row["id"]].add(view(whole))
            world.signals[row["id"]].add(whole.signal)
            world.numbers[row["id"]].add(formats.change(whole.ratio))
            if row["fixed_by_sha"] is not None:
                world.fixes[row["id"]] = row["fixed_by_sha"]
            for member in detail.series:
                statement = rules.state_member(member)
                world.by_regression[row["id"]].add(view(statement))
                if statement.kind != StatementKind.NOT_TOLD_APART:
                    world.signals[row["id"]].add(statement.signal)
                world.numbers[row["id"]] |= {formats.change(statement.ratio), formats.change(member.ratio)}
    world.answers = {path: statements_in(story.json(path, **query)) for path, query in answers_of(story)}
    return world


def session_cells(story: Story) -> list[OverviewCell]:
    with story.database.session() as session:
        line = read_line(session, story.machine.lab.repository)
        assert line is not None
        devices = {row.key: row.id for row in list_devices(session)}
        return [
            cell
            for key, metric in (("test-cpu", "hot"), ("test-gpu", "graph"))
            for cell in read_overview(session, story.machine.lab.repository, devices[key], metric, line)
        ]


def list_rows(story: Story) -> list[dict[str, Any]]:
    asked = {"repository": "kernels", "state": "any", "branch": "*", "limit": 200}
    verdicts = ("confirmed", "suspected", "dismissed", "unsure")
    return [row for verdict in verdicts for row in story.json("/regressions", verdict=verdict, **asked)["items"]]


def statements_in(answer: Any) -> list[tuple[Any, ...]]:
    """Every statement in an answer of the API, with its number."""
    if isinstance(answer, dict):
        names = ("kind", "direction", "ratio", "is_ended", "signal")
        stated = [answer.get(key) for key in ("statement", "launch_statement", "launch")]
        found = [tuple(own[name] for name in names) for own in stated if isinstance(own, dict) and "signal" in own]
        return found + [item for value in answer.values() for item in statements_in(value)]
    return [item for value in answer for item in statements_in(value)] if isinstance(answer, list) else []


def answers_of(story: Story) -> list[tuple[str, dict[str, Any]]]:
    of_device = {"repository": "kernels", "device": "test-cpu"}
    of_gpu = of_device | {"device": "test-gpu"}
    newest = max(row["id"] for row in story.json("/submissions", repository="kernels", limit=200)["items"])
    return [
        ("/overview", of_device),
        ("/overview", of_gpu),
        *((f"/commits/{sha}/cells", {"repository": "kernels", "limit": 200}) for sha in story.machine.lab.shas),
        ("/compare", of_device | {"left": story.sha("3"), "right": story.sha("4")}),
        ("/compare", of_gpu | {"left": story.sha("11"), "right": story.sha("12")}),
        *((f"/submissions/{number}/report", {}) for number in range(1, newest + 1)),
    ]


def pages_of(story: Story) -> list[str]:
    """Every page that says something of the story, but of those of jobs and submissions one in three."""
    cells = session_cells(story)
    series = sorted({number for cell in cells for number in (cell.series_id, cell.launch_series_id) if number})
    rows = list_rows(story)
    jobs = [row["id"] for row in story.json("/jobs", limit=200)["items"]]
    submissions = [row["id"] for row in story.json("/submissions", repository="kernels", limit=200)["items"]]
    return [
        *(
            f"{page}?device={device}"
            for page in ("/overview", "/overview/shifts", "/overview/cases/square", "/kernels/square")
            for device in ("test-cpu", "test-gpu")
        ),
        "/regressions?state=any",
        "/regressions?state=any&verdict=suspected",
        "/regressions?state=any&verdict=dismissed",
        "/commits",
        *(f"/commits/{sha}" for sha in story.machine.lab.shas),
        f"/compare?device=test-cpu&base={story.sha('3')}&head={story.sha('4')}",
        f"/compare?device=test-cpu&base={story.sha('12')}&head={story.sha('14')}",
        f"/compare?device=test-cpu&commit={story.sha('12')}&left=v1&right=v2",
        f"/compare?device=test-gpu&base={story.sha('11')}&head={story.sha('12')}",
        f"/compare?device=test-gpu&base={story.sha('9')}&head={story.sha('10')}",
        "/commits?tab=branches",
        "/branches/wip",
        *(f"/submissions/{number}" for number in submissions[::3]),
        *(f"/history/{number}" for number in series),
        *(f"/regressions/{row['id']}" for row in rows),
        *(f"/jobs/{number}" for number in jobs[::3]),
    ]


def read_claims(story: Story, pages: list[str]) -> list[Claim]:
    claims = []
    for page in pages:
        answer = story.client.get(page, params=None if "?" in page else {"repository": "kernels"})
        assert answer.status_code == 200, (page, answer.text[:300])
        claims += claims_of(page, answer.text)
    return claims


COLOURS: dict[tuple[str, str | None], set[str]] = {
    ("confirmed", "slower"): {"slower", "worse"},
    ("confirmed", "broken"): {"slower", "worse"},
    ("confirmed", "faster"): {"faster", "better"},
    ("confirmed", "fixed"): {"faster", "better"},
    ("failed", None): {"failing"},
    ("shift", None): {"shift"},
}


def contradictions(claims: list[Claim], world: World) -> list[str]:
    """What claims say that is not so."""
    return [f"{claim.page}: {why}: {claim}" for claim in claims if (why := contradiction(claim, world)) is not None]


def contradiction(claim: Claim, world: World) -> str | None:
    if claim.kind is None:
        return "coloured or worded like a verdict, and renders no statement"
    said = (claim.kind, claim.direction)
    kinds = {kind for kind, _ in world.by_regression.get(claim.regression or 0, ())}
    allowed = COLOURS.get(said, {"suspected"} if claim.kind == "suspected" else set())
    if not claim.classes <= allowed:
        return "has the colour of another statement"
    if claim.word is not None and said != ("confirmed", claim.word):
        return "has a word that its statement does not have"
    if claim.regression is not None:
        if said == ("confirmed", "fixed"):
            is_there = claim.is_fix or claim.commit == world.fixes.get(claim.regression)
            return None if is_there and claim.regression in world.fixes else "it was not fixed there"
        if claim.direction is None and claim.kind in kinds:
            return None
        if said not in world.by_regression[claim.regression]:
            return f"its regression is {world.by_regression[claim.regression]}"
        if not claim.signals <= world.signals[claim.regression]:
            return f"its regression is one of {world.signals[claim.regression]}"
        numbers = PERCENT.findall(claim.text)[:1]
        if numbers and not set(numbers) & world.numbers[claim.regression]:
            return f"its regression changed by {world.numbers[claim.regression]}"
        return None
    if claim.series is not None and claim.commit is not None and not claim.page.startswith("/compare"):
        if said not in world.by_series[claim.series, claim.commit]:
            return f"its series is {world.by_series[claim.series, claim.commit]}"
        return None
    return None


@pytest.fixture(scope="module")
def world(story: Story) -> World:
    return read_world(story)


@pytest.fixture(scope="module")
def claims(story: Story) -> list[Claim]:
    return read_claims(story, pages_of(story))


def test_the_story_is_what_was_planted(story: Story) -> None:
    confirmed = [row for row in list_rows(story) if row["verdict"] == "confirmed" and row["phase"] != "invalid"]
    rows = {(row["direction"], row["head_sha"]): row for row in confirmed if row["device_key"] == "test-cpu"}
    of_gpu = {(row["direction"], row["signal"], row["head_sha"]) for row in confirmed if row not in rows.values()}
    assert of_gpu == {
        ("slower", "launch", story.sha("10")),
        ("slower", "launch", story.sha("12")),
        ("faster", "kernel", story.sha("12")),
    }
    slow = rows["slower", story.sha("4")]
    assert (slow["fixed_series"], slow["series"]) == (1, 2)
    assert slow["partly_fixed_by_sha"] == story.sha("8")
    assert 1.3 < slow["left_ratio"] < 1.5
    assert ("faster", story.sha("6")) in rows
    assert ("faster", story.sha("8")) in rows
    assert rows["broken", story.sha("9")]["fixed_by_sha"] == story.sha("10")
    assert [row["head_sha"] for row in list_rows(story) if row["verdict"] == "suspected"] == [story.sha("14")]
    titles = {story.sha(name) for name in ("4", "6", "8", "9", "11")}
    assert {sha for _, sha in rows} <= titles, "nothing else happened"


def test_a_commit_is_called_what_it_did_whatever_later_commits_undid(story: Story) -> None:
    with story.database.session() as session:
        line = read_line(session, story.machine.lab.repository)
        assert line is not None
        undone = 0
        for row in list_rows(story):
            detail = read_regression(session, row["id"])
            assert detail is not None
            for member in detail.series:
                if row["verdict"] == member.verdict == "confirmed" and member.ratio is not None:
                    undone += member.left_ratio is not None
                    stated = stated_module.read_statements(session, {member.series_id}, [row["head_sha"]], line)
                    assert stated[member.series_id, row["head_sha"]].ratio == member.ratio
    assert undone


def test_every_coloured_element_and_word_is_what_the_statements_say(claims: list[Claim], world: World) -> None:
    found = contradictions(claims, world)
    assert found == [], "\n".join(found)
    kinds = {claim.kind for claim in claims}
    assert {"confirmed", "suspected", "failed", "same_code", "not_told_apart"} <= kinds
    assert len(claims) > 200


def test_words_of_reports_and_messages_are_those_of_statements(story: Story, world: World) -> None:
    """The formats of a report have no elements: each line with a verdict word is about a confirmed change."""
    for submission in story.json("/submissions", repository="kernels", limit=200)["items"]:
        address = f"/api/v1/submissions/{submission['id']}/report"
        report = story.json(f"/submissions/{submission['id']}/report")
        rows = report["rows"]
        words = {row["kind"] for row in rows}
        confirmed = {row["statement"]["direction"] for row in rows if row["statement"]["kind"] == "confirmed"}
        assert words & {"slower", "faster"} == confirmed
        assert set(re.findall(r"\d (slower|faster)\b", report["summary"])) == confirmed
        texts = {
            ending: story.client.get(f"{address}{ending}").text for ending in (".md", ".junit.xml", ".github.json")
        }
        results = story.client.get(f"{address}.sarif").json()["runs"][0]["results"]
        said = {result["ruleId"] for result in results} & {"slower", "faster"}
        for text in texts.values():
            said |= set(
                re.findall(r"(?:\*\*|is |\"title\": ?\")(?:kernel |launch )?(slower|faster)\b(?!, accepted)", text)
            )
        assert said <= confirmed, submission["id"]
    badge = story.client.get("/api/v1/badges/kernels.svg").text
    assert "3 slower (2 launch)" in badge
    assert "1 suspected" in badge
    listener = Listener(1, 1, "kernels", [], None, [], None, None, "UTC", datetime.now(UTC))
    with story.database.session() as session:
        for row in list_rows(story):
            detail = read_regression(session, row["id"])
            assert detail is not None
            title = change_notice(NoticeKind.CONFIRMED, listener, detail.regression, None, "http://here", {}).title
            if row["verdict"] in ("dismissed", "unsure"):
                (withdrawn,) = withdrawn_notices(listener, [detail], "http://here", {})
                title += f" {withdrawn.title} {withdrawn.text}"
            directions = {direction for kind, direction in world.by_regression[row["id"]] if kind == "confirmed"}
            assert set(re.findall(r"\b(slower|faster)\b", title)) <= directions, title


@pytest.fixture(scope="module")
def few_pages(story: Story) -> list[str]:
    """The overview, and pages on which every kind of statement stands."""
    commits = [f"/commits/{story.sha(name)}" for name in ("3", "4", "5", "6", "8", "9", "10", "12", "14")]
    changes = [f"/regressions/{row['id']}" for row in list_rows(story) if row["verdict"] in ("confirmed", "suspected")]
    overviews = [
        f"{page}?device={device}"
        for page in ("/overview", "/overview/cases/square")
        for device in ("test-cpu", "test-gpu")
    ]
    return [*overviews, "/regressions?state=any", "/commits", *commits, *changes]


Falsify = Callable[[Statement], Statement]


def swapped(statement: Statement) -> Statement:
    turn = {StatementDirection.SLOWER: StatementDirection.FASTER, StatementDirection.FASTER: StatementDirection.SLOWER}
    turn |= {StatementDirection.BROKEN: StatementDirection.FIXED, StatementDirection.FIXED: StatementDirection.BROKEN}
    return replace(statement, direction=turn[statement.direction]) if statement.direction else statement


def as_kind(kind: StatementKind, direction: StatementDirection | None = None) -> Falsify:
    return lambda statement: replace(statement, kind=kind, direction=direction)


def other_signal(statement: Statement) -> Statement:
    return replace(statement, signal=Signal.KERNEL if statement.signal == Signal.LAUNCH else Signal.LAUNCH)


FALSIFIED: dict[str, tuple[Falsify, Callable[[Statement], bool]]] = {}
for _direction in StatementDirection:
    FALSIFIED[f"confirmed {_direction} is turned round"] = (
        swapped,
        lambda s, d=_direction: s.kind == StatementKind.CONFIRMED and s.direction == d,  # type: ignore[misc]
    )
    FALSIFIED[f"confirmed {_direction} is not told apart"] = (
        as_kind(StatementKind.NOT_TOLD_APART),
        lambda s, d=_direction: s.kind == StatementKind.CONFIRMED and s.direction == d,  # type: ignore[misc]
    )
    FALSIFIED[f"confirmed {_direction} is a shift"] = (
        as_kind(StatementKind.SHIFT),
        lambda s, d=_direction: s.kind == StatementKind.CONFIRMED and s.direction == d,  # type: ignore[misc]
    )
for _kind in (StatementKind.SAME_CODE, StatementKind.NOT_TOLD_APART, StatementKind.SUSPECTED):
    for _name, _change in {
        "confirmed slower": as_kind(StatementKind.CONFIRMED, StatementDirection.SLOWER),
        "confirmed faster": as_kind(StatementKind.CONFIRMED, StatementDirection.FASTER),
        "a shift": as_kind(StatementKind.SHIFT),
    }.items():
        FALSIFIED[f"{_kind} is {_name}"] = (_change, lambda s, k=_kind: s.kind == k)  # type: ignore[misc]
for _signal in Signal:
    FALSIFIED[f"confirmed of {_signal} is said of the other signal"] = (
        other_signal,
        lambda s, signal=_signal: s.kind == StatementKind.CONFIRMED and s.signal == signal,  # type: ignore[misc]
    )


@pytest.mark.parametrize("name", FALSIFIED)
def test_every_falsified_statement_is_noticed(
    name: str, story: Story, world: World, few_pages: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rule says something else of one series or change: an element or an answer shows it."""
    change, applies = FALSIFIED[name]
    lies: list[tuple[int | None, int | None]] = []

    def falsify(rule: Callable[..., Statement]) -> Callable[..., Statement]:
        def wrong(*values: Any, **more: Any) -> Statement:
            statement = rule(*values, **more)
            about = (statement.regression_id, None) if statement.regression_id else (None, statement.series_id)
            if not applies(statement) or about == (None, None):
                return statement
            if not lies:
                lies.append(about)
            return change(statement) if about == lies[0] else statement

        return wrong

    state_rules = ("state_regression", "state_cell", "state_launch", "state_change", "state_member")
    for rule_name in state_rules:
        monkeypatch.setitem(render.environment().filters, rule_name, falsify(getattr(rules, rule_name)))
    monkeypatch.setattr(stated_module, "state_series", falsify(rules.state_series))
    monkeypatch.setattr(overview_rows, "state_cell", falsify(rules.state_cell))
    for module in (overview_rows, verdict_timeline):
        monkeypatch.setattr(module, "state_mark", falsify(rules.state_mark))
    is_found = any(contradictions(read_claims(story, [page]), world) for page in few_pages)
    assert lies, "the story has such a statement"
    if not is_found:
        answers = {path: statements_in(story.json(path, **query)) for path, query in answers_of(story)[:16]}
        assert any(world.answers[path] != answer for path, answer in answers.items()), name
