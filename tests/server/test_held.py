"""A commit that is held against its base: what is compared, what the report says of it, and in which order."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import text

from tests.builders import CASES, Lab, bench, catalogue, commit, make_repository, measurement, run_git, write_commits
from tests.rewording import stored
from tests.server.test_submissions import errors
from warpwatch.cli.findings import show_findings
from warpwatch.contract.catalogue import Catalogue
from warpwatch.contract.outcome import Comparison, Finding
from warpwatch.contract.words import Reason, Status, Verdict
from warpwatch.db import registry, regressions, runs, unjudged
from warpwatch.db.database import Database
from warpwatch.db.reads.history import list_series
from warpwatch.server.verdicts.noise import SURELY, Reading, detectable, learn

API = "/api/v1"
ROUNDS = [10_000.0 + 10 * (number % 3) for number in range(12)]
V1, V2, V3 = (("v1", CASES[0]), ("v2", CASES[0]), ("v3", CASES[0]))


def times(ratio: float) -> tuple[list[float], list[float]]:
    """Rounds whose head takes `ratio` times as long as the base."""
    return ROUNDS, [value * ratio for value in ROUNDS]


@pytest.fixture
def lab(database: Database, tmp_path: Path) -> Lab:
    return branched(database, tmp_path)


def branched(database: Database, tmp_path: Path) -> Lab:
    """main: 0 to 2. feature: 3, which left main at 1 and changes square alone. A worker has read what there is."""
    source = tmp_path / "source"
    shas = make_repository(source, 3, ("square", "cube"))
    run_git(source, "checkout", "--quiet", "-b", "feature", shas[1])
    shas.append(commit(source, "Square faster"))
    lab = Lab(database, source, shas, tmp_path, operators=("square", "cube"))
    with database.session() as session:
        registry.record_catalogue(session, lab.commits[shas[0]], catalogue(("square", "cube")))
    return lab


def held(client: TestClient, **fields: Any) -> int:
    """The id of a submission of feature, held against where it left main."""
    body = {
        "repository": "kernels",
        "commits": "feature",
        "base": "merge-base",
        "branch": "main",
        "device": "cpu",
    } | fields
    answer = client.post(f"{API}/submissions", json=body)
    assert answer.status_code == 201, answer.text
    return int(answer.json()["id"])


def jobs(client: TestClient, submission: int) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = client.get(f"{API}/jobs", params={"submission": submission, "limit": 200}).json()[
        "items"
    ][::-1]
    return rows


def report(client: TestClient, submission: int) -> dict[str, Any]:
    answer = client.get(f"{API}/submissions/{submission}/report")
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def run_all(lab: Lab, client: TestClient, submission: int, rounds: dict[Any, Any], **statuses: Status) -> None:
    """Ends every job: checks and benches with the status in `statuses`, ok otherwise; comparisons with these rounds."""
    for job in jobs(client, submission):
        if job["state"] != "queued":
            continue
        if job["kind"] == "compare":
            lab.compare(job["id"], rounds)
        else:
            rows = [
                Finding(*cell, statuses.get(cell[0], Status.OK), "it is so" if cell[0] in statuses else "")
                for cell in (V1, V2, V3)
            ]
            lab.finish(job["id"], lab.outcome(rows))
    with lab.database.session() as session:
        for job in jobs(client, submission):
            unjudged.mark_judged(session, job["id"])


def test_only_what_differs_from_the_base_is_compared(client: TestClient, lab: Lab) -> None:
    found = jobs(client, held(client))
    assert [(job["kind"], job["operator"], job["commit_sha"], job["base_sha"], job["state"]) for job in found] == [
        ("check", "cube", lab.shas[3], None, "queued"),
        ("bench", "cube", lab.shas[3], None, "queued"),
        ("check", "square", lab.shas[3], None, "queued"),
        ("bench", "square", lab.shas[3], None, "queued"),
        ("compare", "cube", lab.shas[3], lab.shas[1], "done"),
        ("compare", "square", lab.shas[3], lab.shas[1], "queued"),
    ]
    compared = client.get(f"{API}/jobs/{found[-1]['id']}").json()["spec"]["pairs"]
    assert sorted(map(tuple, compared)) == sorted(
        (variant, case) for variant in ("v1", "v2", "v3") for case in CASES[:2]
    )


@pytest.mark.parametrize(
    ("fields", "base"),
    [
        ({}, 1),
        ({"branch": None}, 1),
        ({"base": "main"}, 2),
        ({"base": "parent"}, 1),
        ({"commits": "main", "base": "parent"}, 1),
        ({"commits": "main"}, 1),
        ({"branch": "feature", "commits": "feature"}, 1),
    ],
)
def test_what_a_commit_is_held_against(client: TestClient, lab: Lab, fields: dict[str, Any], base: int) -> None:
    """A commit that lies on the branch itself is held against its parent.

    Without a branch it is the one that git checks out.
    """
    run_git(lab.source, "checkout", "--quiet", "main")
    number = held(client, **fields)
    assert report(client, number)["base_sha"] == lab.shas[base]


@pytest.mark.parametrize(
    ("fields", "field", "said"),
    [
        ({"base": "nope"}, "base", "no commit, branch or tag 'nope'"),
        ({"branch": "nope"}, "branch", "no commit, branch or tag 'nope'"),
        ({"base": "parent", "commits": "main~2"}, "base", "first commit"),
        ({"commits": "main~2..main"}, "base", "two single commits"),
        ({"base": "feature"}, "base", "is the commit itself"),
        ({"commits": "main~2..main", "base": "main"}, "base", "two single commits"),
    ],
)
def test_what_a_commit_cannot_be_held_against(
    client: TestClient, lab: Lab, fields: dict[str, Any], field: str, said: str
) -> None:
    body = {
        "repository": "kernels",
        "commits": "feature",
        "base": "merge-base",
        "branch": "main",
        "device": "cpu",
    } | fields
    assert said in errors(client.post(f"{API}/submissions", json=body))[field]


def test_a_report_says_what_matters_worst_first(client: TestClient, lab: Lab) -> None:
    number = held(client, operators=["square"])
    assert report(client, number)["conclusion"] == "pending"
    noisy = (ROUNDS, [value * (1.2 if index % 2 else 0.9) for index, value in enumerate(ROUNDS)])
    rounds = {
        V1: times(1.04),
        V2: times(1.20),
        V3: noisy,
        ("v1", CASES[1]): times(1.001),
        ("v2", CASES[1]): times(0.8),
        ("v3", CASES[1]): times(1.0),
    }
    run_all(lab, client, number, rounds, v3=Status.WRONG)
    found = report(client, number)
    assert (found["conclusion"], found["exit_code"], found["pending"]) == ("failure", 1, 0)
    assert [(row["kind"], row["variant"], row["case"]) for row in found["rows"]] == [
        ("wrong", *V3),
        ("slower", *V2),
        ("slower", *V1),
        ("unsure", *V3),
        ("faster", "v2", CASES[1]),
    ]
    assert (found["counts"], found["compared"], found["same"]) == (
        {"wrong": 1, "slower": 2, "unsure": 1, "faster": 1},
        6,
        2,
    )
    slower = found["rows"][1]
    assert slower["low"] <= slower["ratio"] <= slower["high"]
    assert slower["ratio"] == pytest.approx(1.2)
    assert (slower["device"], slower["head_sha"], slower["base_sha"], slower["rounds"]) == (
        "test-cpu",
        lab.shas[3],
        lab.shas[1],
        12,
    )
    assert "12 interleaved A/B rounds" in slower["decided_by"]
    assert slower["url"].startswith("http://127.0.0.1:8321/jobs/")
    assert f"--base {lab.shas[1]}" in slower["replay"]
    assert "warpwatch run" in found["rows"][0]["replay"]


def test_what_is_unsure_or_skipped_fails_nothing(client: TestClient, lab: Lab) -> None:
    number = held(client)
    noisy = (ROUNDS, [value * (1.2 if index % 2 else 0.9) for index, value in enumerate(ROUNDS)])
    run_all(lab, client, number, {V1: noisy, V2: times(1.0)}, v3=Status.SKIPPED)
    found = report(client, number)
    assert (found["conclusion"], found["exit_code"]) == ("success", 0)
    assert [(row["kind"], row["operator"], row["variant"]) for row in found["rows"]] == [
        ("unsure", "square", "v1"),
        ("skipped", "cube", "v3"),
        ("skipped", "square", "v3"),
    ]
    assert found["unchanged"] == ["cube"]


def test_a_gate_that_would_have_hidden_a_slow_down_does_not_pass(client: TestClient, lab: Lab) -> None:
    noisy = (ROUNDS, [value * (1.2 if index % 2 else 0.9) for index, value in enumerate(ROUNDS)])
    rounds = {V1: noisy, V2: times(1.0), V3: times(0.5)}
    number = held(client, operators=["square"], require_detectable=5)
    assert report(client, number)["exit_code"] == 0, "nothing is known while it is pending"
    run_all(lab, client, number, rounds)
    found = report(client, number)
    assert (found["conclusion"], found["exit_code"]) == ("error", 2)
    assert [(row["kind"], row["variant"]) for row in found["rows"]] == [("blind", "v1"), ("faster", "v3")]
    assert found["summary"].startswith("1 could not tell")
    assert "5 % is required" in found["rows"][0]["message"]
    sensitivity = found["sensitivity"]
    assert (sensitivity["required"], sensitivity["cases"], sensitivity["missed"]) == (0.05, 3, 1)
    least, *others = sensitivity["by_case"]
    assert least["variant"] == "v1"
    assert least["detectable"] > 0.05 > max(case["detectable"] for case in others)
    assert sensitivity["summary"] in client.get(f"/runs/{number}").text

    tolerant = held(client, operators=["square"], require_detectable=100)
    run_all(lab, client, tolerant, rounds)
    assert report(client, tolerant)["exit_code"] == 0


def test_without_a_comparison_the_noise_of_the_history_says_what_would_have_been_found(
    client: TestClient, database: Database, tmp_path: Path
) -> None:
    """Fewer earlier commits than a level needs tell nothing, and unknown counts as not detectable."""
    shas = make_repository(tmp_path / "source", 6)
    lab = Lab(database, tmp_path / "source", shas, tmp_path)
    with database.session() as session:
        registry.record_catalogue(session, lab.commits[shas[0]], catalogue())

    def gate(index: int, time_ns: float) -> dict[str, Any]:
        """The report on a bench of one commit that must be able to find a slow-down of 60 %."""
        fields = {"commits": shas[index], "base": None, "branch": None, "kinds": ["bench"], "require_detectable": 60}
        number = held(client, **fields)
        (job,) = jobs(client, number)
        row = Finding(*V1, Status.OK, bench=bench(measurement(time_ns, "hot")))
        lab.finish(job["id"], lab.outcome([row]))
        with database.session() as session:
            unjudged.mark_judged(session, job["id"])
        return report(client, number)

    for index in range(2):
        lab.bench(index, {V1: 10_000.0 + index})
    found = gate(2, 10_002.0)
    assert (found["exit_code"], found["sensitivity"]["unknown"]) == (2, 1)
    assert [row["kind"] for row in found["rows"]] == ["blind"]
    assert "is unknown; 60 % is required" in found["rows"][0]["message"]
    found = gate(3, 10_003.0)
    assert (found["exit_code"], found["sensitivity"]["unknown"], found["rows"]) == (0, 0, [])
    (case,) = found["sensitivity"]["by_case"]
    assert case["source"] == "history"
    noise = learn([Reading(n, n, 1, 10_000.0 + n, 9_990.0, 10_010.0) for n in range(3)], "cpu")
    assert case["detectable"] == pytest.approx(detectable(noise, "cpu", 10_002.0, SURELY), rel=0.01)


def test_a_gate_that_times_nothing_cannot_be_required_to_find_a_slow_down(client: TestClient, lab: Lab) -> None:
    body = {"repository": "kernels", "commits": "feature", "device": "cpu", "kinds": ["check"]}
    answer = client.post(f"{API}/submissions", json=body | {"require_detectable": 5})
    assert answer.status_code == 422
    assert "needs kind bench or compare" in answer.text
    assert client.post(f"{API}/submissions", json=body | {"require_detectable": 0}).status_code == 422


@pytest.mark.parametrize("status", [Status.CRASHED, Status.TIMED_OUT, Status.OUT_OF_MEMORY, Status.BUILD_FAILED])
def test_what_could_not_be_run_is_told_from_what_was_not_tried(client: TestClient, lab: Lab, status: Status) -> None:
    number = held(client, operators=["square"])
    check, bench, compare = jobs(client, number)
    lab.finish(check["id"], lab.outcome([Finding(*V1, status, "it is so")]))
    run = lab.begin(bench["id"])
    with lab.database.session() as session:
        runs.fail_run(session, run, "no compiler", retry=False)
    client.post(f"{API}/jobs/{compare['id']}/cancel")
    found = report(client, number)
    assert found["exit_code"] == 2
    assert [(row["kind"], row["status"], row["variant"], row["message"]) for row in found["rows"]] == [
        ("failed", status, "v1", stored("it is so")),
        ("not_run", "failed", None, stored("no compiler")),
        ("not_run", "cancelled", None, found["rows"][2]["message"]),
    ]


NATIVE = "csrc/square/square.cpp"
VARIANTS = """
from warpwatch import Operator

operator = Operator("square", ...)

@operator.variant("v1")
def v1(a):
    return a * a

@operator.variant("v2")
def v2(a):
    return a.square()

@operator.variant("v3")
def v3(a):
    return native(a)
"""


@pytest.mark.parametrize(
    ("file", "content", "compared"),
    [
        (NATIVE, "int x;", ["v3"]),
        ("kernels/square.py", VARIANTS.replace("a.square()", "a * a"), ["v2"]),
        ("kernels/square.py", VARIANTS.replace('"square", ...', '"square", 2'), ["v1", "v2", "v3"]),
    ],
)
def test_variants_whose_code_is_the_same_are_not_compared(
    client: TestClient, database: Database, tmp_path: Path, file: str, content: str, compared: list[str]
) -> None:
    number = native_branch(database, tmp_path, client, file, content, native="v3")
    *_, compare = jobs(client, number)
    pairs = client.get(f"{API}/jobs/{compare['id']}").json()["spec"]["pairs"]
    assert (compare["kind"], sorted({variant for variant, _ in pairs})) == ("compare", compared)
    preview = {"repository": "kernels", "commits": "feature", "base": "merge-base", "branch": "main", "device": "cpu"}
    assert client.post(f"{API}/submissions/preview", json=preview).json()["kinds"]["compare"] == 1


def test_no_comparison_is_queued_where_no_variant_changed(
    client: TestClient, database: Database, tmp_path: Path
) -> None:
    """Native sources differ, and no variant of the operator is native."""
    number = native_branch(database, tmp_path, client, NATIVE, "int x;", native="")
    assert [job["kind"] for job in jobs(client, number)] == ["check", "bench"]
    preview = {"repository": "kernels", "commits": "feature", "base": "merge-base", "branch": "main", "device": "cpu"}
    assert "compare" not in client.post(f"{API}/submissions/preview", json=preview).json()["kinds"]


def native_branch(database: Database, folder: Path, client: TestClient, file: str, content: str, native: str) -> int:
    """A submission of a branch that changes one file, against where it left main."""
    source = folder / "native"
    shas = write_commits(source, [("Begin", {"kernels/square.py": VARIANTS, NATIVE: "int y;"})])
    run_git(source, "checkout", "--quiet", "-b", "feature")
    (source / file).write_text(content)
    run_git(source, "commit", "--quiet", "--all", "--message", "Change")
    shas.append(run_git(source, "rev-parse", "HEAD").strip())
    lab = Lab(database, source, shas, folder)
    (entry,) = catalogue().operators
    variants = [replace(variant, native=variant.name == native) for variant in entry.variants]
    with database.session() as session:
        names = Catalogue(1, [replace(entry, variants=variants)])
        registry.record_catalogue(session, lab.commits[shas[0]], names)
    return held(client)


def test_a_build_failure_is_told_once_on_the_page_of_the_run(
    client: TestClient, lab: Lab, capsys: pytest.CaptureFixture[str]
) -> None:
    number = held(client, operators=["square"])
    check, *_ = jobs(client, number)
    rows = [Finding("v3", case, Status.BUILD_FAILED, "v3.cu(7): error") for case in CASES[:2]]
    lab.finish(check["id"], lab.outcome([*rows, Finding(*V1, Status.OK)]))
    page = client.get(f"/runs/{number}").text
    assert page.count(">did not build</span>") == page.count('<span class="sub">2 cases</span>') == 1
    assert len(report(client, number)["rows"]) == 2
    show_findings(report(client, number))
    assert capsys.readouterr().out.count("did not build: square v3 (2 cases)") == 1


def test_another_environment_fails_nothing(client: TestClient, lab: Lab) -> None:
    number = held(client, operators=["square"])
    check, bench, compare = jobs(client, number)
    for job in (check, bench):
        lab.finish(job["id"], lab.outcome([Finding(*V1, Status.OK)]))
    run = lab.begin(compare["id"])
    with lab.database.session() as session:
        runs.fail_run(session, run, "interpreters differ", retry=False, reason=Reason.INTERPRETER_MISMATCH)
    found = report(client, number)
    assert ([row["kind"] for row in found["rows"]], found["exit_code"]) == (["mismatch"], 0)

    other = held(client, operators=["square"], seed=1)
    check, bench, compare = jobs(client, other)
    row = Comparison(*V1, "hot", "1", Status.UNSUPPORTED, "the base is measured as hot, the head as cold", [], [])
    lab.finish(compare["id"], replace(lab.outcome([]), comparisons=[row], base_catalogue=catalogue(lab.operators)))
    assert [row["kind"] for row in report(client, other)["rows"]] == ["mismatch"]


def test_a_base_that_cannot_be_measured_is_no_fault_of_the_change(client: TestClient, lab: Lab) -> None:
    number = held(client, operators=["square"])
    check, bench, compare = jobs(client, number)
    for job in (check, bench):
        lab.finish(job["id"], lab.outcome([Finding(*V1, Status.OK)]))
    rows = [
        Comparison(*V1, "hot", "1", Status.CRASHED, "it fell over", [], [], Reason.BASE_FAILED),
        Comparison(*V2, "hot", "1", Status.CRASHED, "it fell over", [], []),
    ]
    lab.finish(compare["id"], replace(lab.outcome([]), comparisons=rows, base_catalogue=catalogue(lab.operators)))
    found = report(client, number)
    assert [(row["kind"], row["variant"]) for row in found["rows"]] == [("failed", "v2"), ("unsure", "v1")]


def test_a_base_that_moved_leaves_no_verdict(client: TestClient, lab: Lab) -> None:
    number = held(client, operators=["square"])
    check, bench, compare = jobs(client, number)
    for job in (check, bench):
        lab.finish(job["id"], lab.outcome([Finding(*V1, Status.OK)]))
    sides = times(2.0)
    rows = [
        Comparison(*V1, "hot", "1", Status.OK, "", *sides, Reason.CONTROL_MOVED, [1.1] * 12, [1.04] * 12),
        Comparison(*V2, "hot", "1", Status.OK, "", *sides, None, [1.0] * 12, [1.04] * 12),
    ]
    lab.finish(compare["id"], replace(lab.outcome([]), comparisons=rows, base_catalogue=catalogue(lab.operators)))
    found = report(client, number)
    assert [(row["kind"], row["variant"]) for row in found["rows"]] == [("slower", "v2"), ("unsure", "v1")]
    page = client.get(f"/jobs/{compare['id']}").text
    assert page.count("data-reason=") == page.count(f'data-reason="{Reason.CONTROL_MOVED}"') == 1
    with lab.database.session() as session:
        controls = session.execute(text("SELECT controls FROM all_comparisons ORDER BY id")).scalars().all()
    assert controls == [{"again": row.again, "waited": row.waited} for row in rows]


def test_what_was_wrong_before_is_said_to_be(client: TestClient, lab: Lab) -> None:
    lab.check(1, {V1: Status.WRONG, V2: Status.OK})
    number = held(client, kinds=["check"], operators=["square"])
    run_all(lab, client, number, {}, v1=Status.WRONG, v2=Status.WRONG)
    found = report(client, number)
    assert {row["variant"]: row["is_known_before"] for row in found["rows"]} == {"v1": True, "v2": False}
    assert found["exit_code"] == 1


def test_an_operator_that_nobody_knows_is_timed_at_both_commits(client: TestClient, lab: Lab) -> None:
    run_git(lab.source, "checkout", "--quiet", "-b", "other", lab.shas[3])
    base = commit(lab.source, "Add a fourth power", ("fourth",))
    head = commit(lab.source, "Change it", ("fourth",))
    number = held(client, commits=head, base=base, operators=["fourth"])
    assert [(job["kind"], job["commit_sha"]) for job in jobs(client, number)] == [
        ("check", head),
        ("bench", head),
        ("bench", base),
    ]


def test_many_pairs_are_told_with_more_confidence(client: TestClient, lab: Lab) -> None:
    """Rounds that are enough for one pair are not for one of many."""
    scattered = [0.99, 1.0, 1.025, 1.03, 1.035, 1.04, 1.045, 1.05, 1.055, 1.06, 1.07, 1.08]
    almost = (ROUNDS, [value * ratio for value, ratio in zip(ROUNDS, scattered, strict=True)])
    number = held(client, operators=["square"])
    run_all(lab, client, number, {V1: almost})
    assert [row["kind"] for row in report(client, number)["rows"]] == ["slower"]
    more = held(client, operators=["square"], seed=1)
    cells = [(variant, case) for variant in ("v1", "v2", "v3") for case in CASES]
    run_all(lab, client, more, dict.fromkeys(cells, times(1.0)) | {V1: almost})
    assert report(client, more)["counts"] == {"unsure": 1}


def test_a_slow_down_that_someone_accepted_fails_nothing(client: TestClient, lab: Lab) -> None:
    number = held(client, operators=["square"])
    run_all(lab, client, number, {V1: times(1.2), V2: times(1.2)})
    assert report(client, number)["counts"] == {"slower": 2}
    with lab.database.session() as session:
        (series,) = (row.id for row in list_series(session, lab.repository, variant="v1", case=CASES[0]).items)
        ends: dict[str, Any] = {"base_commit_id": lab.commits[lab.shas[1]], "head_commit_id": lab.commits[lab.shas[3]]}
        square = registry.ensure_operators(session, lab.repository, ["square"])["square"]
        opened = regressions.open_suspicion(
            session,
            operator_id=square,
            device_id=lab.device,
            direction="slower",
            ratio=1.2,
            series=[(series, 1.2)],
            **ends,
        )
        assert opened is not None
        regressions.decide(session, opened, Verdict.CONFIRMED, ratio=1.2, low=1.1, high=1.3)
    client.post(f"{API}/regressions/{opened}/triage", json={"state": "accepted", "note": "worth it", "author": "ann"})
    assert [(row["kind"], row["variant"]) for row in report(client, number)["rows"]] == [
        ("slower", "v2"),
        ("accepted", "v1"),
    ]
