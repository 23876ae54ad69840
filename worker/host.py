"""What a worker measures with, and how it starts children."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from warpwatch import telemetry
from warpwatch.contract.activities import Stopwatch
from warpwatch.settings import Settings
from warpwatch.worker import bytecode, sandbox
from warpwatch.worker.child import BOOTSTRAP, Child, ChildSpec, find_interpreter
from warpwatch.worker.reporter import CannotRunError, Reporter, Stopped

THREADS = 0
"""CPU threads of a child: one per core, which the child counts itself."""


@dataclass(frozen=True, slots=True)
class Host:
    """What a worker measures with: one device ("cpu", "cuda:0"), the limits of `settings`, folders that children must
    not see, the control group in which children get theirs, and what the current job spends its time on."""

    settings: Settings
    device: str
    hidden: tuple[Path, ...] = ()
    bootstrap: Path = BOOTSTRAP
    group: Path | None = None
    stopwatch: Stopwatch = field(default_factory=lambda: Stopwatch(telemetry.step), compare=False)

    @property
    def kind(self) -> str:
        return self.device.partition(":")[0]

    @property
    def home(self) -> Path:
        return self.settings.home

    def confinement(self) -> sandbox.Confinement:
        """How this worker's children are isolated."""
        settings = self.settings
        return sandbox.confinement(
            self.home,
            settings.memory_bytes,
            self.hidden,
            settings.isolation,
            scratch_bytes=settings.scratch_bytes,
            device_kind=self.kind,
            group=self.group,
        )

    def installed(self, interpreter: str | None) -> str:
        """What identifies an interpreter with its packages; None for the worker's own."""
        program = find_interpreter(interpreter)
        return bytecode.read_interpreter(program, self.confinement()).key if program is not None else ""

    def start_child(self, spec: ChildSpec, reporter: Reporter) -> Child:
        """A child that has greeted; CannotRunError when it cannot work on this machine, Stopped when asked to stop."""
        return greeted(self.launch_child(spec, reporter))

    def launch_child(self, spec: ChildSpec, reporter: Reporter) -> Child:
        """A child that is still starting; it must be `greeted` before it is asked anything."""
        confinement = self.confinement()
        spec = replace(spec, bytecode=bytecode.prepare(self.home, spec.command()[0], confinement))
        if spec.sanitizer is not None:
            # Sanitizers reserve terabytes of addresses for their bookkeeping and touch almost none of them.
            confinement = replace(confinement, memory_bytes=None, traceable=True)
        if not confinement.network_closed:
            reporter.log("without a network namespace, kernel code can reach the network")
        return Child(spec, confinement, reporter)

    def empty_child(self, root: Path) -> ChildSpec:
        """A child in a folder without a repository."""
        return ChildSpec(root, self.device, root, THREADS, bootstrap=self.bootstrap)

    @contextmanager
    def lone_child(self, reporter: Reporter) -> Iterator[Child]:
        """A child in an empty folder, for questions about the device; raises like `start_child`."""
        with ExitStack() as stack:
            root = sandbox.make_temp()
            stack.callback(shutil.rmtree, root, ignore_errors=True)
            child = self.start_child(self.empty_child(root), reporter)
            stack.callback(child.close)
            yield child


def greeted(child: Child) -> Child:
    """The child once it has greeted; one that does not is killed."""
    try:
        child.wait_ready()
    except (CannotRunError, Stopped):
        child.close()
        raise
    return child
