"""What readers of JUnit XML and SARIF 2.1.0 ask of what they read: the parts of those forms that reports use."""

from __future__ import annotations

from typing import Any

JUNIT_REQUIRED: dict[str, set[str]] = {
    "testsuites": set(),
    "testsuite": {"name", "tests", "failures", "errors"},
    "testcase": {"name"},
    "failure": set(),
    "error": set(),
    "skipped": set(),
    "system-out": set(),
}
JUNIT_OPTIONAL: dict[str, set[str]] = {
    "testsuites": {"name", "time", "tests", "failures", "errors"},
    "testsuite": {"skipped", "timestamp", "hostname", "time", "id"},
    "testcase": {"classname", "time", "group"},
    "failure": {"type", "message"},
    "error": {"type", "message"},
    "skipped": {"type", "message"},
    "system-out": set(),
}
JUNIT_CHILDREN: dict[str, set[str]] = {
    "testsuites": {"testsuite"},
    "testsuite": {"testcase", "properties", "system-out", "system-err"},
    "testcase": {"skipped", "error", "failure", "system-out", "system-err"},
    "failure": set(),
    "error": set(),
    "skipped": set(),
    "system-out": set(),
}


def _object(required: list[str], properties: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"type": "object", "required": required, "properties": properties, "additionalProperties": False, **more}


_TEXT = {"type": "string"}
_INDEX = {"type": "integer", "minimum": -1}
_BAG = {"type": "object"}
_MESSAGE = _object(
    [], {"text": _TEXT, "markdown": _TEXT, "id": _TEXT}, anyOf=[{"required": ["text"]}, {"required": ["id"]}]
)
_MULTIFORMAT = _object(["text"], {"text": _TEXT, "markdown": _TEXT})
_LEVEL = {"enum": ["none", "note", "warning", "error"]}
_URI = {"type": "string", "format": "uri-reference", "pattern": r"^[^\s<>\"{}|\\^`]*$"}
_REGION = _object([], {"startLine": {"type": "integer", "minimum": 1}, "endLine": {"type": "integer", "minimum": 1}})
_ARTIFACT = _object([], {"uri": _URI, "uriBaseId": _TEXT, "index": _INDEX, "description": _MESSAGE})
_LOCATION = _object(
    [],
    {
        "physicalLocation": _object([], {"artifactLocation": _ARTIFACT, "region": _REGION}),
        "logicalLocations": {
            "type": "array",
            "uniqueItems": True,
            "items": _object([], {"name": _TEXT, "fullyQualifiedName": _TEXT, "kind": _TEXT, "index": _INDEX}),
        },
    },
)
_RULE = _object(
    ["id"],
    {
        "id": _TEXT,
        "name": _TEXT,
        "shortDescription": _MULTIFORMAT,
        "fullDescription": _MULTIFORMAT,
        "helpUri": _URI,
        "defaultConfiguration": _object([], {"level": _LEVEL, "enabled": {"type": "boolean"}}),
    },
)
_DRIVER = _object(
    ["name"],
    {
        "name": _TEXT,
        "version": _TEXT,
        "informationUri": _URI,
        "rules": {"type": "array", "uniqueItems": True, "items": _RULE},
    },
)
_RESULT = _object(
    ["message"],
    {
        "ruleId": _TEXT,
        "ruleIndex": _INDEX,
        "level": _LEVEL,
        "message": _MESSAGE,
        "locations": {"type": "array", "items": _LOCATION},
        "kind": {"enum": ["notApplicable", "pass", "fail", "review", "open", "informational"]},
        "partialFingerprints": {"type": "object", "additionalProperties": _TEXT},
        "hostedViewerUri": _URI,
        "properties": _BAG,
    },
)
_RUN = _object(
    ["tool"],
    {
        "tool": _object(["driver"], {"driver": _DRIVER}),
        "automationDetails": _object([], {"id": _TEXT, "description": _MESSAGE}),
        "invocations": {
            "type": "array",
            "items": _object(
                ["executionSuccessful"], {"executionSuccessful": {"type": "boolean"}, "exitCode": {"type": "integer"}}
            ),
        },
        "originalUriBaseIds": {"type": "object", "additionalProperties": _ARTIFACT},
        "columnKind": {"enum": ["utf16CodeUnits", "unicodeCodePoints"]},
        "versionControlProvenance": {
            "type": "array",
            "uniqueItems": True,
            "items": _object(["repositoryUri"], {"repositoryUri": _URI, "revisionId": _TEXT, "branch": _TEXT}),
        },
        "results": {"type": "array", "items": _RESULT},
        "properties": _BAG,
    },
)
SARIF_SCHEMA: dict[str, Any] = {
    "$schema": "http://json-schema.org/draft-07/schema#",
    **_object(
        ["version", "runs"], {"$schema": _URI, "version": {"const": "2.1.0"}, "runs": {"type": "array", "items": _RUN}}
    ),
}
