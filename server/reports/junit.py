"""A report as JUnit XML: one suite per operator and device, one test case per variant and case."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import astuple
from xml.etree.ElementTree import Element, SubElement, indent, tostring

from warpwatch.contract.commit_ids import short_sha
from warpwatch.contract.report_facts import ReportedSeries
from warpwatch.server.reports.model import ERRORS, FAILURES, Report, ReportRow
from warpwatch.server.reports.sensitivity import detectable_text
from warpwatch.server.reports.words import sentence

_NOT_XML = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""Characters that XML forbids even when escaped; programs print them."""


def junit(report: Report, measured: Sequence[ReportedSeries] = ()) -> str:
    """JUnit XML: wrong and slower are failures, failed and not run are errors, other findings are skipped.

    A test is a variant on a case and device, whatever became of it and at which commits, so that readers can follow it
    from one report to the next. measured: those without a finding pass, once everything is decided.
    """
    root = Element("testsuites", name="warpwatch")
    tests: dict[ReportedSeries, list[ReportRow]] = defaultdict(list)
    for row in report.rows:
        tests[ReportedSeries(row.operator, row.variant or "", row.case or "", row.device)].append(row)
    if report.conclusion != "pending" and not report.left_out:
        for series in measured:
            tests.setdefault(series, [])
    least = {
        ReportedSeries(case.operator, case.variant, case.case, case.device): detectable_text(case)
        for case in report.sensitivity.by_case
    }
    suites: dict[tuple[str, str], Element] = {}
    for series, rows in sorted(tests.items(), key=lambda test: astuple(test[0])):
        place = (series.operator, series.device)
        if place not in suites:
            name = _clean(f"{series.operator} on {report.device_names.get(series.device, series.device)}")
            suites[place] = SubElement(root, "testsuite", name=name, timestamp=_timestamp(report))
        _case(suites[place], series, rows, least.get(series), report.device_names)
    for suite in suites.values():
        _count(suite)
    _rest(SubElement(root, "testsuite", name=_clean(report.repository), timestamp=_timestamp(report)), report)
    for name in ("tests", "failures", "errors"):
        root.set(name, str(sum(int(suite.get(name, "0")) for suite in root)))
    indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + tostring(root, encoding="unicode") + "\n"


def _case(
    suite: Element, series: ReportedSeries, rows: list[ReportRow], least: str | None, device_names: Mapping[str, str]
) -> None:
    """One test with its worst finding, and the others below that; what is faster or fixed passes. least: the smallest
    slow-down that it would show."""
    name = " ".join(part for part in (series.variant, series.case) if part) or "all"
    case = SubElement(suite, "testcase", classname=_clean(f"warpwatch.{series.operator}"), name=_clean(name))
    text = _clean("\n\n".join(f"{sentence(row, device_names)}\n{_details(row)}" for row in rows))
    is_passing = all(row.kind in ("fixed", "faster") for row in rows)
    if not is_passing:
        kind = rows[0].kind
        tag = "failure" if kind in FAILURES else "error" if kind in ERRORS else "skipped"
        SubElement(case, tag, type=kind, message=_clean(sentence(rows[0], device_names))).text = text
    shown = [text] if rows and is_passing else []
    shown += [f"smallest slow-down found with 95 %: {least}"] if least is not None else []
    if shown:
        SubElement(case, "system-out").text = "\n\n".join(shown)


def _details(row: ReportRow) -> str:
    right = f"right again at {short_sha(row.right_at)}" if row.right_at else ""
    reproduce = f"reproduce: {row.replay}" if row.replay else ""
    lines = (row.message, right, f"evidence: {row.decided_by}", row.url, reproduce)
    return "\n".join(line for line in lines if line)


def _rest(suite: Element, report: Report) -> None:
    """The suite that stands for everything without a finding."""
    case = SubElement(suite, "testcase", classname="warpwatch", name="everything that is not listed")
    if report.conclusion == "pending":
        SubElement(case, "skipped", type="pending", message=f"{report.pending} jobs or verdicts left")
    SubElement(case, "system-out").text = _clean(
        f"{report.summary}\n{report.sensitivity.summary}\n{report.url}".rstrip()
    )
    _count(suite)


def _count(suite: Element) -> None:
    suite.set("tests", str(len(suite)))
    for name, tag in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
        suite.set(name, str(len(suite.findall(f"testcase/{tag}"))))


def _timestamp(report: Report) -> str:
    return report.created_at.strftime("%Y-%m-%dT%H:%M:%S")


def _clean(text: str) -> str:
    return _NOT_XML.sub("\ufffd", text)
