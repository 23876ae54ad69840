"""The host's time of a call has verdicts of its own: slower launches beside the same kernel, trades of one for the
other, and changes that are too small to be known, all planted and measured with noise."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from tests.builders import GPU, Lab, catalogue
from tests.server.simulated import LAUNCH_NS, V1, V2, Machine, Truth, write_history
from warpwatch import git
from warpwatch.cli.result_table import ResultTable
from warpwatch.contract.outcome import Comparison, Outcome
from warpwatch.contract.words import JobKind, Reason, Status
from warpwatch.db.database import Database
from warpwatch.db.reads.badges import BadgeCounts
from warpwatch.server.judge import Judge
from warpwatch.server.verdicts.held import classify_pairs, classify_trial
from warpwatch.server.verdicts.paired import decide
from warpwatch.server.verdicts.thresholds import kind_of_time
from warpwatch.server.web.badges import words
from warpwatch.settings import Settings

COMMITS, STEP = 9, 6
"""How many there are, and the one that changes something."""
Build = Callable[[Truth], Machine]


@pytest.fixture
def build(client: TestClient, settings: Settings, database: Database, tmp_path: Path) -> Build:
    """Makes a machine with a GPU for a history in which every commit touches the operator."""

    def make(truth: Truth) -> Machine:
        source = tmp_path / "history" / "kernels"
        shas = write_history(source, dict.fromkeys(range(COMMITS), "kernels/square.py"), COMMITS)
        git.update_mirror(str(source), settings.home)
        lab = Lab(database, source, shas, tmp_path, environment=GPU)
        cells = tuple(truth.launches)
        return Machine(client, lab, Judge(settings, database), truth, cells=cells, between=0.003, within=0.003)

    return make


def measure_all(machine: Machine) -> None:
    for number in range(COMMITS):
        machine.bench(number)
        machine.work()


def verdicts(machine: Machine) -> dict[tuple[str, str], str]:
    """The verdict on every series of v1 of every confirmed change, by direction and metric."""
    found: dict[tuple[str, str], str] = {}
    for row in machine.rows():
        detail = machine.client.get(f"/api/v1/regressions/{row['id']}").json()
        found |= {
            (row["direction"], series["metric"]): series["verdict"]
            for series in detail["series"]
            if series["variant"] == "v1"
        }
    return found


def test_a_slower_launch_of_the_same_kernel_is_a_regression_of_the_launch_alone(build: Build) -> None:
    """Of v1; of v2, which did not change, nothing is found."""
    machine = build(Truth(launches={V1: {STEP: 1.5}, V2: {}}))
    measure_all(machine)
    assert machine.rows("suspected") == []
    assert machine.found() == {("slower", STEP - 1, STEP)}
    (row,) = machine.rows()
    assert row["signal"] == "launch"
    assert row["ratio"] == pytest.approx(1.5, abs=0.05)
    assert row["other_ratio"] is None
    confirmed = {key for key, verdict in verdicts(machine).items() if verdict == "confirmed"}
    assert confirmed == {("slower", "launch")}
    page = machine.client.get(f"/regressions/{row['id']}?repository=kernels").text
    assert "launch +" in page
    assert "kernel +" not in page
    cells = machine.client.get("/api/v1/overview", params={"repository": "kernels", "device": "test-gpu"}).json()
    by_variant = {cell["variant"]: cell for cell in cells["items"]}
    marked = by_variant["v1"]["launch_statement"]
    assert (marked["kind"], marked["direction"], marked["signal"]) == ("confirmed", "slower", "launch")
    assert by_variant["v1"]["statement"]["kind"] == "not_told_apart"
    assert by_variant["v2"]["launch_statement"]["kind"] == "not_told_apart"
    overview = machine.client.get("/overview/cases/square?repository=kernels&device=test-gpu").text
    assert overview.count(f'data-regression="{marked["regression_id"]}"') == 1
    assert "launch +" in overview


def test_a_commit_that_trades_launches_for_kernels_is_told_as_both(build: Build) -> None:
    machine = build(Truth(times={V1: {STEP: 0.8}}, launches={V1: {STEP: 1.4}}))
    measure_all(machine)
    assert machine.found() == {("slower", STEP - 1, STEP), ("faster", STEP - 1, STEP)}
    signals = {row["direction"]: row["signal"] for row in machine.rows()}
    assert signals == {"slower": "launch", "faster": "kernel"}


def test_a_commit_that_slows_both_is_one_regression_that_names_both(build: Build) -> None:
    machine = build(Truth(times={V1: {STEP: 1.1}}, launches={V1: {STEP: 1.4}}))
    measure_all(machine)
    (row,) = machine.rows()
    assert (row["signal"], row["direction"]) == ("launch", "slower")
    assert row["other_ratio"] == pytest.approx(1.1, abs=0.01)
    assert set(verdicts(machine)) == {("slower", "graph"), ("slower", "launch")}


def test_a_trial_of_a_kernel_that_shows_another_launch_tells_it(build: Build) -> None:
    """History sees the kernel alone, because the launches of the first commits are not measured."""
    machine = build(Truth(times={V1: {STEP: 1.2}}, launches={V1: {STEP: 1.5}}))
    for number in range(COMMITS):
        medians = machine._medians(V1, number)
        machine.lab.bench(number, {V1: {metric: ns for metric, ns in medians.items() if metric != "launch"}})
        machine.work()
    assert machine.found() == {("slower", STEP - 1, STEP)}
    assert verdicts(machine) == {("slower", "graph"): "confirmed", ("slower", "launch"): "confirmed"}


def test_a_change_of_a_launch_below_two_microseconds_is_not_confirmed() -> None:
    base, small, large = [10_000.0] * 12, [11_500.0] * 12, [12_500.0] * 12
    assert decide(base, small, "slower", 1.06, "launch").decision == "dismissed"
    assert decide(base, large, "slower", 1.06, "launch").decision == "confirmed"
    assert classify_trial(base, small, "launch").outcome == "same"
    assert classify_pairs(base, small, "launch").outcome == "same"
    assert classify_pairs(base, large, "launch").outcome == "slower"


def test_a_change_of_a_launch_below_five_per_cent_is_not_confirmed() -> None:
    base = [200_000.0] * 12
    assert decide(base, [ns * 1.04 for ns in base], "slower", 1.06, "launch").decision == "dismissed"
    assert decide(base, [ns * 1.06 for ns in base], "slower", 1.06, "launch").decision == "confirmed"
    assert decide(base, [ns * 0.9 for ns in base], "faster", 0.94, "launch").decision == "confirmed"


def test_controls_that_moved_decide_nothing_of_a_launch() -> None:
    base = [40_000.0] * 12
    verdict = classify_trial(base, [ns * 1.5 for ns in base], "launch", Reason.CONTROL_MOVED)
    assert verdict.outcome == "unsure"


@pytest.mark.parametrize(
    ("kind", "metric", "expected"),
    [("cuda", "launch", "launch"), ("cuda", "graph", "cuda"), ("cuda", "kernel", "cuda"), ("cpu", "hot", "cpu")],
)
def test_kinds_of_times(kind: str, metric: str, expected: str) -> None:
    assert kind_of_time(kind, metric, "3") == expected


def test_a_variant_without_graphs_is_judged_by_its_kernels(build: Build) -> None:
    machine = build(Truth(times={V1: {STEP: 1.3}}, launches={V1: {}}))
    for number in range(COMMITS):
        medians = machine._medians(V1, number)
        machine.lab.bench(number, {V1: {"kernel": medians["kernel"], "launch": medians["launch"]}})
        machine.work()
    assert machine.found() == {("slower", STEP - 1, STEP)}
    (row,) = machine.rows()
    detail = machine.client.get(f"/api/v1/regressions/{row['id']}").json()
    assert {series["metric"] for series in detail["series"] if series["verdict"] == "confirmed"} == {"kernel"}
    chosen = {"repository": "kernels", "device": "test-gpu"}
    (cell,) = machine.client.get("/api/v1/overview", params=chosen).json()["items"]
    assert cell["regression_id"] == row["id"]
    assert (cell["statement"]["signal"], cell["metric"]) == ("kernel", "kernel")
    machine.lab.bench(COMMITS - 1, {V2: {"graph": 10_000.0}})
    page = machine.client.get(
        f"/kernels/{row['operator']}", params={"repository": "kernels", "device": "test-gpu"}
    ).text
    assert ">sum of kernels</span>" in page
    assert "Speed-up over v2" in page


def test_launches_below_the_floor_are_not_suspected(build: Build) -> None:
    """4 % of 40 µs is less than 2 µs, however steady the host is."""
    machine = build(Truth(launches={V1: {STEP: 1 + 1_600.0 / LAUNCH_NS}}))
    machine.host = 0.001
    measure_all(machine)
    assert machine.found() == set()
    assert machine.rows("suspected") == []
    assert {row["cause"] for row in machine.rows("dismissed")} == {"code"}, "history has suspected nothing"


SAME, SLOWER = ([100_000.0] * 12, [100_100.0] * 12), ([40_000.0] * 12, [60_000.0] * 12)


def test_every_form_of_a_report_names_the_launch(client: TestClient, lab: Lab) -> None:
    lab.switch(GPU)
    job = lab.submit("compare", 1, base=0, pairs=[V1, V2], rounds=12)
    lab.compare(job, {V1: {"graph": SAME, "launch": SLOWER}, V2: {"graph": SAME, "launch": (SLOWER[0], SLOWER[0])}})
    number = client.get(f"/api/v1/jobs/{job}").json()["job"]["submission_id"]
    address = f"/api/v1/submissions/{number}/report"
    report = client.get(address).json()
    (row,) = [row for row in report["rows"] if row["kind"] == "slower"]
    assert (row["metric"], row["variant"], row["statement"]["signal"]) == ("launch", "v1", "launch")
    assert (row["base_ns"], row["head_ns"]) == (40_000.0, 60_000.0)
    assert "1 slower (1 launch)" in report["summary"]
    assert (report["exit_code"], report["compared"], report["same"]) == (1, 2, 1)
    assert {case["variant"] for case in report["sensitivity"]["by_case"]} == {"v1", "v2"}, "of the device's time"
    assert max(case["detectable"] for case in report["sensitivity"]["by_case"]) < 0.05
    assert "**launch slower**" in client.get(f"{address}.md").text
    assert "v1 n=1024,f32,fwd launch is slower" in client.get(f"{address}.junit.xml").text
    (result,) = client.get(f"{address}.sarif").json()["runs"][0]["results"]
    assert result["properties"]["metric"] == "launch"
    page = client.get(f"/runs/{number}?repository=kernels").text
    assert "launch slower" in page


def test_a_launch_that_only_one_side_has_is_inconclusive(client: TestClient, lab: Lab) -> None:
    """A commit that made its call wait for the device."""
    lab.switch(GPU)
    job = lab.submit("compare", 1, base=0, pairs=[V1], rounds=12)
    message = "head: no launch: the call waits for the device"
    ended = Comparison(*V1, "launch", "1", Status.UNSUPPORTED, message)
    rows = [Comparison(*V1, "graph", "1", Status.OK, "", *SAME), ended]
    lab.finish(job, replace(lab.outcome([]), base_catalogue=catalogue(("square",)), comparisons=rows))
    number = client.get(f"/api/v1/jobs/{job}").json()["job"]["submission_id"]
    (row,) = client.get(f"/api/v1/submissions/{number}/report").json()["rows"]
    assert (row["kind"], row["message"]) == ("unsure", message)


def test_the_table_of_a_terminal_has_a_row_for_a_launch() -> None:
    table = ResultTable("cuda")
    rows = [Comparison(*V1, "graph", "1", Status.OK, "", *SAME), Comparison(*V1, "launch", "1", Status.OK, "", *SLOWER)]
    table.add(JobKind.COMPARE, Outcome(GPU, comparisons=rows))
    kernel, launch = [line for line, _ in table.lines()]
    assert "v1 launch" in launch
    assert "launch slower" in launch
    assert "no change" in kernel
    assert (table.slower, len(table.sensitivities)) == (1, 1)


def test_a_badge_says_how_many_slow_downs_are_launches() -> None:
    assert words(BadgeCounts(5, 0, 0, 3, launch=2))[0] == "3 slower (2 launch)"
    assert words(BadgeCounts(5, 0, 0, 1))[0] == "1 slower"
