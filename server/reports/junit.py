"""A report as JUnit XML: one suite per operator and device, one test case per finding."""

from __future__ import annotations

import re
from collections import defaultdict
from xml.etree.ElementTree import Element, SubElement, indent, tostring

from warpwatch.server.reports.model import ERRORS, FAILURES, KINDS, Report, ReportRow
from warpwatch.server.reports.words import sentence

_NOT_XML = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""Characters that XML forbids even when escaped; programs print them."""


def junit(report: Report) -> str:
    """JUnit XML: wrong and slower are failures, failed and not run are errors, other findings are skipped."""
    root = Element("testsuites", name="warpwatch")
    suites: dict[tuple[str, str], list[ReportRow]] = defaultdict(list)
    for row in report.rows:
        suites[row.operator, row.device].append(row)
    for (operator, device), rows in suites.items():
        suite = SubElement(root, "testsuite", name=_clean(f"{operator} on {device}"), timestamp=_timestamp(report))
        for row in rows:
            _case(suite, row)
        _count(suite)
    _rest(SubElement(root, "testsuite", name=_clean(report.repository), timestamp=_timestamp(report)), report)
    for name in ("tests", "failures", "errors"):
        root.set(name, str(sum(int(suite.get(name, "0")) for suite in root)))
    indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + tostring(root, encoding="unicode") + "\n"


def _case(suite: Element, row: ReportRow) -> None:
    name = " ".join(part for part in (row.variant, row.case, KINDS[row.kind]) if part)
    case = SubElement(suite, "testcase", classname=_clean(f"warpwatch.{row.operator}"), name=_clean(name))
    if row.kind == "faster":
        SubElement(case, "system-out").text = _clean(_details(row))
        return
    kind = "failure" if row.kind in FAILURES else "error" if row.kind in ERRORS else "skipped"
    outcome = SubElement(case, kind, type=row.kind, message=_clean(sentence(row)))
    outcome.text = _clean(_details(row))


def _details(row: ReportRow) -> str:
    lines = (row.message, f"evidence: {row.decided_by}", row.url, f"reproduce: {row.replay}" if row.replay else "")
    return "\n".join(line for line in lines if line)


def _rest(suite: Element, report: Report) -> None:
    """The suite that stands for everything without a finding."""
    case = SubElement(suite, "testcase", classname="warpwatch", name="everything that is not listed")
    if report.conclusion == "pending":
        SubElement(case, "skipped", type="pending", message=f"{report.pending} jobs or verdicts left")
    SubElement(case, "system-out").text = _clean(f"{report.summary}\n{report.url}")
    _count(suite)


def _count(suite: Element) -> None:
    suite.set("tests", str(len(suite)))
    for name, tag in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
        suite.set(name, str(len(suite.findall(f"testcase/{tag}"))))


def _timestamp(report: Report) -> str:
    return report.created_at.strftime("%Y-%m-%dT%H:%M:%S")


def _clean(text: str) -> str:
    return _NOT_XML.sub("\ufffd", text)
