"""A report as SARIF 2.1.0, for code scanning."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any
from urllib.parse import quote, urlsplit

from warpwatch import __version__
from warpwatch.contract.words import Signal
from warpwatch.server.reports.model import ERRORS, FAILURES, KINDS, MEANINGS, Report, ReportRow, ReportRowKind
from warpwatch.server.reports.words import reason, sentence

SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
_ROOT = "SRCROOT"


def sarif(report: Report, repository_url: str, folder: str) -> dict[str, Any]:
    """One run. folder: where the repository keeps its operators, to point at their files."""
    kinds: list[ReportRowKind] = list(KINDS)
    run: dict[str, Any] = {
        "tool": {
            "driver": {
                "name": "Warpwatch",
                "version": __version__,
                "rules": [
                    {
                        "id": f"warpwatch/{kind}",
                        "name": "".join(word.capitalize() for word in kind.split("_")),
                        "shortDescription": {"text": KINDS[kind]},
                        "fullDescription": {"text": MEANINGS[kind]},
                        "defaultConfiguration": {"level": _level(kind)},
                    }
                    for kind in kinds
                ],
            }
        },
        "automationDetails": {"id": f"warpwatch/{report.repository}/{report.submission_id or report.head_sha}"},
        "invocations": [{"executionSuccessful": report.exit_code != 2, "exitCode": report.exit_code}],
        "originalUriBaseIds": {_ROOT: {"description": {"text": "The root of the repository."}}},
        "columnKind": "unicodeCodePoints",
        "properties": {
            "summary": report.summary,
            "conclusion": report.conclusion,
            "leftOut": report.left_out,
            "sensitivity": asdict(report.sensitivity),
        },
        "results": [_result(row, kinds.index(row.kind), folder, report.device_names) for row in report.rows],
    }
    if report.url:
        run["tool"]["driver"]["informationUri"] = report.url
    if report.head_sha and urlsplit(repository_url).scheme in ("http", "https", "ssh", "git"):
        run["versionControlProvenance"] = [
            {"repositoryUri": _without_password(repository_url), "revisionId": report.head_sha}
        ]
    return {"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}


def _level(kind: ReportRowKind) -> str:
    return "error" if kind in FAILURES else "warning" if kind in ERRORS else "note"


def _result(row: ReportRow, rule: int, folder: str, device_names: Mapping[str, str]) -> dict[str, Any]:
    measured = {
        "metric": row.metric,
        "ratio": row.ratio,
        "low": row.low,
        "high": row.high,
        "baseNs": row.base_ns,
        "headNs": row.head_ns,
    }
    file = quote(f"{folder.strip('/')}/{row.operator}.py")
    text = sentence(row, device_names) + (f". {reason(row)}" if row.message else "")
    return {
        "ruleId": f"warpwatch/{row.kind}",
        "ruleIndex": rule,
        "level": _level(row.kind),
        "message": {"text": text},
        "locations": [
            {
                "physicalLocation": {"artifactLocation": {"uri": file, "uriBaseId": _ROOT}, "region": {"startLine": 1}},
                "logicalLocations": [{"fullyQualifiedName": row.cell, "kind": "function"}],
            }
        ],
        "partialFingerprints": {"warpwatch/v1": _fingerprint(row)},
        **({"hostedViewerUri": row.url} if row.url else {}),
        "properties": {
            "device": row.device,
            "baseSha": row.base_sha,
            "headSha": row.head_sha,
            "status": row.status,
            "decidedBy": row.decided_by,
            "rounds": row.rounds,
            "replay": row.replay,
            **{name: value for name, value in measured.items() if value is not None},
        },
    }


def _fingerprint(row: ReportRow) -> str:
    """Identifies a finding across commits, so that code scanning keeps one alert for it."""
    signal = (row.metric,) if row.metric == Signal.LAUNCH else ()
    place = (row.kind, row.operator, row.variant, row.case, row.device, *signal)
    return hashlib.sha256(repr(place).encode()).hexdigest()


def _without_password(url: str) -> str:
    parts = urlsplit(url)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()
