"""The device and the resources with which a worker measures, and the start of children."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from warpwatch import telemetry
from warpwatch.contract.activities import Stopwatch
from warpwatch.settings import Settings
from warpwatch.worker import bytecode, headers, levels, sandbox
from warpwatch.worker.child import Child, ChildSpec, find_interpreter
from warpwatch.worker.gate import LastCanary
from warpwatch.worker.images import ContainerImage, open_image
from warpwatch.worker.reporter import CannotRunError, Reporter, Stopped
from warpwatch.worker.turns import LaneTurns

THREADS = 0
"""CPU threads of a child: one per core, which the child counts itself."""


@dataclass(frozen=True, slots=True)
class Host:
    """The resources with which a worker measures: one device ("cpu", "cuda:0"), the limits of `settings`, folders that
    children must not see, the control group that holds the groups of children, the stopwatch of the current job, the
    container image in which children run (None for the host's own files), the time at which the device was found fit
    last, and the turns of children that use the device while children of other lanes time something."""

    settings: Settings
    device: str
    hidden: tuple[Path, ...] = ()
    bootstrap: Path = sandbox.BOOTSTRAP
    group: Path | None = None
    stopwatch: Stopwatch = field(default_factory=lambda: Stopwatch(telemetry.step), compare=False)
    image: ContainerImage | None = None
    last_canary: LastCanary = field(default_factory=LastCanary, compare=False)
    turns: LaneTurns | None = field(default=None, compare=False)

    @property
    def kind(self) -> str:
        return self.device.partition(":")[0]

    @property
    def home(self) -> Path:
        return self.settings.home

    def confinement(self) -> sandbox.Confinement:
        """How this worker's children are isolated."""
        settings = self.settings
        key = (settings.github_app_key,) if settings.github_app_key is not None else ()
        confinement = levels.confinement(
            self.home,
            settings.memory_bytes,
            (*self.hidden, *key),
            settings.isolation,
            scratch_bytes=settings.scratch_bytes,
            device_kind=self.kind,
            group=self.group,
            shown=settings.visible,
        )
        return confinement if self.image is None else replace(confinement, image=self.image)

    def in_image(self, reference: str | None) -> Host:
        """The same host with children in a container image; CannotRunError where it cannot be used here."""
        if reference is None:
            return self
        return replace(self, image=open_image(self.settings, reference, self.confinement().isolation))

    def find_interpreter(self, name: str | None) -> str | None:
        """The path of the Python that warpwatch.toml names, as a child sees it; None where it is not here."""
        return find_interpreter(name, self.image)

    def installed(self, interpreter: str | None) -> str:
        """Identifies an interpreter, its packages and the image; "" where the interpreter is not on this machine."""
        program = self.find_interpreter(interpreter)
        if program is None:
            return ""
        key = bytecode.read_interpreter(program, self.confinement()).key
        return key if self.image is None else f"{self.image.digest} {key}"

    def start_child(self, spec: ChildSpec, reporter: Reporter) -> Child:
        """A child that has greeted; CannotRunError when it cannot work on this machine, Stopped when asked to stop."""
        return greeted(self.launch_child(spec, reporter))

    def launch_child(self, spec: ChildSpec, reporter: Reporter) -> Child:
        """A child that is still starting; it must be `greeted` before it is asked anything."""
        confinement = self.confinement()
        program = spec.command(confinement.image)[0]
        spec = replace(spec, bytecode=bytecode.prepare(self.home, program, confinement))
        if self.kind == "cpu" and spec.builds is None:
            if headers.are_missed():
                headers.make(program, confinement)
            spec = replace(spec, headers=headers.find(program, confinement))
        if spec.sanitizer is not None:
            if self.image is not None:
                raise CannotRunError("sanitizers work with the host's own files, and this commit asks for a container")
            # Sanitizers reserve terabytes of addresses for their bookkeeping and touch almost none of them.
            confinement = replace(confinement, memory_bytes=None, traceable=True)
        if not confinement.network_closed:
            reporter.log("without a network namespace, kernel code can reach the network")
        return Child(spec, confinement, reporter, self.turns)

    def start_template(self, reporter: Reporter) -> None:
        """Lets the template of later children import torch while other things are done."""
        root = sandbox.make_temp()
        try:
            spec = self.empty_child(root)
            if spec.is_forked and self.image is None:
                self.launch_child(spec, reporter).close()
        finally:
            shutil.rmtree(root, ignore_errors=True)

    def find_headers(self, interpreter: str | None) -> Path | None:
        """The folder with torch's precompiled headers for children of a CPU, where there is one."""
        program = self.find_interpreter(interpreter)
        return headers.find(program, self.confinement()) if self.kind == "cpu" and program is not None else None

    def precompile_headers(self, interpreter: str | None, should_stop: Callable[[], str | None]) -> None:
        """Makes that folder, unless there is one; should_stop: as in Reporter."""
        program = self.find_interpreter(interpreter)
        if self.kind == "cpu" and program is not None:
            headers.make(program, self.confinement(), should_stop)

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
