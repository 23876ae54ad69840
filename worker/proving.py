"""Runs the adversaries, repositories whose variants have known faults beside what is right: what judges is itself
judged.

An operator file of theirs says `caught_by = {variant: words}`: what the message must hold that names the fault.
Variants that are not in it are right and must never be called wrong. `sanitize = {variant: sanitizer}` names those that
only a sanitizer sees.
"""

from __future__ import annotations

import ast
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from warpwatch import git
from warpwatch.contract.outcome import Finding
from warpwatch.contract.spec import JobRequest, JobSpec
from warpwatch.contract.words import JobKind, Status
from warpwatch.worker.checkout import Tools
from warpwatch.worker.child import ChildFailure
from warpwatch.worker.execution import execute
from warpwatch.worker.reporter import CannotRunError, Reporter

FOLDER = Path(__file__).with_name("adversaries")
KINDS = {"mutants": ("check",), "cheaters": ("check", "bench")}
"""Every folder of adversaries and what its variants are put through."""
BENCH_BUDGET_NS = 40_000_000
_FOUND = (Status.WRONG, Status.CRASHED)
_NOT_RUN = (Status.UNSUPPORTED, Status.SKIPPED)
_SAID_LIMIT = 500


@dataclass(frozen=True, slots=True)
class PlantedFault:
    """What became of one adversary.

    outcome: caught (with the words expected) | otherwise (found, but not named) | survived | not_run (message says
    why). caught_by: what found it: plain runs, the names of probes, a sanitizer, or bench. fault and case: in words,
    and where it showed.
    """

    operator: str
    variant: str
    fault: str
    expected: str
    outcome: str
    caught_by: str
    case: str
    message: str


@dataclass(frozen=True, slots=True)
class FalseAlarm:
    """A variant that is right, and was called wrong."""

    operator: str
    variant: str
    case: str
    seed: int
    message: str


@dataclass(slots=True)
class Proof:
    """What one run of all adversaries came to.

    innocent: checks of right variants, over `seeds` seeds, that found nothing.
    """

    kind: str
    seeds: int
    innocent: int = 0
    exhibits: list[PlantedFault] = field(default_factory=list)
    accused: list[FalseAlarm] = field(default_factory=list)

    @property
    def holds(self) -> bool:
        """Whether every adversary that ran was caught and named, and nothing that is right was accused."""
        return not self.accused and {exhibit.outcome for exhibit in self.exhibits} <= {"caught", "not_run"}


@dataclass(frozen=True, slots=True)
class Expectations:
    """What an operator file says of its variants."""

    operator: str
    caught_by: dict[str, str]
    sanitize: dict[str, str]


def read_charges(kind: str) -> list[Expectations]:
    """Of every operator of the folder; the files are read and not run, as their code is no more to be trusted than any
    other."""
    found = []
    for path in sorted((FOLDER / kind / "kernels").glob("[a-z]*.py")):
        said: dict[str, dict[str, str]] = {"caught_by": {}, "sanitize": {}}
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) in said:
                said[ast.unparse(node.targets[0])] = ast.literal_eval(node.value)
        found.append(Expectations(path.stem, said["caught_by"], said["sanitize"]))
    return found


def prove(kind: str, tools: Tools, reporter: Reporter, seeds: int, operators: list[str] | None = None) -> Proof:
    """Puts all adversaries of `kind`, and what is right beside them, through what users' variants go through.

    Raises CannotRunError when the device cannot be used, Stopped when the reporter says so.
    """
    proof = Proof(kind, seeds)
    with _laid_out(kind, tools) as (url, sha):
        for charges in read_charges(kind):
            if operators is None or charges.operator in operators:
                _Trial(
                    charges, KINDS[kind], JobRequest(JobKind.CHECK, url, sha, charges.operator), tools, reporter, proof
                ).run()
    return proof


class _Trial:
    """One operator's adversaries and right variants."""

    def __init__(
        self,
        charges: Expectations,
        kinds: tuple[str, ...],
        request: JobRequest,
        tools: Tools,
        reporter: Reporter,
        proof: Proof,
    ) -> None:
        self._charges = charges
        self._kinds = kinds
        self._base = request
        self._tools = tools
        self._reporter = reporter
        self._proof = proof
        self._ideas: dict[str, str] = {}

    def run(self) -> None:
        (checkout,) = self._tools.checkouts(self._base.url, [self._base.sha], self._reporter)
        try:
            _, entry = checkout.catalogue(self._base.operator, self._reporter)
        except ChildFailure as failure:
            raise CannotRunError(f"{self._base.operator}.py does not load: {failure.message}") from failure
        if entry is None or entry.error is not None:
            raise CannotRunError(f"{self._base.operator}.py does not load: {entry.error if entry else 'it is missing'}")
        self._ideas = {variant.name: variant.idea for variant in entry.variants}
        self._try_adversaries()
        right = [name for name in self._ideas if name not in self._charges.caught_by]
        for seed in range(self._proof.seeds if right else 0):
            self._try_right(right, seed)

    def _try_adversaries(self) -> None:
        left = list(self._charges.caught_by)
        found: dict[str, list[tuple[str, Finding]]] = {name: [] for name in left}
        for kind in self._kinds:
            plain = [name for name in left if name not in self._charges.sanitize]
            for name, finding in self._find(kind, plain):
                found[name].append((kind, finding))
            # What a check has named needs no timing.
            left = [name for name in left if not _named(found[name], self._charges.caught_by[name])]
        for name, sanitizer in self._charges.sanitize.items():
            found[name] = [(sanitizer, finding) for _, finding in self._find("check", [name], sanitize=sanitizer)]
        self._proof.exhibits.extend(self._judge(name, findings) for name, findings in found.items())

    def _try_right(self, variants: list[str], seed: int) -> None:
        # Timing does not depend on the numbers, so one seed of it says all.
        for kind in self._kinds if seed == 0 else self._kinds[:1]:
            for name, finding in self._find(kind, variants, seed=seed):
                if finding.status is Status.OK:
                    self._proof.innocent += 1
                elif finding.status not in _NOT_RUN:
                    self._proof.accused.append(
                        FalseAlarm(self._base.operator, name, finding.case, seed, finding.message[:_SAID_LIMIT])
                    )

    def _find(self, kind: str, variants: list[str], **spec: Any) -> list[tuple[str, Finding]]:
        if not variants:
            return []
        job_spec = JobSpec(variants=variants, budget_ns=BENCH_BUDGET_NS, **spec)
        request = replace(self._base, kind=JobKind(kind), spec=job_spec)
        outcome = execute(request, self._tools, self._reporter, self._tools.host.home)
        return [(finding.variant, finding) for finding in outcome.findings]

    def _judge(self, name: str, findings: list[tuple[str, Finding]]) -> PlantedFault:
        words = self._charges.caught_by[name]
        guilty = [(kind, finding) for kind, finding in findings if finding.status in _FOUND]
        named = _named(findings, words)
        chosen = named or next(iter([*guilty, *findings]), None)
        outcome = "caught" if named else "otherwise" if guilty else "survived"
        if chosen is None or all(finding.status in _NOT_RUN for _, finding in findings):
            outcome = "not_run"
        kind, finding = chosen or ("", Finding(name, "", Status.SKIPPED, "it has no case"))
        by = _found_by(kind, finding) if guilty else ""
        return PlantedFault(
            self._base.operator,
            name,
            self._ideas.get(name, ""),
            words,
            outcome,
            by,
            finding.case,
            finding.message[:_SAID_LIMIT],
        )


def _named(findings: list[tuple[str, Finding]], words: str) -> tuple[str, Finding] | None:
    """The first finding that says what is wrong in the words expected."""
    return next((pair for pair in findings if pair[1].status in _FOUND and words in pair[1].message), None)


def _found_by(kind: str, finding: Finding) -> str:
    wrong = [probe.name for probe in finding.check.probes if probe.status == "wrong"] if finding.check else []
    if kind == "check":
        return ", ".join(wrong) or "plain runs"
    return kind


@contextmanager
def _laid_out(kind: str, tools: Tools) -> Iterator[tuple[str, str]]:
    """The folder as a git repository of its own, since only commits are measured: its address and its one commit."""
    with tempfile.TemporaryDirectory(prefix="warpwatch-proof-") as temp:
        root = Path(temp) / kind
        shutil.copytree(FOLDER / kind, root, ignore=shutil.ignore_patterns("__pycache__"))
        git.git("init", "--quiet", "--initial-branch", "main", cwd=root)
        git.git("add", "--all", cwd=root)
        identity = ("-c", "user.name=Warpwatch", "-c", "user.email=warpwatch@localhost")
        git.git(*identity, "commit", "--quiet", "--message", f"The {kind} of this version", cwd=root)
        try:
            yield str(root), git.resolve(root, "HEAD")
        finally:
            # The worktree goes before the mirror that it belongs to.
            tools.close()
            shutil.rmtree(git.mirror_path(str(root), tools.host.home), ignore_errors=True)
