"""A report in every form that CI takes, held against what those forms allow."""

from __future__ import annotations

import json
import re
from contextlib import redirect_stdout
from dataclasses import asdict, replace
from datetime import UTC, datetime
from io import StringIO
from typing import Any
from xml.etree.ElementTree import fromstring

import jsonschema_rs
import pytest

from tests.server.forms import JUNIT_CHILDREN, JUNIT_OPTIONAL, JUNIT_REQUIRED, SARIF_SCHEMA
from warpwatch.cli.findings import show_findings
from warpwatch.contract.commit_ids import short_sha
from warpwatch.contract.report_facts import ReportedSeries
from warpwatch.server.reports.github import check_run
from warpwatch.server.reports.junit import junit
from warpwatch.server.reports.markdown import LIMIT, MARKER, markdown
from warpwatch.server.reports.model import KINDS, Report, ReportRow, ReportRowKind, exit_code
from warpwatch.server.reports.sarif import sarif
from warpwatch.server.reports.sensitivity import CaseSensitivity, detectable_text, missed_text, summarize
from warpwatch.server.reports.words import reason

NASTY = (
    "a | b `c` <b>&amp;</b> @everyone ]]> \x00\x1b[31m \ud800 [link](http://evil.example) ``` \n\n# head" + "!" * 300
)


def row(kind: ReportRowKind, number: int = 0, **fields: Any) -> ReportRow:
    ratio = {"slower": 1.2, "faster": 0.8, "unsure": 1.05, "accepted": 1.1}.get(kind)
    interval = {} if ratio is None else {"ratio": ratio, "low": ratio - 0.01, "high": ratio + 0.01, "rounds": 12}
    return ReportRow(
        kind,
        "square",
        "v3",
        f"n={number},f32,fwd",
        "test-gpu",
        "a" * 40,
        "b" * 40,
        "ok",
        "it is so",
        "12 paired rounds",
        f"https://warp.example/jobs/{number}",
        "warpwatch run --commits …",
        **(interval | fields),
    )


def report(*rows: ReportRow, **fields: Any) -> Report:
    counts = {kind: sum(one.kind == kind for one in rows) for kind in KINDS}
    counts = {kind: count for kind, count in counts.items() if count}
    code = exit_code(counts)
    made = Report(
        7,
        "kernels",
        "https://warp.example/runs/7",
        "a" * 40,
        "b" * 40,
        ("success", "failure", "error")[code],
        code,
        "a summary",
        0,
        {"ok": 3},
        counts,
        9,
        6,
        ["cube"],
        datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC),
        list(rows),
    )
    return replace(made, **fields)


EVERY = report(*(row(kind, number) for number, kind in enumerate(KINDS)))
REPORTS = {
    "empty": report(),
    "pending": report(conclusion="pending", pending=3),
    "no commit": report(head_sha=None, base_sha=None),
    "every kind": EVERY,
    "nasty": report(
        *(replace(one, message=NASTY, case=NASTY, operator="a b/c", replay=NASTY) for one in EVERY.rows), summary=NASTY
    ),
    "whole job": report(replace(row("not_run"), variant=None, case=None, base_sha=None)),
    "many": report(*(row("slower", number) for number in range(1000)), left_out=2000),
}


@pytest.mark.parametrize(
    ("kinds", "code"),
    [
        ([], 0),
        (["faster"], 0),
        (["suspected", "unsure", "skipped", "mismatch", "accepted", "fixed"], 0),
        (["wrong"], 1),
        (["slower", "unsure"], 1),
        (["wrong", "not_run"], 1),
        (["failed", "skipped"], 2),
        (["not_run", "faster"], 2),
        (["blind", "unsure"], 2),
        (["blind", "slower"], 1),
    ],
)
def test_exit_codes(kinds: list[ReportRowKind], code: int) -> None:
    assert exit_code(dict.fromkeys(kinds, 1)) == code


@pytest.mark.parametrize("name", REPORTS)
def test_sarif_is_what_its_schema_allows(name: str) -> None:
    content = json.loads(json.dumps(sarif(REPORTS[name], "https://user:secret@git.example/kernels.git", "kernels/")))
    jsonschema_rs.validator_for(SARIF_SCHEMA).validate(content)
    (run,) = content["runs"]
    rules = [rule["id"] for rule in run["tool"]["driver"]["rules"]]
    for result in run["results"]:
        assert rules[result["ruleIndex"]] == result["ruleId"]
    assert "secret" not in json.dumps(content)


def test_sarif_levels_and_places() -> None:
    (run,) = sarif(EVERY, "/a/path", "src/ops")["runs"]
    assert {result["ruleId"].removeprefix("warpwatch/"): result["level"] for result in run["results"]} == {
        "wrong": "error",
        "slower": "error",
        "failed": "warning",
        "not_run": "warning",
        "blind": "warning",
        "suspected": "note",
        "unsure": "note",
        "mismatch": "note",
        "skipped": "note",
        "accepted": "note",
        "fixed": "note",
        "faster": "note",
    }
    place = run["results"][0]["locations"][0]["physicalLocation"]
    assert place["artifactLocation"]["uri"] == "src/ops/square.py"
    assert "versionControlProvenance" not in run, "a path on the server is no address"
    slower = run["results"][1]["properties"]
    assert (slower["ratio"], slower["rounds"], slower["replay"]) == (1.2, 12, "warpwatch run --commits …")


def test_an_alert_stays_the_same_at_the_next_commit() -> None:
    def prints(one: ReportRow) -> Any:
        return sarif(report(one), "", "kernels")["runs"][0]["results"][0]["partialFingerprints"]

    assert prints(row("slower")) == prints(replace(row("slower"), head_sha="c" * 40))
    assert prints(row("slower")) != prints(row("wrong"))


@pytest.mark.parametrize("name", REPORTS)
def test_junit_is_what_its_readers_allow(name: str) -> None:
    root = fromstring(junit(REPORTS[name]).encode())
    assert root.tag == "testsuites"
    for element in root.iter():
        assert (
            JUNIT_REQUIRED[element.tag]
            <= set(element.attrib)
            <= JUNIT_REQUIRED[element.tag] | JUNIT_OPTIONAL[element.tag]
        )
        assert {child.tag for child in element} <= JUNIT_CHILDREN[element.tag]
    for suite in root:
        assert int(suite.attrib["tests"]) == len(suite.findall("testcase"))
        for count, tag in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
            assert int(suite.attrib[count]) == len(suite.findall(f"testcase/{tag}"))
    assert int(root.attrib["tests"]) == len(root.findall("testsuite/testcase"))


def test_junit_tells_kinds_apart() -> None:
    root = fromstring(junit(EVERY).encode())
    cases = [case for case in root.iter("testcase") if case.get("classname") == "warpwatch.square"]
    found = {child.get("type"): child.tag for case in cases for child in case if child.tag != "system-out"}
    assert found == {
        "wrong": "failure",
        "slower": "failure",
        "failed": "error",
        "not_run": "error",
        "blind": "error",
        "suspected": "skipped",
        "unsure": "skipped",
        "mismatch": "skipped",
        "skipped": "skipped",
        "accepted": "skipped",
    }
    assert len(cases) == len(KINDS)


def findings_by_name(made: Report, *measured: ReportedSeries) -> dict[str | None, list[str]]:
    """The findings of every test of an operator, by the test's name."""
    cases = fromstring(junit(made, measured).encode()).iter("testcase")
    named = [case for case in cases if case.get("classname") == "warpwatch.square"]
    assert len({case.get("name") for case in named}) == len(named)
    return {case.get("name"): [child.get("type") or child.tag for child in case] for case in named}


def test_a_junit_test_keeps_its_name_whatever_becomes_of_it() -> None:
    series = [ReportedSeries("square", "v3", f"n={number},f32,fwd", "test-gpu") for number in (0, 1)]
    assert findings_by_name(report(), *series) == {"v3 n=0,f32,fwd": [], "v3 n=1,f32,fwd": []}
    slower = report(row("slower"), replace(row("wrong"), head_sha="c" * 40))
    assert findings_by_name(slower, *series) == {"v3 n=0,f32,fwd": ["slower"], "v3 n=1,f32,fwd": []}
    assert findings_by_name(report(row("faster")), *series) == {"v3 n=0,f32,fwd": ["system-out"], "v3 n=1,f32,fwd": []}


@pytest.mark.parametrize("fields", [{"conclusion": "pending", "pending": 1}, {"left_out": 1}])
def test_junit_passes_nothing_that_is_not_known(fields: dict[str, Any]) -> None:
    series = ReportedSeries("square", "v3", "n=1,f32,fwd", "test-gpu")
    assert findings_by_name(report(row("slower"), **fields), series) == {"v3 n=0,f32,fwd": ["slower"]}


@pytest.mark.parametrize("name", REPORTS)
def test_markdown_fits_and_says_nothing_that_it_was_not_told_to(name: str) -> None:
    text = markdown(REPORTS[name])
    assert len(text) <= LIMIT
    assert text.startswith(MARKER)
    outside = re.sub(r"```.*?```|<!-- warpwatch -->|</?(details|summary|sub)>", "", text, flags=re.DOTALL)
    assert not re.search(r"(?<!\\)<\w", outside)
    assert not re.search(r"@(?!\u200b)\w", outside)
    assert "](http://evil" not in outside
    table = [line for line in text.split("\n") if line.startswith("|")]
    assert {len(re.findall(r"(?<!\\)\|", line)) for line in table} <= {9}


def test_markdown_shows_times() -> None:
    assert "| 12.3 µs → 15.0 µs |" in markdown(report(row("slower", base_ns=12_300.0, head_ns=15_000.0)))


def test_markdown_of_a_range_names_the_commit_of_each_row() -> None:
    text = markdown(report(row("slower"), replace(row("unsure", 1), head_sha="c" * 40, ratio=None)))
    header, _, slower, unsure = [line for line in text.split("\n") if line.startswith("|")]
    place = header.split(" | ").index("commit")
    assert [line.split(" | ")[place] for line in (slower, unsure)] == [f"`{short_sha(c * 40)}`" for c in "ac"]
    assert unsure.split(" | ")[place + 3] == "–", "no change was found, and `ok` would say that it is no finding"
    assert "commit" not in markdown(report(row("slower"), row("unsure", 1))).split("|---")[0].split(" | ")


def test_markdown_says_how_much_it_leaves_out() -> None:
    text = markdown(REPORTS["many"])
    shown = text.count("| **slower** |")
    assert 100 < shown < 1000
    assert f"{3000 - shown} more: [run 7]" in text
    assert "warpwatch run" in text


@pytest.mark.parametrize("name", REPORTS)
def test_a_check_run_is_what_github_takes(name: str) -> None:
    body = check_run(REPORTS[name], "kernels")
    assert len(body["output"]["annotations"]) <= 50
    assert len(body["output"]["summary"]) <= 65_535
    assert 0 < len(body["output"]["title"]) <= 255
    assert all(len(one["message"]) < 64_000 and len(one["title"]) <= 255 for one in body["output"]["annotations"])
    assert (body["status"] == "completed") == ("conclusion" in body)
    assert body.get("conclusion") in (None, "success", "failure", "action_required")
    json.dumps(body).encode()


CASES = [
    CaseSensitivity("square", "v3", "n=0,f32,fwd", "test-gpu", 0.012, "rounds", 0.002),
    CaseSensitivity("square", "v3", "n=1,f32,fwd", "test-gpu", None, "none"),
    CaseSensitivity("square", "v3", "n=2,f32,fwd", "test-gpu", 0.064, "history", 0.0005),
]


def test_every_form_says_which_slow_downs_would_have_been_found() -> None:
    found = summarize(CASES, 0.05)
    said = (
        "Finds with 95 % a slow-down of 6.4 % or less in 2 cases, typically 3.8 %; unknown in 1; above 2 %: 2, "
        "above 5 %: 2, above 10 %: 1; chance of a false alarm 0.2 %"
    ).replace(" %", "\u2009%")
    assert found.summary.replace(" %", "\u2009%").replace("2 cases", "2\u2009cases") == said.replace(
        "2 cases", "2\u2009cases"
    )
    assert (found.unknown, found.above_2, found.above_5, found.above_10, found.missed) == (1, 2, 2, 1, 2)
    assert detectable_text(replace(CASES[0], detectable=168.1)) == "×169"
    made = report(row("blind", 1), sensitivity=found)
    measured = [ReportedSeries("square", "v3", f"n={number},f32,fwd", "test-gpu") for number in range(3)]
    outputs = {
        case.get("name"): case.findtext("system-out") or ""
        for case in fromstring(junit(made, measured)).iter("testcase")
    }
    assert outputs["v3 n=0,f32,fwd"].endswith("found with 95 %: 1.2\u2009%")
    assert outputs["v3 n=1,f32,fwd"].endswith("found with 95 %: unknown")
    assert found.summary in outputs["everything that is not listed"]
    text = markdown(made)
    assert "Finds with 95 %" in text
    assert text.index("n=1,f32,fwd on test") < text.index("n=2,f32,fwd on test") < text.index("n=0,f32,fwd on test")
    assert "Finds with 95 %" in check_run(made, "kernels")["output"]["summary"]
    (run,) = sarif(made, "", "kernels")["runs"]
    assert [case["detectable"] for case in run["properties"]["sensitivity"]["by_case"]] == [None, 0.064, 0.012]


def test_a_gate_without_times_or_noise_says_so() -> None:
    assert "Nothing was timed" in summarize([]).summary
    unknown = summarize(CASES[1:2], 0.05)
    assert ("unknown in 1" in unknown.summary, unknown.missed, unknown.above_10) == (True, 1, 1)
    assert summarize([replace(CASES[1], is_decided=True)], 0.05).missed == 0, "it is slower or faster for certain"
    assert missed_text(summarize(CASES, 0.05)).startswith("could not tell: 2 of 3")
    assert missed_text(summarize(CASES[:1], 0.05)) == ""


def test_a_build_failure_is_one_finding_on_all_its_cases() -> None:
    """JUnit and SARIF keep a test and an alert per case, which readers follow from one report to the next."""
    failed = [replace(row("failed", number), status="build_failed", message="v3.cu: error") for number in range(4)]
    other = replace(row("failed", 4), status="crashed", message="v3.cu: error")
    made = report(*failed, other)
    text = markdown(made)
    assert text.count("**did not build**") == 1
    assert "| 4 cases |" in text
    assert text.count("**crashed**") == 1
    titles = [item["title"] for item in check_run(made, "kernels")["output"]["annotations"]]
    assert titles == ["did not build: square v3 4 cases", "crashed: square v3 n=4,f32,fwd"]
    messages = [error.get("message") or "" for error in fromstring(junit(made)).iter("error")]
    assert [message.partition(" on ")[0] for message in messages] == [
        *(f"square v3 n={number},f32,fwd did not build" for number in range(4)),
        "square v3 n=4,f32,fwd crashed",
    ]


def test_of_a_traceback_the_last_line_is_shown() -> None:
    last = "ModuleNotFoundError: No module named 'y'"
    message = "Traceback (most recent call last):\n" + "  File x, line 1\n" * 100 + last
    failed = replace(row("failed"), status="build_failed", message=message)
    assert reason(failed) == last
    with redirect_stdout(StringIO()) as printed:
        show_findings(json.loads(json.dumps(asdict(report(failed)), default=str)))
    assert printed.getvalue().splitlines()[0].endswith(f"bbbbbbbb: {last}")


def test_the_command_shows_a_report_of_a_server_that_names_no_devices() -> None:
    older = asdict(report(row("slower")))
    del older["device_names"]
    with redirect_stdout(StringIO()) as printed:
        show_findings(older)
    assert f" on {row('slower').device} at " in printed.getvalue()


def test_a_finding_of_an_older_commit_names_it() -> None:
    assert "| commit |" not in markdown(report(row("wrong")))
    older = markdown(report(replace(row("fixed"), head_sha="c" * 40, status="wrong", ratio=None)))
    assert "| commit |" in older
    assert "`cccccccc`" in older
