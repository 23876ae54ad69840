"""Every path through the table of steps, over simulated histories and without a database: the guilty commit, the number
of trials, and that every path ends."""

from __future__ import annotations

import re
from dataclasses import replace
from math import ceil, log2
from pathlib import Path
from typing import get_args

import pytest

from tests.server.simulated_trials import BRANCH, Edge, SimulatedDevice, SimulatedJudge, answers
from warpwatch.contract.words import Cause, Status, Verdict
from warpwatch.db.reads.judging import MergedRange
from warpwatch.server.verdicts.steps import RegressionStage, Step
from warpwatch.server.verdicts.table import plan_steps
from warpwatch.server.verdicts.thresholds import THRESHOLDS

PAGE = Path(__file__).parents[2] / "docs" / "verdicts.md"
LENGTHS = range(1, 17)
EVERY_PLACE = [(commits, culprit) for commits in LENGTHS for culprit in range(1, commits + 1)]
OCCURRED: set[Edge] = set()
"""The edges of all histories of this file, which the diagram must hold."""


def search(device: SimulatedDevice, series: dict[int, float | None], cause: Cause = Cause.HISTORY) -> SimulatedJudge:
    """Suspects the whole history and answers every trial."""
    judge = SimulatedJudge(device)
    judge.suspect(0, device.commits, series, cause)
    judge.work()
    OCCURRED.update(judge.edges)
    return judge


def most_trials(commits: int) -> int:
    """Trials of one change: the whole range, the halves, and the proof of the last pair."""
    return 1 if commits == 1 else 2 + ceil(log2(commits))


@pytest.mark.parametrize(("commits", "culprit"), EVERY_PLACE)
def test_a_step_is_located_wherever_it_is(commits: int, culprit: int) -> None:
    judge = search(SimulatedDevice(commits, times={1: {culprit: 1.2}}), {1: 1.2})
    assert judge.located() == {("slower", culprit - 1, culprit)}
    assert judge.asked.total() <= most_trials(commits)


@pytest.mark.parametrize(("commits", "culprit"), EVERY_PLACE)
def test_a_breakage_is_located_wherever_it_is(commits: int, culprit: int) -> None:
    judge = search(SimulatedDevice(commits, broken={1: (culprit, Status.WRONG)}), {1: None})
    assert judge.located() == {("broken", culprit - 1, culprit)}
    assert judge.asked.total() <= most_trials(commits)


@pytest.mark.parametrize(("commits", "culprit"), EVERY_PLACE)
def test_a_commit_that_does_not_build_only_widens_the_range(commits: int, culprit: int) -> None:
    """Every other commit does not build: the change lies between the two buildable neighbours of the guilty one."""
    unbuildable = frozenset(number for number in range(1, commits) if number % 2)
    judge = search(SimulatedDevice(commits, times={1: {culprit: 1.2}}, unbuildable=unbuildable), {1: 1.2})
    base = max(number for number in range(culprit) if number not in unbuildable)
    head = min(number for number in range(culprit, commits + 1) if number not in unbuildable)
    assert judge.located() == {("slower", base, head)}
    assert judge.asked.total() <= most_trials(commits) + len(unbuildable)


@pytest.mark.parametrize("commits", LENGTHS)
def test_only_commits_with_other_sources_are_tried(commits: int) -> None:
    unchanged = frozenset(range(1, commits))
    judge = search(SimulatedDevice(commits, times={1: {commits: 1.2}}, unchanged=unchanged), {1: 1.2})
    assert judge.located() == {("slower", commits - 1, commits)}
    assert judge.asked.total() == min(commits, 2)


@pytest.mark.parametrize("culprit", range(1, 8))
def test_a_refuted_proof_makes_all_commits_suspects(culprit: int) -> None:
    """By its sources only commit 8 can be guilty, and it is not."""
    device = SimulatedDevice(8, times={1: {culprit: 1.2}}, unchanged=frozenset(range(1, 8)))
    judge = search(device, {1: 1.2})
    assert judge.located() == {("slower", culprit - 1, culprit)}
    assert ("prove", "same") in answers(judge, 1)


@pytest.mark.parametrize(
    ("times", "expected"),
    [
        ({2: 1.5, 6: 0.8}, {("slower", 1, 2), ("faster", 5, 6)}),
        ({2: 0.5, 6: 1.4}, {("faster", 1, 2), ("slower", 5, 6)}),
        ({2: 1.3, 6: 1.2}, {("slower", 1, 2), ("slower", 5, 6)}),
    ],
)
def test_what_later_commits_of_the_range_undo_or_add_is_located_too(
    times: dict[int, float], expected: set[tuple[str, int, int]]
) -> None:
    """A slow-down behind a larger speed-up is no part of it: nobody else would look inside a range that was tried."""
    judge = search(SimulatedDevice(8, times={1: times}), {1: 1.2 if times[2] > 1 else 0.7})
    assert judge.located() == expected


def test_noise_is_dismissed_after_one_trial() -> None:
    judge = search(SimulatedDevice(8), {1: 1.2})
    assert judge.verdicts() == ["dismissed"]
    assert answers(judge, 1) == [("confirm", "same")]


def test_what_is_unsure_is_tried_once_more_with_more_rounds() -> None:
    judge = search(SimulatedDevice(8, times={1: {3: 1.2}}, noisy=frozenset({(0, 8)})), {1: 1.2})
    assert judge.verdicts() == ["unsure"]
    assert answers(judge, 1) == [("confirm", "unsure"), ("retry", "unsure")]
    rounds = [trial.spec.rounds for trial in judge.facts[1].trials]
    assert rounds == [THRESHOLDS["cuda"].rounds, THRESHOLDS["cuda"].more_rounds]


def test_what_one_series_confirms_does_not_wait_for_another() -> None:
    judge = search(SimulatedDevice(8, times={1: {3: 1.2}, 2: {3: 1.008}}, noise=0.006), {1: 1.2, 2: 1.01})
    assert judge.located() == {("slower", 2, 3)}
    assert [str(member.verdict) for member in judge.facts[1].members] == ["confirmed", "unsure"]
    assert {purpose for purpose, _ in answers(judge, 1)} == {"confirm", "bisect"}


def test_an_unsure_half_leaves_the_range_that_shows_the_change() -> None:
    judge = search(SimulatedDevice(8, times={1: {3: 1.2}}, noisy=frozenset({(0, 4)})), {1: 1.2})
    assert judge.located() == {("slower", 0, 8)}
    assert answers(judge, 1) == [("confirm", "changed"), ("bisect", "unsure"), ("bisect", "unsure")]
    assert "Trials in between were inconclusive" in judge.notes[-2]


def test_a_pair_that_stays_unsure_is_reported_by_its_narrowest_proof() -> None:
    judge = search(SimulatedDevice(2, times={1: {2: 1.2}}, noisy=frozenset({(1, 2)})), {1: 1.2})
    assert judge.located() == {("slower", 1, 2)}
    purposes = ["confirm", "bisect", "prove", "prove"]
    assert [purpose for purpose, _ in answers(judge, 1)] == purposes


@pytest.mark.parametrize("ending", ["failed", "cancelled"])
@pytest.mark.parametrize("number", range(1, 5))
def test_a_job_that_does_not_run_ends_the_search_until_a_person_retries_it(ending: str, number: int) -> None:
    judge = search(SimulatedDevice(8, times={1: {3: 1.2}}, endings={number: ending}), {1: 1.2})
    assert judge.facts[1].regression.settled_at
    assert judge.trials >= number
    assert judge.verdicts() == (["unsure"] if number == 1 else ["confirmed"])
    judge.answer(1, number, ending="done")
    judge.work()
    assert judge.located() == {("slower", 2, 3)}
    OCCURRED.update(judge.edges)


def test_a_lost_job_is_waited_for() -> None:
    """A lost job is queued again, so its trial stays pending and nothing else is asked for."""
    judge = SimulatedJudge(SimulatedDevice(8, times={1: {3: 1.2}}))
    judge.suspect(0, 8, {1: 1.2})
    steps = plan_steps(
        judge.context(1), lambda step: pytest.fail("git was asked"), lambda step: pytest.fail("git was asked")
    )
    assert [type(step).__name__ for step in steps] == ["Wait"]


def test_a_base_that_cannot_be_measured_says_nothing_about_the_head() -> None:
    judge = search(SimulatedDevice(4, times={1: {3: 1.2}}, base_failures=frozenset({2, 3})), {1: 1.2})
    assert answers(judge, 1) == [("confirm", "changed"), ("bisect", "unsure"), ("bisect", "unsure")]
    assert judge.located() == {("slower", 0, 4)}


def test_the_direction_turns_where_code_alone_was_suspicious() -> None:
    judge = search(SimulatedDevice(1, times={1: {1: 0.8}}), {1: 1.001}, Cause.CODE)
    assert judge.located() == {("faster", 0, 1)}
    assert judge.asked.total() == 1
    assert judge.notes[0] == "slower was expected, and the opposite was measured"


def test_series_that_disagree_become_two_regressions() -> None:
    judge = search(SimulatedDevice(8, times={1: {3: 1.2}, 2: {6: 0.8}, 3: {}}), {1: 1.2, 2: 1.1, 3: 1.1})
    assert judge.located() == {("slower", 2, 3), ("faster", 5, 6)}
    verdicts = {member.series_id: str(member.verdict) for member in judge.facts[1].members}
    assert verdicts == {1: "confirmed", 2: "dismissed", 3: "dismissed"}


def test_the_direction_does_not_turn_into_a_regression_that_exists() -> None:
    judge = SimulatedJudge(SimulatedDevice(1, times={1: {1: 0.8}, 2: {1: 0.8}}))
    judge.suspect(0, 1, {1: 0.8})
    judge.suspect(0, 1, {2: 1.1})
    judge.work()
    OCCURRED.update(judge.edges)
    assert judge.located() == {("faster", 0, 1)}
    assert {member.series_id for member in judge.facts[1].members} == {1, 2}


@pytest.mark.parametrize(("first", "second"), [(a, b) for a in range(1, 8) for b in range(a + 1, 9)])
def test_two_changes_in_one_range_are_both_located(first: int, second: int) -> None:
    judge = search(SimulatedDevice(8, times={1: {first: 1.1, second: 1.3}}), {1: 1.43})
    assert judge.located() == {("slower", first - 1, first), ("slower", second - 1, second)}
    assert judge.asked.total() <= 2 * most_trials(8)


def test_two_breakages_in_one_range_are_both_located() -> None:
    device = SimulatedDevice(8, broken={1: (2, Status.WRONG), 2: (6, Status.CRASHED)})
    assert search(device, {1: None, 2: None}).located() == {("broken", 1, 2), ("broken", 5, 6)}


def test_two_searches_that_end_at_one_commit_are_merged() -> None:
    judge = SimulatedJudge(SimulatedDevice(8, times={1: {3: 1.2}, 2: {3: 1.3}}))
    judge.suspect(0, 5, {1: 1.2})
    judge.suspect(0, 8, {2: 1.3})
    judge.work()
    OCCURRED.update(judge.edges)
    assert judge.located() == {("slower", 2, 3)}
    assert len(judge.invalid) == 1
    (survivor,) = set(judge.facts) - judge.invalid
    assert {member.series_id for member in judge.facts[survivor].members} == {1, 2}


def test_a_base_that_is_broken_too_blames_the_environment() -> None:
    device = SimulatedDevice(4, broken={1: (0, Status.WRONG)}, is_base_right=False)
    judge = search(device, {1: None})
    assert judge.verdicts() == ["dismissed"]
    assert "the environment changed, not the code" in " ".join(judge.notes)
    assert judge.asked.total() == 2


def test_a_base_that_is_right_in_the_new_environment_is_searched_from() -> None:
    judge = search(SimulatedDevice(4, broken={1: (3, Status.WRONG)}, is_base_right=False), {1: None})
    assert judge.located() == {("broken", 2, 3)}


def test_a_range_that_git_cannot_read_is_settled_as_it_is() -> None:
    judge = search(SimulatedDevice(4, times={1: {3: 1.2}}, path_error="no such commit"), {1: 1.2})
    assert judge.located() == {("slower", 0, 4)}
    assert judge.notes[-1] == "not bisected: no such commit"


def test_new_series_of_a_located_change_are_tried_there() -> None:
    judge = search(SimulatedDevice(4, times={1: {3: 1.2}, 2: {3: 1.2}}), {1: 1.2})
    asked = judge.asked.total()
    judge.suspect(2, 3, {2: 1.2})
    judge.work()
    OCCURRED.update(judge.edges)
    assert judge.located() == {("slower", 2, 3)}
    assert judge.asked.total() == asked + 1
    assert [str(member.verdict) for member in judge.facts[1].members] == [Verdict.CONFIRMED] * 2


# --- merge commits --------------------------------------------------------------------------------------------


def branch(base: int, length: int) -> tuple[int, ...]:
    """A branch of so many commits that left the range at `base`."""
    return (base, *range(BRANCH + 1, BRANCH + 1 + length))


@pytest.mark.parametrize(
    ("length", "culprit"), [(length, at) for length in range(1, 10) for at in range(1, length + 1)]
)
def test_the_culprit_in_a_merged_branch_is_located(length: int, culprit: int) -> None:
    times = {1: {5: 1.2, BRANCH + culprit: 1.2}}
    judge = search(SimulatedDevice(8, times=times, merges={5: (branch(2, length),)}), {1: 1.2})
    assert judge.located() == {("slower", 4, 5)}
    base = 2 if culprit == 1 else BRANCH + culprit - 1
    assert judge.found_in_merges == {1: ("branch", base, BRANCH + culprit)}
    assert judge.asked.total() <= most_trials(8) + most_trials(length)


@pytest.mark.parametrize("culprit", range(1, 5))
def test_a_breakage_in_a_merged_branch_is_located(culprit: int) -> None:
    device = SimulatedDevice(
        8,
        broken={1: (5, Status.WRONG)},
        broken_branch={1: (BRANCH + culprit, Status.WRONG)},
        merges={5: (branch(2, 4),)},
    )
    judge = search(device, {1: None})
    assert judge.located() == {("broken", 4, 5)}
    base = 2 if culprit == 1 else BRANCH + culprit - 1
    assert judge.found_in_merges == {1: ("branch", base, BRANCH + culprit)}


@pytest.mark.parametrize("branches", [(branch(2, 4),), (branch(2, 2), branch(1, 3)), ((2,),)])
def test_a_merge_whose_sides_are_innocent_is_the_culprit(branches: tuple[tuple[int, ...], ...]) -> None:
    judge = search(SimulatedDevice(8, times={1: {5: 1.2}}, merges={5: branches}), {1: 1.2})
    assert judge.located() == {("slower", 4, 5)}
    assert judge.found_in_merges == {1: ("merge", 4, 5)}


def test_a_merge_that_loses_a_fix_is_the_culprit_of_the_breakage() -> None:
    """The branch left where the operator was broken: its commits are broken, too, and none of them broke it."""
    device = SimulatedDevice(
        4,
        broken={1: (3, Status.WRONG)},
        broken_branch={1: (BRANCH, Status.WRONG)},
        merges={3: ((BRANCH, BRANCH + 1, BRANCH + 2),)},
    )
    judge = search(device, {1: None})
    assert judge.found_in_merges == {1: ("merge", 2, 3)}


def test_of_an_octopus_the_branch_that_shows_the_change_is_searched() -> None:
    branches = ((2, BRANCH + 1, BRANCH + 2), (2, BRANCH + 11, BRANCH + 12, BRANCH + 13))
    judge = search(SimulatedDevice(6, times={1: {4: 1.2, BRANCH + 12: 1.2}}, merges={4: branches}), {1: 1.2})
    assert judge.found_in_merges == {1: ("branch", BRANCH + 11, BRANCH + 12)}


def test_a_merge_inside_a_merged_branch_is_searched_in_turn() -> None:
    merges = {4: ((2, BRANCH + 1, BRANCH + 50),), BRANCH + 50: ((1, BRANCH + 30, BRANCH + 31),)}
    judge = search(SimulatedDevice(6, times={1: {4: 1.2, BRANCH + 31: 1.2}}, merges=merges), {1: 1.2})
    assert judge.found_in_merges == {1: ("branch", BRANCH + 30, BRANCH + 31)}


@pytest.mark.parametrize(
    "device",
    [
        SimulatedDevice(4, times={1: {3: 1.2}}, merges={3: ((),)}),
        SimulatedDevice(4, times={1: {3: 1.2}}, merges={3: (branch(1, 2),)}, unbuildable=frozenset({BRANCH + 2})),
        SimulatedDevice(4, times={1: {3: 1.2}}, merges={3: (branch(1, 2),)}, noisy=frozenset({(1, BRANCH + 2)})),
        SimulatedDevice(4, times={1: {3: 1.2}}, merges={3: (branch(1, 2),)}, endings={4: "failed"}),
    ],
    ids=["no merge base", "does not build", "unsure", "job failed"],
)
def test_a_merged_branch_that_cannot_be_searched_is_said_to_be_unknown(device: SimulatedDevice) -> None:
    judge = search(device, {1: 1.2})
    assert judge.located() == {("slower", 2, 3)}
    assert judge.found_in_merges == {1: ("unknown", 2, 3)}


def test_a_branch_that_was_measured_before_it_was_merged_is_not_measured_again() -> None:
    judge = SimulatedJudge(SimulatedDevice(3, times={1: {3: 1.2}}, merges={3: (branch(1, 6),)}))
    number = judge.suspect(2, 3, {1: 1.2})
    known = MergedRange(f"{BRANCH + 3:040x}", f"{BRANCH + 4:040x}", 1)
    judge.facts[number] = replace(judge.facts[number], merged_change=known)
    judge.work()
    assert judge.found_in_merges == {number: ("branch", BRANCH + 3, BRANCH + 4)}
    assert judge.asked.total() == 1


@pytest.mark.parametrize("seed", range(60))
def test_every_path_ends(seed: int) -> None:
    """Random histories with noise, commits that do not build and jobs that do not run: no search goes on for ever."""
    import random

    draw = random.Random(seed)
    commits = draw.randint(1, 16)
    places = range(1, commits + 1)
    ratios = (0.7, 1.02, 1.1, 1.4)
    times = {
        series: {draw.choice(places): draw.choice(ratios), BRANCH + draw.randint(1, 4): draw.choice(ratios)}
        for series in (1, 2, 3)
    }
    device = SimulatedDevice(
        commits,
        times=times,
        unbuildable=frozenset(draw.sample(range(1, commits), k=draw.randint(0, (commits - 1) // 2))),
        noise=draw.choice((0.003, 0.03, 0.3)),
        unchanged=frozenset(number for number in places if draw.random() < 0.3),
        endings={number: draw.choice(("failed", "cancelled")) for number in range(1, 9) if draw.random() < 0.2},
        merges={
            number: (branch(draw.randint(0, number - 1), draw.randint(1, 4)),)
            for number in places
            if draw.random() < 0.4
        },
        kind=draw.choice(("cuda", "cpu")),
    )
    judge = search(device, {1: 1.1, 2: 1.2, 3: 1.05})
    assert all(facts.regression.settled_at for facts in judge.facts.values())


# --- the diagram ----------------------------------------------------------------------------------------------


def drawn_edges() -> set[Edge]:
    """(stage, step, next stage) of the diagram; a choice stands for all stages that it leads to."""
    (diagram,) = re.findall(r"```mermaid\n(.*?)```", PAGE.read_text(encoding="utf-8"), flags=re.S)
    names = {key: name for name, key in re.findall(r'state "([^"]+)" as (\w+)', diagram)}
    choices = set(re.findall(r"state (\w+) <<choice>>", diagram))
    lines = re.findall(r"^ *(\S+) --> (\S+) : (.+)$", diagram, flags=re.M)
    arrows = [(names.get(source, source), names.get(target, target), label) for source, target, label in lines]
    edges = set()
    for source, target, step in arrows:
        targets = {end for start, end, _ in arrows if start == target} if target in choices else {target}
        edges |= {(source, step, end) for end in targets if source not in {"[*]", *choices}}
    return edges


def test_the_diagram_names_every_stage_and_step_and_no_other() -> None:
    edges = drawn_edges()
    stages = {name for source, _, target in edges for name in (source, target)} - {"[*]"}
    assert stages == set(RegressionStage)
    assert {step for _, step, _ in edges} == {step.__name__ for step in get_args(Step)}
    _, _, section = PAGE.read_text(encoding="utf-8").partition("| stage | evidence | step |")
    table = re.findall(r"^\| ([a-z ]+) \| [^|]+ \| `", section, flags=re.M)
    assert table == [str(stage) for stage in RegressionStage], "the table lists the stages in the order that counts"


def test_the_diagram_draws_every_edge_that_occurs() -> None:
    """Runs after the histories above; alone it has nothing to compare."""
    if not OCCURRED:
        pytest.skip("no history ran")
    assert OCCURRED - drawn_edges() == set()
