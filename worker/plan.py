"""Resolves the request of a job into one plan, before a child starts, and reads what the operator's file declares.

Git is asked and commits are checked out for the plan alone: whoever measures reads it. The operator's file is code of
the commit, so a child loads it; what it declares completes the plan.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from warpwatch.contract.catalogue import CaseEntry, Catalogue, OperatorEntry, VariantEntry
from warpwatch.contract.commit_ids import short_sha
from warpwatch.contract.messages import CasesReply
from warpwatch.contract.outcome import Finding, PartialOutcome
from warpwatch.contract.spec import JobRequest, JobSpec, KnownNames, named_environment
from warpwatch.contract.words import Fault, JobKind, Reason, Status
from warpwatch.definitions import DefinitionsError
from warpwatch.git import GitError, UnknownRefError
from warpwatch.project import Program
from warpwatch.worker.checkout import Checkout, OperatorSources
from warpwatch.worker.child import ChildFailure
from warpwatch.worker.mirrors import bring_patch
from warpwatch.worker.outages import reason_of
from warpwatch.worker.reporter import CannotRunError, Reporter
from warpwatch.worker.toolchains import (
    FILE_NAME,
    OF_COMMIT,
    OWN_INTERPRETER,
    Toolchain,
    ToolchainError,
    find_toolchain,
    read_toolchains,
)
from warpwatch.worker.tools import Tools

EDGE = "edge"


@dataclass(frozen=True, slots=True)
class JobPlan:
    """One job, and all that is known of it before a child starts.

    checkouts: its commits side by side, that of the request last: alone, after the base of a comparison, or base and
    head under the old toolchain and then both under the new one. sources: of the operator there. traces: a folder of
    the caller, for traces. earlier: what an interrupted run found, which is not measured again.
    """

    request: JobRequest
    checkouts: tuple[Checkout, ...]
    sources: OperatorSources
    traces: Path
    earlier: PartialOutcome | None = None

    @property
    def programs(self) -> list[Program | None]:
        """The benchmark program at each commit; None where the operator is none there."""
        return [checkout.project.program(self.request.operator) for checkout in self.checkouts]


def plan_job(
    request: JobRequest,
    tools: Tools,
    reporter: Reporter,
    traces: Path,
    earlier: PartialOutcome | None = None,
) -> JobPlan:
    """Brings the commits of a job to this machine and checks them out.

    Raises ProjectError where a commit asks for something that this service does not support, CannotRunError where a
    commit, its definitions or a toolchain cannot be had.
    """
    shas, names, home = [request.sha], list[str](), tools.host.home
    if request.kind is JobKind.COMPARE:
        if request.base_sha is None:
            raise CannotRunError("a comparison needs a base commit")
        shas, names = [request.base_sha, request.sha], [*(request.spec.toolchains or ())]
    try:
        found = _find_toolchains(request, names, tools, reporter)
        each = 2 if request.is_crossed else 1
        toolchains = [toolchain for toolchain in found for _ in range(each)]
        if request.patch is not None:
            bring_patch(home, request.url, request.patch, request.sha)
        shas *= each
        sealed = request.spec.sealed
        checkouts = tools.checkouts(request.url, shas, reporter, request.definitions, toolchains, sealed=sealed)
        return JobPlan(request, tuple(checkouts), checkouts[-1].sources_of(request.operator), traces, earlier)
    except ToolchainError as error:
        raise CannotRunError(str(error)) from error
    except DefinitionsError as error:
        raise CannotRunError(str(error), reason=Reason.UNUSABLE_DEFINITIONS) from error
    except GitError as error:
        raise CannotRunError(
            str(error), retry=not isinstance(error, UnknownRefError), reason=reason_of(error, home)
        ) from error


def _find_toolchains(request: JobRequest, names: Sequence[str], tools: Tools, reporter: Reporter) -> list[Toolchain]:
    """The toolchains with these names. Where a name asks for an environment, the first toolchain that gives it: that of
    a commit itself, or one of worker.toml."""
    home = tools.host.home
    keys = [named_environment(name) for name in names]
    wanted = set(keys) - {None}
    by_key: dict[str, Toolchain] = {}
    own = _own_toolchains(request, tools, reporter) if wanted else []
    for toolchain in [*own, *read_toolchains(home).values()] if wanted else ():
        (checkout,) = tools.checkouts(request.url, [request.sha], reporter, request.definitions, [toolchain])
        try:
            environment = checkout.environment_of(checkout.sources_of(request.operator), reporter)
        except CannotRunError as error:
            reporter.log(f"toolchain {toolchain.name} cannot be used: {error}")
            continue
        by_key.setdefault(environment.key, toolchain)
        if wanted <= by_key.keys():
            break
    missing = [key for key in keys if key is not None and key not in by_key]
    if missing:
        raise CannotRunError(
            f"nothing on this worker gives the environment {missing[0][:12]}; to compare with it, write a [toolchain] "
            f"with its interpreter or its variables into {home / FILE_NAME}"
        )
    return [find_toolchain(home, name) if key is None else by_key[key] for name, key in zip(names, keys, strict=True)]


def _own_toolchains(request: JobRequest, tools: Tools, reporter: Reporter) -> list[Toolchain]:
    """What the commit of a job is run with by itself. Where each of two commits runs with what the other one asks for,
    the interpreters of both are named."""
    if not request.is_crossed or request.base_sha is None:
        return [OF_COMMIT]
    shas = [request.sha, request.base_sha]
    checkouts = tools.checkouts(request.url, shas, reporter, request.definitions, [OF_COMMIT, OF_COMMIT])
    interpreters = [checkout.project.interpreter for checkout in checkouts]
    if interpreters[0] == interpreters[1]:
        return [OF_COMMIT]
    return [
        Toolchain(f"of-{sha[:12]}", OWN_INTERPRETER if interpreter is None else interpreter)
        for sha, interpreter in zip(shas, interpreters, strict=True)
    ]


@dataclass(frozen=True, slots=True)
class LoadFailure:
    """Why nothing of an operator can be measured at a commit. fault, subjects: as in a finding."""

    status: Status
    message: str
    fault: Fault | None = None
    subjects: tuple[str, ...] = ()
    reason: Reason | None = None


@dataclass(frozen=True, slots=True)
class DeclaredOperator:
    """One operator as its file declares it, in the catalogue of all; None where nothing loads. entry: with the derived
    cases, which the file does not declare; None as well where there is no such operator."""

    catalogue: Catalogue | None = None
    entry: OperatorEntry | None = None
    derived: tuple[CaseEntry, ...] = ()
    failure: LoadFailure | None = None


def read_operator(
    checkout: Checkout, operator: str, keys: Iterable[str] | None, reporter: Reporter
) -> DeclaredOperator:
    """Lets a child load the operator's file, and returns what the file declares; keys: of cases that it may lack."""
    if checkout.build_failure is not None:
        failure = LoadFailure(Status.BUILD_FAILED, str(checkout.build_failure), checkout.build_failure.fault)
        return DeclaredOperator(failure=failure)
    try:
        catalogue, entry = checkout.catalogue(operator, reporter)
    except ChildFailure as ended:
        message = f"the file of {operator} does not load: {ended.message}"
        return DeclaredOperator(failure=LoadFailure(ended.status, message))
    if entry is None:
        return DeclaredOperator(catalogue)
    if entry.error is not None:
        return DeclaredOperator(catalogue, entry, failure=_load_failure(checkout, entry, entry.error))
    derived = _derive_cases(checkout, entry, keys or (), reporter)
    return DeclaredOperator(catalogue, replace(entry, cases=[*entry.cases, *derived]), derived)


def expect_entry(checkout: Checkout, operator: str, reporter: Reporter) -> OperatorEntry:
    """The operator as the commit declares it; CannotRunError where its file does not load, or there is none."""
    try:
        _, entry = checkout.catalogue(operator, reporter)
    except ChildFailure as failure:
        raise CannotRunError(f"{operator} does not load: {failure.message}") from failure
    if entry is None or entry.error is not None:
        raise CannotRunError((entry and entry.error) or f"there is no operator {operator!r}")
    return entry


def choose_variants(entry: OperatorEntry, spec: JobSpec) -> list[VariantEntry]:
    """The variants asked for that the operator has."""
    names = pick([variant.name for variant in entry.variants], spec.variants)
    return [variant for variant in entry.variants if variant.name in names]


def choose_cases(entry: OperatorEntry, spec: JobSpec, kind: str) -> list[CaseEntry]:
    """The cases asked for by name, whatever their suite; without names the first `case_limit` of the suite, all by
    default.

    A check adds the suite "edge": sizes that are easy to get wrong, and whose time does not matter.
    """
    if spec.cases is None:
        suites = {spec.suite} | ({EDGE} if kind == "check" else set())
        return [case for case in entry.cases if not suites.isdisjoint(case.suites)][: spec.case_limit]
    names = pick([case.key for case in entry.cases], spec.cases)
    return [case for case in entry.cases if case.key in names]


def pick(existing: Iterable[str], chosen: list[str] | None) -> list[str]:
    """The existing names that are chosen; None chooses all."""
    return [name for name in existing if chosen is None or name in chosen]


def known_findings(request: JobRequest, failure: LoadFailure) -> list[Finding]:
    """The failure for every variant and case that an earlier commit had; CannotRunError when none is known."""
    names = request.spec.known or KnownNames()
    variants, cases = pick(names.variants, request.spec.variants), pick(names.cases, request.spec.cases)
    if not variants or not cases:
        raise CannotRunError(failure.message, reason=failure.reason)
    return [
        Finding(variant, case, failure.status, failure.message, fault=failure.fault, subjects=list(failure.subjects))
        for variant in variants
        for case in cases
    ]


def with_pairs(plan: JobPlan, reporter: Reporter) -> JobPlan:
    """The plan of a comparison; where its specification names no pairs, with every variant and case that the
    specification chooses at the head."""
    request, head = plan.request, plan.checkouts[-1]
    if request.spec.pairs:
        return plan
    entry = expect_entry(head, request.operator, reporter)
    variants = [item.name for item in choose_variants(entry, request.spec) if head.host.kind in item.devices]
    pairs = [(name, case.key) for case in choose_cases(entry, request.spec, request.kind) for name in variants]
    if not pairs:
        raise CannotRunError(f"commit {short_sha(request.sha)} has none of the variants and cases asked for")
    return replace(plan, request=replace(request, spec=replace(request.spec, pairs=pairs)))


def _derive_cases(
    checkout: Checkout, entry: OperatorEntry, keys: Iterable[str], reporter: Reporter
) -> tuple[CaseEntry, ...]:
    """The cases of these keys that the operator can have although it does not declare them."""
    declared = {case.key for case in entry.cases}
    missing = [key for key in dict.fromkeys(keys) if key not in declared]
    if not missing:
        return ()
    seconds = checkout.host.settings.case_timeout_seconds
    try:
        reply = checkout.ask(CasesReply, "cases", seconds, reporter, operator=entry.name, cases=missing)
    except ChildFailure as failure:
        reply = CasesReply(failure.status, failure.message)
    if reply.status is not Status.OK:
        reporter.log(f"undeclared cases of {entry.name}: {reply.message}")
    return tuple(case for case in reply.cases if case.key in missing)


def _load_failure(checkout: Checkout, entry: OperatorEntry, error: str) -> LoadFailure:
    """Why the file of the operator does not load."""
    measured, module = checkout.project.measured, entry.missing_module
    reason = Reason.UNUSABLE_DEFINITIONS if checkout.is_defined_beside else None
    if module is None:
        fault = Fault.BAD_DEFINITION if checkout.is_defined_beside else None
        return LoadFailure(Status.BUILD_FAILED, error, fault, reason=reason)
    faulty: tuple[Fault, tuple[str, ...]] = (Fault.MISSING_MODULE, (module,))
    if measured is not None and module.partition(".")[0] in measured.packages:
        message = f"this commit has no {module}, which the definition of {entry.name} imports\n{error}"
        return LoadFailure(Status.UNSUPPORTED, message, *faulty, reason=reason)
    python = checkout.host.find_interpreter(checkout.project.interpreter) or checkout.project.interpreter
    message = (
        f"{entry.name} imports {module}, which {python} lacks: install it there, or let `build` in warpwatch.toml "
        f"install it, and run this job again\n{error}"
    )
    return LoadFailure(Status.MISSING_DEPENDENCY, message, *faulty, reason=Reason.MISSING_DEPENDENCY)
