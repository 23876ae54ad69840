"""Runs the self-tests: repositories of operators whose variants have planted faults, beside right variants.

The mutants are the repository `adversaries/mutants`, and the operators that ship with Warpwatch, each with mutants of
its own meaning in `kernels/mutants`. Each operator file defines `caught_by = {variant: fault}`: the fault that must be
detected, as contract/words.py lists them, and after it, where that matters, the tensor, function, setting or probe it
must be about. Variants that are not in it are right and must never fail. `sanitize = {variant: sanitizer}` names the
variants whose fault only a sanitizer detects.
"""

from __future__ import annotations

import ast
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import warpwatch
from warpwatch import git
from warpwatch.contract.outcome import Finding
from warpwatch.contract.spec import JobRequest, JobSpec
from warpwatch.contract.words import Fault, JobKind, Status
from warpwatch.worker.execution import execute
from warpwatch.worker.plan import expect_entry
from warpwatch.worker.reporter import Reporter
from warpwatch.worker.tools import Tools

_SPIN = """
import os
parent, total = os.getppid(), 0
while os.getppid() == parent:
    total += sum(range(100_000))
"""
"""Ends with the process that started it, however that ends."""


@contextmanager
def busy_processes(count: int) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Runs `count` processes that each keep a core busy."""
    with ExitStack() as stack:
        started = []
        for _ in range(count):
            started.append(stack.enter_context(subprocess.Popen([sys.executable, "-S", "-c", _SPIN])))
            stack.callback(started[-1].kill)
        yield started


FOLDER = Path(__file__).with_name("adversaries")
SHIPPED = Path(warpwatch.__file__).parent / "bundled" / "kernels"
KINDS = {"mutants": ("check",), "cheaters": ("check", "bench")}
"""Every kind of adversaries, and the kinds of jobs that its variants go through."""
LONG_KINDS = {"caches": ("bench",), "honest": ("check", "bench")}
"""Kinds that take too long to belong to all: results that are kept by value, or from an earlier training step, which a
bench alone must name, and right variants that look like cheats."""
BENCH_BUDGET_NS = 40_000_000
_HONEST_BUDGET_NS = 10_000_000
"""Of a bench of a right variant that is repeated: the checks that could accuse it take their own time."""
_DETECTED = (Status.WRONG, Status.CRASHED)
_NOT_RUN = (Status.UNSUPPORTED, Status.SKIPPED)
_MESSAGE_LIMIT = 500


@dataclass(frozen=True, slots=True)
class PlantedFault:
    """The outcome of one variant with a planted fault.

    fault: a description of it. expected: what must be detected. outcome: caught (as expected) | otherwise (detected as
    another fault) | survived | not_run (message says why). caught_by: what detected it: plain runs, the names of
    probes, a sanitizer, or bench. case: where it was detected.
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
    """A right variant that failed."""

    operator: str
    variant: str
    case: str
    seed: int
    message: str


@dataclass(slots=True)
class Proof:
    """The result of one self-test.

    clean_runs: runs of right variants, over `seeds` seeds, that passed.
    """

    kind: str
    seeds: int
    clean_runs: int = 0
    faults: list[PlantedFault] = field(default_factory=list)
    false_alarms: list[FalseAlarm] = field(default_factory=list)

    @property
    def holds(self) -> bool:
        """Whether every fault that ran was caught, and no right variant failed."""
        return not self.false_alarms and {fault.outcome for fault in self.faults} <= {"caught", "not_run"}

    def to_json(self) -> dict[str, Any]:
        """The proof under the keys that the server's API and database use."""
        return {
            "kind": self.kind,
            "seeds": self.seeds,
            "innocent": self.clean_runs,
            "exhibits": [asdict(fault) for fault in self.faults],
            "accused": [asdict(alarm) for alarm in self.false_alarms],
        }


@dataclass(frozen=True, slots=True)
class ExpectedFault:
    """The fault that must be detected; subject: what it must be about, "" when that does not matter."""

    fault: Fault
    subject: str = ""

    def matches(self, finding: Finding) -> bool:
        return finding.fault is self.fault and self.subject in ("", *finding.subjects)

    def __str__(self) -> str:
        return f"{self.fault} {self.subject}".rstrip()


@dataclass(frozen=True, slots=True)
class _Source:
    """Files that become a repository. place: where they lie in it; operators: its folder of operator files."""

    files: Path
    place: str
    operators: str

    @property
    def folder(self) -> Path:
        """The operator files with the planted faults."""
        return self.files / Path(self.operators).relative_to(self.place)


def sources(kind: str) -> list[_Source]:
    """The repositories of one self-test."""
    own = _Source(FOLDER / kind, "", "kernels")
    return [own, _Source(SHIPPED, "kernels", "kernels/mutants")] if kind == "mutants" else [own]


@dataclass(frozen=True, slots=True)
class Expectations:
    """The detections that an operator file expects for its variants: see the top of this module."""

    operator: str
    caught_by: dict[str, ExpectedFault]
    sanitize: dict[str, str]


def read_expectations(folder: Path) -> list[Expectations]:
    """The expectations of every operator in the folder. Files are parsed and not run: their code is untrusted."""
    expectations = []
    for path in sorted(folder.glob("[a-z]*.py")):
        values: dict[str, dict[str, str]] = {"caught_by": {}, "sanitize": {}}
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) in values:
                values[ast.unparse(node.targets[0])] = ast.literal_eval(node.value)
        faults = {name: text.partition(" ") for name, text in values["caught_by"].items()}
        caught_by = {name: ExpectedFault(Fault(fault), subject) for name, (fault, _, subject) in faults.items()}
        expectations.append(Expectations(path.stem, caught_by, values["sanitize"]))
    return expectations


def prove(
    kind: str,
    tools: Tools,
    reporter: Reporter,
    seeds: int,
    operators: list[str] | None = None,
    right_runs: int = 0,
) -> Proof:
    """Runs all planted faults of `kind` and the right variants beside them exactly as users' variants run.

    operators: only these, None for all. right_runs: at least as many further runs of the right variants of each
    repository that can run on this device, by the last kind of job that they go through, on other inputs each time.
    Raises CannotRunError when the device cannot be used, Stopped when the reporter asks to stop.
    """
    proof = Proof(kind, seeds)
    for source in sources(kind):
        chosen = [
            expectations
            for expectations in read_expectations(source.folder)
            if operators is None or expectations.operator in operators
        ]
        if not chosen:
            continue
        with _as_repository(source, tools) as (url, sha):
            tests = []
            for expectations in chosen:
                request = JobRequest(JobKind.CHECK, url, sha, expectations.operator)
                tests.append(
                    _OperatorSelfTest(expectations, (KINDS | LONG_KINDS)[kind], request, tools, reporter, proof)
                )
                tests[-1].run()
            _repeat_right_variants(tests, right_runs, seeds, reporter)
    return proof


def _repeat_right_variants(tests: list[_OperatorSelfTest], runs: int, first_seed: int, reporter: Reporter) -> None:
    """Runs the right variants of all operators in turn until `runs` have ended, with or without an alarm."""
    done, seed = 0, first_seed
    while tests and done < runs:
        for test in list(tests):
            ended = test.run_right_variants(seed)
            if not ended:
                tests.remove(test)
            done += ended
            reporter.log(f"bench of right variants: {done} of {runs}")
            if done >= runs:
                return
        seed += 1


class _OperatorSelfTest:
    """Runs the planted faults and the right variants of one operator."""

    def __init__(
        self,
        expectations: Expectations,
        kinds: tuple[str, ...],
        request: JobRequest,
        tools: Tools,
        reporter: Reporter,
        proof: Proof,
    ) -> None:
        self._expectations = expectations
        self._kinds = kinds
        self._base = request
        self._tools = tools
        self._reporter = reporter
        self._proof = proof
        self._ideas: dict[str, str] = {}
        self._right: list[str] = []
        self._cases: list[str] = []

    def run(self) -> None:
        """Runs the planted faults, and the right variants with each seed of the proof."""
        (checkout,) = self._tools.checkouts(self._base.url, [self._base.sha], self._reporter)
        entry = expect_entry(checkout, self._base.operator, self._reporter)
        self._ideas = {variant.name: variant.idea for variant in entry.variants}
        self._cases = [case.key for case in entry.cases if {"quick", "edge"} & set(case.suites)]
        self._run_faults()
        self._right = [name for name in self._ideas if name not in self._expectations.caught_by]
        for seed in range(self._proof.seeds):
            # Timing does not depend on the inputs, so one seed is enough for a bench.
            for kind in self._kinds if seed == 0 else self._kinds[:1]:
                self._count(self._measure(kind, self._right, seed=seed), seed)

    def run_right_variants(self, seed: int) -> int:
        """Runs the right variants once more by the last kind of job; returns how many could run."""
        findings = self._measure(self._kinds[-1], self._right, seed=seed, budget_ns=_HONEST_BUDGET_NS)
        return self._count(findings, seed)

    def _run_faults(self) -> None:
        caught_by, sanitize = self._expectations.caught_by, self._expectations.sanitize
        uncaught = list(caught_by)
        findings: dict[str, list[tuple[str, Finding]]] = {name: [] for name in uncaught}
        checks = [("check", [key]) for key in self._cases] if "check" in self._kinds else []
        for kind, cases in [*checks, *((kind, None) for kind in self._kinds if kind != "check")]:
            plain = [name for name in uncaught if name not in sanitize]
            for finding in self._measure(kind, plain, cases=cases):
                findings[finding.variant].append((kind, finding))
            # A fault that was caught needs no further case and no bench.
            uncaught = [name for name in uncaught if not _first_match(findings[name], caught_by[name])]
        for name, sanitizer in sanitize.items():
            for key in self._cases:
                found = self._measure("check", [name], cases=[key], sanitize=sanitizer)
                findings[name] += [(sanitizer, finding) for finding in found]
                if _first_match(findings[name], caught_by[name]):
                    break
        self._proof.faults.extend(self._judge(name, pairs) for name, pairs in findings.items())

    def _count(self, findings: list[Finding], seed: int) -> int:
        """Counts the runs of right variants, and remembers those that failed; returns how many could run."""
        ran = [finding for finding in findings if finding.status not in _NOT_RUN]
        for finding in ran:
            if finding.status is Status.OK:
                self._proof.clean_runs += 1
                continue
            message = finding.message[:_MESSAGE_LIMIT]
            alarm = FalseAlarm(self._base.operator, finding.variant, finding.case, seed, message)
            self._proof.false_alarms.append(alarm)
        return len(ran)

    def _measure(self, kind: str, variants: list[str], **spec: Any) -> list[Finding]:
        """The findings of one job of `kind` over the variants; further job options in `spec`."""
        if not variants:
            return []
        job_spec = JobSpec(variants=variants, **{"budget_ns": BENCH_BUDGET_NS, **spec})
        request = replace(self._base, kind=JobKind(kind), spec=job_spec)
        return execute(request, self._tools, self._reporter, self._tools.host.home).findings

    def _judge(self, name: str, findings: list[tuple[str, Finding]]) -> PlantedFault:
        expected = self._expectations.caught_by[name]
        detected = [(kind, finding) for kind, finding in findings if finding.status in _DETECTED]
        match = _first_match(findings, expected)
        # Of detections by another name the last, because a bench follows where a check did not name the fault.
        chosen = match or next(reversed(detected), None) or next(iter(findings), None)
        outcome = "caught" if match else "otherwise" if detected else "survived"
        if chosen is None or all(finding.status in _NOT_RUN for _, finding in findings):
            outcome = "not_run"
        kind, finding = chosen or ("", Finding(name, "", Status.SKIPPED, "The operator has no case"))
        caught_by = kind if detected else ""
        if caught_by == "check":
            probes = finding.check.probes if finding.check else []
            caught_by = ", ".join(probe.name for probe in probes if probe.status == "wrong") or "plain runs"
        return PlantedFault(
            operator=self._base.operator,
            variant=name,
            fault=self._ideas.get(name, ""),
            expected=str(expected),
            outcome=outcome,
            caught_by=caught_by,
            case=finding.case,
            message=finding.message[:_MESSAGE_LIMIT],
        )


def _first_match(findings: list[tuple[str, Finding]], expected: ExpectedFault) -> tuple[str, Finding] | None:
    return next((pair for pair in findings if expected.matches(pair[1])), None)


@contextmanager
def _as_repository(source: _Source, tools: Tools) -> Iterator[tuple[str, str]]:
    """A git repository made from the source, since only commits can be measured: (its path, its only commit)."""
    with tempfile.TemporaryDirectory(prefix="warpwatch-proof-") as temp:
        root = Path(temp) / "repository"
        shutil.copytree(source.files, root / source.place, ignore=shutil.ignore_patterns("__pycache__"))
        if source.place:
            (root / "warpwatch.toml").write_text(f'operators = "{source.operators}"\n')
        git.git("init", "--quiet", "--initial-branch", "main", cwd=root)
        git.git("add", "--all", cwd=root)
        identity = ("-c", "user.name=Warpwatch", "-c", "user.email=warpwatch@localhost")
        git.git(*identity, "commit", "--quiet", "--message", "The planted faults of this version", cwd=root)
        try:
            yield str(root), git.resolve(root, "HEAD")
        finally:
            # Worktrees must be closed before the mirror that they belong to is removed.
            tools.close()
            shutil.rmtree(git.mirror_path(str(root), tools.host.home), ignore_errors=True)
