"""Checks requested operators, variants and cases against the catalogue of the newest commits."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from warpwatch.contract.case import derive_case, parse_case
from warpwatch.contract.commit_ids import short_sha
from warpwatch.contract.spec import KnownNames
from warpwatch.db.reads.code import read_operator_entry
from warpwatch.db.reads.query import Session
from warpwatch.server.history.commits import CommitHistory
from warpwatch.server.http.problems import FieldError
from warpwatch.server.intake.submission_request import SubmissionRequest


@dataclass(frozen=True, slots=True)
class OperatorSelection:
    """Operators to measure; entries: the catalogue entry of each (contract.catalogue.OperatorEntry), None for an
    operator that no worker has reported."""

    operators: list[str]
    entries: dict[str, dict[str, Any] | None]
    variants: list[str]
    cases: list[str]
    suite: str

    def cases_of(self, operator: str) -> list[str]:
        """Keys of the requested cases that the operator declares or can have; as requested while its catalogue is
        unknown."""
        entry = self.entries[operator]
        if entry is None:
            return self.cases
        keys = (_case_key(entry, text) for text in self.cases)
        return list(dict.fromkeys(key for key in keys if key is not None))

    def catalogued_names(self, operator: str, device_kind: str) -> KnownNames | None:
        """Variants and cases of a job of the operator on this kind of device; None while its catalogue is unknown."""
        entry = self.entries[operator]
        if entry is None:
            return None
        variants = [
            v["name"]
            for v in entry["variants"]
            if device_kind in v["devices"] and v["name"] in (self.variants or [v["name"]])
        ]
        if self.cases:
            return KnownNames(variants, self.cases_of(operator))
        return KnownNames(variants, [case["key"] for case in entry["cases"] if self.suite in case["suites"]])


def select_operators(
    session: Session, repository_id: int, history: CommitHistory, request: SubmissionRequest
) -> tuple[OperatorSelection, list[FieldError]]:
    """The operators that match the request at any of the commits, and the errors of the request."""
    present = sorted({name for names in history.operators.values() for name in names})
    errors = unknown_names("operators", "operator", request.operators, present) if history.commits else []
    if history.commits and not present:
        message = f"no operators in {history.folder}/ at these commits"
        for sha, folder in history.misplaced.items():
            message = f"{folder} is a symbolic link or a file at {short_sha(sha)}, and must be a folder"
        errors = [
            FieldError(
                field="commits",
                message=message,
                remedy="set the operator folder in warpwatch.toml, or choose other commits",
            )
        ]
    requested = [name for name in dict.fromkeys(request.operators) if name in present] or present
    entries = {name: read_operator_entry(session, repository_id, name) for name in requested}
    if requested and all(entries.values()):
        errors += _check_filters(request, [entry for entry in entries.values() if entry])
    elif "compare" in request.kinds and requested:
        message = "A/B is not possible before a worker has read a commit of this operator"
        errors.append(FieldError(field="kinds", message=message, remedy="run check or bench first"))
    chosen = [name for name in requested if _has_any(entries[name], request)]
    return OperatorSelection(chosen, entries, request.variants, request.cases, request.suite), errors


def _check_filters(request: SubmissionRequest, entries: list[dict[str, Any]]) -> list[FieldError]:
    variants = {variant["name"] for entry in entries for variant in entry["variants"]}
    unknown = [text for text in request.cases if all(_case_key(entry, text) is None for entry in entries)]
    suites = {suite for entry in entries for case in entry["cases"] for suite in case["suites"]}
    errors = unknown_names("variants", "variant", request.variants, variants)
    errors += [_unknown_case(text, entries) for text in unknown]
    return errors if request.cases else errors + unknown_names("suite", "suite", [request.suite], suites)


def _has_any(entry: dict[str, Any] | None, request: SubmissionRequest) -> bool:
    """Whether the operator has one of the requested variants and cases; true while its catalogue is unknown."""
    if entry is None:
        return True
    has_variant = not request.variants or any(variant["name"] in request.variants for variant in entry["variants"])
    has_case = not request.cases or any(_case_key(entry, text) is not None for text in request.cases)
    return has_variant and has_case


def _case_key(entry: dict[str, Any], text: str) -> str | None:
    """The key of a case that the operator declares or can have, by its key or by sizes in any order, such as
    `m=4096,n=4096,bf16`; None for any other text."""
    keys = [case["key"] for case in entry["cases"]]
    if text in keys:
        return text
    try:
        return derive_case(text, [parse_case(declared) for declared in keys]).key
    except ValueError:
        return None


def _unknown_case(text: str, entries: list[dict[str, Any]]) -> FieldError:
    """Why no operator can have a case: what is wrong with its sizes, or the nearest names."""
    names = sorted({case["key"] for entry in entries for case in entry["cases"]})
    message = f"there is no case {text!r}"
    for entry in entries if "=" in text else ():
        try:
            derive_case(text, [parse_case(case["key"]) for case in entry["cases"]])
        except ValueError as error:
            message = str(error)
            break
    return FieldError(field="cases", message=message, remedy=_suggestion(text, names))


def unknown_names(field: str, what: str, requested: Iterable[str], existing: Iterable[str]) -> list[FieldError]:
    """An error for every requested name that does not exist, with the nearest existing names."""
    names = sorted(existing)
    return [
        FieldError(field=field, message=f"there is no {what} {name!r}", remedy=_suggestion(name, names))
        for name in requested
        if name not in names
    ]


def _suggestion(name: str, names: list[str]) -> str:
    near = get_close_matches(name, names, n=5, cutoff=0.4) or names[:10]
    return f"did you mean: {' · '.join(near)}" if near else "none exists yet"
