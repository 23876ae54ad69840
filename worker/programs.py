"""Runs a repository's own benchmark program: in the jail of a child, once for a bench, in turn for a comparison.

The program times itself, and its exit status says whether it is right. What it prints or writes is read like any file
from elsewhere.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from warpwatch import CONTRACT
from warpwatch.contract.catalogue import Catalogue
from warpwatch.contract.commit_ids import short_sha
from warpwatch.contract.environment import Environment
from warpwatch.contract.messages import ProgramReply
from warpwatch.contract.outcome import Finding, Outcome
from warpwatch.contract.spec import JobRequest
from warpwatch.contract.words import JobKind, Status
from warpwatch.formats import (
    FILE_LIMIT,
    SAMPLE_LIMIT,
    VARIANT,
    WHOLE,
    ForeignResults,
    FormatError,
    FormatFault,
    case_entry,
    list_findings,
    operator_entry,
    read_results,
)
from warpwatch.project import Program
from warpwatch.worker.checkout import Checkout
from warpwatch.worker.child import Child, ChildFailure
from warpwatch.worker.gate import expect_healthy
from warpwatch.worker.line_reader import printable
from warpwatch.worker.plan import JobPlan
from warpwatch.worker.reporter import CannotRunError, Reporter, Stopped
from warpwatch.worker.tools import Tools

_RUNNER = Path(__file__).parent / "harness" / "child" / "programs.py"
_OUTPUT, _PRINTED = "results.json", "printed"
"""As in harness/child/programs.py. No name of a file comes from a child, which could name files of the host."""
_NOT_EXECUTABLE, _NOT_FOUND, _SIGNALLED = 126, 127, 128
_KILLED = 9
_TAIL = 2000
_SHOWN_FAULTS = 20


@dataclass(frozen=True, slots=True)
class ProgramRun:
    """How one run of a program ended. results: None where they could not be read, or where nobody asked for them."""

    status: Status
    message: str = ""
    results: ForeignResults | None = None


class ProgramRunner:
    """A program of one commit. It is built when it is first run, and again after its child was lost."""

    reporter: Reporter
    """Of the job that runs it now."""

    def __init__(self, checkout: Checkout, program: Program) -> None:
        self._checkout = checkout
        self.program = program
        self._child: Child | None = None
        self._failed_build: ProgramRun | None = None

    def bench(self) -> ProgramRun:
        """Runs the program and reads its results."""
        ended = self._build() or self._run(self.program.command)
        return ended if isinstance(ended, ProgramRun) else self._read(ended)

    def check(self) -> ProgramRun:
        """Asks whether the program is right. Where its own run says so, its results name its benchmarks."""
        if self.program.check is None:
            return self.bench()
        ended = self._build() or self._run(self.program.check)
        return ended if isinstance(ended, ProgramRun) else ProgramRun(Status.OK)

    def close(self) -> None:
        if self._child is not None:
            self._child.close()
            self._child = None

    def _build(self) -> ProgramRun | None:
        """Why the program cannot be run; None where it can."""
        if self._failed_build is not None or (self._child is not None and self._child.alive):
            return self._failed_build
        self.close()
        spec = self._checkout.program_spec(_RUNNER)
        self._child = self._checkout.host.start_child(spec, self.reporter)
        if self.program.build is not None:
            self.reporter.log(f"build {self.program.name} …")
            seconds = self._checkout.host.settings.build_timeout_seconds
            ended = self._run(self.program.build, seconds)
            if isinstance(ended, ProgramRun):
                self._failed_build = replace(ended, status=Status.BUILD_FAILED, message=f"build: {ended.message}")
        return self._failed_build

    def _run(self, command: str, seconds: float | None = None) -> ProgramReply | ProgramRun:
        """The reply of a command that ended well; else how it failed."""
        assert self._child is not None
        seconds = seconds or self._checkout.host.settings.program_timeout_seconds
        try:
            reply = self._child.ask(ProgramReply, "run", seconds, self.reporter, command=command)
        except ChildFailure as failure:
            self.close()
            return ProgramRun(failure.status, failure.message)
        except Stopped:
            self.close()
            raise
        return reply if reply.exit_code == 0 else self._failure(reply)

    def _failure(self, reply: ProgramReply) -> ProgramRun:
        code, printed = reply.exit_code, self._file(_PRINTED, FILE_LIMIT) or b""
        text = printable(printed[-_TAIL:].decode(errors="replace")).strip()
        words = f"; it printed last:\n{text}" if text else ""
        # A shell gives the signal that ended its command as an exit status.
        signal = -code if code < 0 else code - _SIGNALLED if _SIGNALLED < code <= _SIGNALLED + 64 else 0
        if signal == _KILLED:
            return ProgramRun(Status.OUT_OF_MEMORY, f"the system killed it, most likely for its memory{words}")
        if signal:
            return ProgramRun(Status.CRASHED, f"signal {signal} ended it{words}")
        if code in (_NOT_EXECUTABLE, _NOT_FOUND):
            return ProgramRun(Status.BUILD_FAILED, f"its command is not there, or cannot be run{words}")
        return ProgramRun(Status.WRONG, f"it exited with status {code}{words}")

    def _read(self, reply: ProgramReply) -> ProgramRun:
        data = self._file(_OUTPUT if reply.has_output else _PRINTED, FILE_LIMIT + 1)
        if data is None:
            return ProgramRun(Status.UNREADABLE, "its results are no regular file")
        try:
            results = read_results(self.program.format, data, lambda name: self._file(name, 4 * SAMPLE_LIMIT + 1))
        except FormatError as error:
            is_version = error.fault is FormatFault.UNKNOWN_VERSION
            return ProgramRun(Status.UNSUPPORTED if is_version else Status.UNREADABLE, f"its results: {error}")
        here = [benchmark for benchmark in results.benchmarks if not benchmark.device]
        if len(here) < len(results.benchmarks):
            self.reporter.log(f"{len(results.benchmarks) - len(here)} results of other devices are left out")
        for fault in results.list_faults()[:_SHOWN_FAULTS]:
            self.reporter.log(f"left out of its results: {fault}")
        return ProgramRun(Status.OK, "", replace(results, benchmarks=here))

    def _file(self, name: str, limit: int) -> bytes | None:
        """A file in the temporary folder of the child, where the program may have put anything."""
        try:
            return self._child.temp.read(name, limit) if self._child is not None else None
        except OSError:
            return None


def runner_of(checkout: Checkout, program: Program, reporter: Reporter) -> ProgramRunner:
    """The runner of a program at a commit, which is kept as long as the commit is checked out: it builds once."""
    runner: ProgramRunner | None = checkout.kept.get(program.name)
    if runner is None:
        new = ProgramRunner(checkout, program)
        runner = checkout.keep(program.name, new, new.close)
    runner.reporter = reporter
    return runner


def measure_program(plan: JobPlan, tools: Tools, reporter: Reporter) -> Outcome:
    """Checks or benches a program; CannotRunError where none of the cases asked for is one of its benchmarks."""
    request, (checkout,), (program,) = plan.request, plan.checkouts, plan.programs
    assert program is not None
    environment, peaks = identify(checkout, tools, reporter)
    outcome = Outcome(environment, peaks)
    if request.kind == JobKind.PROFILE:
        run = ProgramRun(Status.UNSUPPORTED, "a program is not profiled; let it write a trace of its own")
    else:
        if request.kind == JobKind.BENCH:
            expect_fit(checkout, peaks, tools, reporter)
        runner = runner_of(checkout, program, reporter)
        run = runner.bench() if request.kind == JobKind.BENCH else runner.check()
    reporter.log(f"{request.kind} {program.name} {run.status} {run.message}".rstrip())
    findings = _findings(request, run, environment.device_kind)
    if run.results is None:
        # A failed run names no benchmark, so the catalogue keeps those of the run before.
        return replace(outcome, findings=findings, derived_cases=[case_entry(item.case) for item in findings])
    return replace(outcome, findings=findings, catalogue=catalogue_of(program, run.results))


def _findings(request: JobRequest, run: ProgramRun, device_kind: str) -> list[Finding]:
    """A finding per benchmark; where the program failed, its status for every benchmark that is known."""
    chosen = request.spec.cases
    if run.results is None:
        known = request.spec.known.cases if request.spec.known else []
        names = [name for name in known or chosen or [WHOLE] if chosen is None or name in chosen]
        return [Finding(VARIANT, name, run.status, run.message) for name in names]
    findings = [item for item in list_findings(run.results, device_kind) if chosen is None or item.case in chosen]
    if not findings:
        raise CannotRunError(f"commit {short_sha(request.sha)} has none of the benchmarks asked for")
    return findings if request.kind == JobKind.BENCH else [replace(item, bench=None) for item in findings]


def catalogue_of(program: Program, results: ForeignResults) -> Catalogue:
    """The program as the one operator of a catalogue."""
    cases = [case_entry(item.name, item.sizes) for item in results.benchmarks]
    return Catalogue(CONTRACT, [operator_entry(program.name, f"{program.format}: {program.command}"[:500], cases)])


def identify(checkout: Checkout, tools: Tools, reporter: Reporter) -> tuple[Environment, dict[str, float] | None]:
    """The worker's environment, with the interpreter that the repository asks for; it needs no torch of its own."""
    environment, peaks = tools.identify(reporter)
    installed = checkout.host.installed(checkout.project.interpreter)
    return environment.with_facts({"program_interpreter": installed}), peaks


def expect_fit(checkout: Checkout, peaks: dict[str, float] | None, tools: Tools, reporter: Reporter) -> None:
    """Returns once the device is fit to be measured on; see gate.expect_healthy."""
    if tools.host.kind != "cuda":
        return
    with tools.host.lone_child(reporter) as child:
        expect_healthy(child, checkout.host.device, peaks, reporter, checkout.host.last_canary)
