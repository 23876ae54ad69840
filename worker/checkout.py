"""A commit checked out on this machine: worktree, project file and running child, kept between jobs of the commit."""

from __future__ import annotations

import copy
import shutil
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from warpwatch import __version__
from warpwatch.contract.activities import Activity, Stopwatch
from warpwatch.contract.catalogue import MOST_TIMEOUT_FACTOR, Catalogue, OperatorEntry
from warpwatch.contract.commit_ids import short_sha
from warpwatch.contract.environment import Environment
from warpwatch.contract.messages import BuildReply
from warpwatch.contract.spec import ADDRESS
from warpwatch.contract.words import Status
from warpwatch.sources import Sources
from warpwatch.worker.building import BuildRequest, LibraryStore, build, is_name, merge_replies
from warpwatch.worker.caches import cache_of
from warpwatch.worker.cards import read_card, read_model
from warpwatch.worker.child import Child, ChildFailure, ChildSpec
from warpwatch.worker.host import THREADS, Host, greeted
from warpwatch.worker.mirrors import MirroredCommit, find_ancestors
from warpwatch.worker.package_build import PackageBuild, PackageBuildError, build_package
from warpwatch.worker.reporter import CannotRunError, Reporter, Stopped
from warpwatch.worker.sanitizers import Sanitizer
from warpwatch.worker.toolchains import Toolchain
from warpwatch.worker.trees import Tree
from warpwatch.worker.turns import LaneTurns
from warpwatch.worker.worktrees import CommitTrees, lay_out, own_prefix

T = TypeVar("T")
QUICK_SECONDS = 60.0
"""Limit for asking a child what it runs on."""
LIBRARIES = 64
"""Libraries that one operator may use."""


@dataclass(frozen=True, slots=True)
class OperatorSources:
    """The sources of one operator at a commit, as git has them. modules: installed modules that they import.

    definition: the fingerprint of its definition, "" where there is none; None where the commit itself defines it.
    """

    modules: tuple[str, ...] = ()
    definition: str | None = None


class Checkout:
    """One commit's worktree and child. The child starts when first asked, and again after it failed.

    Git is asked when a checkout is made, and by `sources_of` for the plan of a job. toolchain: what the commit is built
    and run with, in place of what its project asks for. writes_cache: whether later children get what compilers make.
    """

    def __init__(
        self, host: Host, commit: MirroredCommit, toolchain: Toolchain | None = None, *, writes_cache: bool = True
    ) -> None:
        sha, project = commit.sha, commit.project
        self.host = host = host.in_image(project.image)
        self.sha = sha
        if toolchain is not None and toolchain.interpreter is not None:
            project = replace(project, interpreter=toolchain.interpreter or None)
        self.project = project
        self._variables = toolchain.variables if toolchain is not None else ()
        place = sha if commit.definitions is None else commit.definitions.sha
        # Without the toolchain, which does not change what is measured.
        self._sources = Sources(commit.mirror, commit.definitions, {place: commit.project})
        self._environments: dict[tuple[str, ...], Environment] = {}
        self._catalogues: dict[str | None, Catalogue] = {}
        self._child: Child | None = None
        self._spares: deque[Child] = deque()
        self._retired: list[Child] = []
        self._sanitizer: Sanitizer | None = None
        self.loads_together = True
        """Whether the catalogue is of all operators; else each is loaded alone."""
        self._ran: set[str] = set()
        self._stack = ExitStack()
        self._builds: dict[tuple[str, bool], BuildReply] = {}
        self.kept: dict[str, Any] = {}
        """Further objects that live as long as the checkout, by name; see `keep`."""
        folder = host.home / "worktrees" / f"{own_prefix()}{sha[:12]}-{id(self):x}"
        # Beside the worktree, so that it is hidden from other commits and removed after a crash in the same way.
        self._libraries = folder.with_name(f"{folder.name}-libraries")
        self._stack.callback(shutil.rmtree, self._libraries, ignore_errors=True)
        self.build_failure: PackageBuildError | None = None
        self._package: PackageBuild | None = None
        try:
            self.trees = self._stack.enter_context(lay_out(commit, folder))
            self._ancestors = find_ancestors(commit, self.trees.root)
        except BaseException:
            self._stack.close()
            raise
        installed = host.installed(project.interpreter) + (repr(self._variables) if self._variables else "")
        # Choices of autotuners are in there, and each model of a GPU has its own.
        kind = f"{host.kind} {read_model(host.device)}"
        cache = cache_of(host.home, self.trees.content, installed, kind, __version__)
        self._cache = cache if writes_cache else None

    def ask(self, kind: type[T], verb: str, seconds: float, reporter: Reporter, **fields: Any) -> T:
        """One request to the child; after ChildFailure or Stopped the next request gets a fresh one."""
        self.send(verb, reporter, **fields)
        return self.answer(kind, seconds, reporter)

    def send(self, verb: str, reporter: Reporter, **fields: Any) -> None:
        """Sends one request, whose `answer` must be taken before the next; raises like `ask`."""
        child = self._living(reporter)
        variant = fields.get("variant")
        if variant is not None:
            self._ran.add(variant)
        try:
            child.send(verb, **fields)
        except (ChildFailure, Stopped):
            self.drop_child()
            raise

    def answer(self, kind: type[T], seconds: float, reporter: Reporter) -> T:
        """The reply to what was sent; raises like `ask`."""
        child = self._child
        assert child is not None
        try:
            return child.answer(kind, seconds, reporter)
        except (ChildFailure, Stopped):
            self.drop_child()
            raise
        finally:
            self.host.stopwatch.add(child.times)

    def build(self, libraries: Sequence[str], reporter: Reporter) -> BuildReply:
        """Builds these operators' libraries and lays them out for the child; returns one reply for all of them."""
        with self.host.stopwatch.measure(Activity.COMPILE):
            return merge_replies([self._build(name, reporter) for name in libraries[:LIBRARIES]])

    def collect(self, name: str, target: Path, limit: int) -> None:
        """Copies a file out of the child's temp folder; see Child.collect. OSError where there is no child any more."""
        if self._child is None:
            raise OSError(f"the child that wrote {name} is gone")
        self._child.collect(name, target, limit)

    def sanitize(self, sanitizer: Sanitizer | None) -> None:
        """From now on children run under this sanitizer, or plainly; those that run otherwise are dropped."""
        if sanitizer != self._sanitizer:
            self._end_children()
            self._sanitizer = sanitizer

    def end_child(self, seconds: float) -> str | None:
        """Lets the child end by itself; returns the first finding of its sanitizer."""
        finding = self._child.end(seconds) if self._child is not None else None
        self.drop_child()
        return finding

    @property
    def root(self) -> Tree:
        """The files that define its operators, as its build left them where it has one."""
        return self._running_trees().root

    @property
    def is_defined_beside(self) -> bool:
        """Whether definitions beside the commit say what is measured."""
        return self._sources.definitions is not None

    @property
    def running(self) -> bool:
        """Whether a child is there; False right after a request ended it."""
        return self._child is not None

    def others_ran(self, variant: str) -> bool:
        """Whether the living child has run any other variant, which may have left damage behind."""
        return bool(self._ran - {variant})

    def catalogue(self, operator: str, reporter: Reporter) -> tuple[Catalogue, OperatorEntry | None]:
        """The commit's catalogue and the operator's entry in it.

        When loading all operator files ends the child, one of them is at fault, so the operator is then loaded alone.
        """
        if self.loads_together:
            try:
                return _with_entry(self._catalogue(None, reporter), operator)
            except ChildFailure:
                self.loads_together = False
                reporter.log(
                    f"the operator files of {short_sha(self.sha)} do not load together; loading {operator} alone"
                )
        return _with_entry(self._catalogue(operator, reporter), operator)

    def build_package(self, reporter: Reporter) -> None:
        """Runs the command that builds what is measured, if there is one, before the first child starts; see
        build_failure. An OSError is about the machine, and leaves the commit unbuilt."""
        measured, host, commit = self.project.measured, self.host, self.trees.commit
        python = host.find_interpreter(self.project.interpreter)
        if measured is None or measured.build is None or commit is None or python is None:
            return
        if self.build_failure is not None or (self._package is not None and self._package.renew()):
            return
        # A build reads no definitions beside the commit, so that those may change without another build.
        content = "\0".join((self.trees.commit_content, host.installed(self.project.interpreter), host.kind))
        seconds = host.settings.build_timeout_seconds
        try:
            with host.stopwatch.measure(Activity.COMPILE):
                self._package = build_package(
                    host.home, commit.place, content, measured.build, python, host.confinement(), seconds, reporter
                )
        except PackageBuildError as error:
            self.build_failure = error.with_traceback(None)

    def sources_of(self, operator: str) -> OperatorSources:
        """The sources of an operator at this commit; git reads each file once."""
        modules = tuple(self._sources.dependencies(self.sha, operator))
        if not self.is_defined_beside:
            return OperatorSources(modules)
        return OperatorSources(modules, self._sources.definition(self.sha, operator) or "")

    def environment_of(self, sources: OperatorSources, reporter: Reporter) -> Environment:
        """The same with the installed distributions that an operator imports, and the version of its definition where
        that is not the commit's own: times of two definitions are not one series."""
        environment = self.environment(reporter, sources.modules)
        if sources.definition is None:
            return environment
        return environment.with_facts({"definition": sources.definition[:12]})

    def environment(self, reporter: Reporter, modules: tuple[str, ...] = ()) -> Environment:
        """The fingerprint of what this commit is measured with: its own interpreter, if its project names one, and the
        versions of these modules in it."""
        if modules not in self._environments:
            try:
                with self.host.stopwatch.measure(Activity.START):
                    environment = self.ask(Environment, "environment", QUICK_SECONDS, reporter, modules=list(modules))
                    # Not the child's word: it runs the commit's code.
                    environment = replace(environment, card=read_card(self.host.device))
                    facts: dict[str, Any] = {"variables": dict(self._variables)} if self._variables else {}
                    facts |= {"image": self.host.image.digest} if self.host.image is not None else {}
                    self._environments[modules] = environment.with_facts(facts) if facts else environment
            except ChildFailure as failure:
                raise CannotRunError(f"{self.host.device} cannot be used: {failure.message}") from failure
        return self._environments[modules]

    def timeout_seconds(self, operator: str) -> float:
        """The time limit of a variant for one case. The limit is longer where the operator asks for more time, but
        bounded, because the commit may have written the factor."""
        entries = (_with_entry(catalogue, operator)[1] for catalogue in self._catalogues.values())
        factor = next((entry.timeout_factor for entry in entries if entry is not None), 1.0)
        return self.host.settings.case_timeout_seconds * min(max(1.0, factor), MOST_TIMEOUT_FACTOR)

    def start_spares(self, count: int, reporter: Reporter) -> None:
        """Starts fresh children until so many are there beside the one in use, one for each time that this is dropped.
        It waits for none of them, so those of several commits start at once."""
        with self.host.stopwatch.measure(Activity.START):
            while len(self._spares) < count:
                self._spares.append(self.host.launch_child(self._spec(), reporter))

    def await_spares(self, reporter: Reporter) -> None:
        """Returns once the spare children have opened the device, which disturbs what is timed on it."""
        with self.host.stopwatch.measure(Activity.START):
            for spare in [*self._spares]:
                spare.serve(reporter, None)
                try:
                    spare.wait_ready()
                except CannotRunError as error:
                    reporter.log(f"a spare child is of no use: {error}")
                    self.discard(spare)

    def give_spare(self, lane: Checkout) -> None:
        """Gives a spare child, if there is one, to a lane that has none."""
        with suppress(IndexError):
            if not lane.running:
                lane._spares.append(self._spares.popleft())

    def lane(self, turns: LaneTurns | None = None, child: Child | None = None) -> Checkout:
        """The same worktree with a child, this one or another, and a stopwatch of its own, for another thread, which
        must close it."""
        lane = copy.copy(self)
        lane.host = replace(self.host, stopwatch=Stopwatch(), turns=turns)
        lane._child, lane._spares, lane._retired = child, deque(), []
        lane._ran, lane._stack = set(), ExitStack()
        return lane

    def take_child(self) -> Child | None:
        """The child in use, which the caller must close; the next request gets a fresh one."""
        child, self._child = self._child, None
        self._ran.clear()
        return child

    def retire_child(self) -> None:
        """The same, but the child is closed with others. That takes a tenth of a second, which several may share."""
        child = self.take_child()
        if child is not None:
            self._retired.append(child)

    def take_retired(self) -> list[Child]:
        """The retired children, which the caller must close."""
        retired, self._retired = self._retired, []
        return retired

    def take_spares(self) -> list[Child]:
        """The spare children, which the caller must close."""
        spares, self._spares = [*self._spares], deque()
        return spares

    def renew_child(self) -> None:
        """Ends a child that began before torch's headers were precompiled: it would make its own."""
        if self._child is not None and not self._child.has_headers and self.host.find_headers(self.project.interpreter):
            self.drop_child()

    def drop_profiled_child(self) -> None:
        """Ends a child that could not record which kernels a check launches."""
        if self._child is not None and self._child.has_profiled:
            self.drop_child()

    def drop_child(self) -> None:
        self.retire_child()
        close_at_once(self.take_retired())

    def keep(self, name: str, kept: T, close: Callable[[], None]) -> T:
        """Keeps something for later jobs of the commit; `close` ends it with the checkout."""
        self.kept[name] = kept
        self._stack.callback(close)
        return kept

    def program_spec(self, runner: Path) -> ChildSpec:
        """A child that runs a program of the commit; runner: the script that it starts with."""
        root = self.root.place
        return ChildSpec(
            root,
            self.host.device,
            root,
            THREADS,
            interpreter=self.project.interpreter,
            bootstrap=runner,
            cache=self._cache,
            may_be_forked=False,
        )

    def close(self) -> None:
        """Kills the children and removes the worktree."""
        self._end_children()
        self._stack.close()

    def _end_children(self) -> None:
        self.retire_child()
        close_at_once([*self.take_retired(), *self.take_spares()])

    def await_children(self, reporter: Reporter) -> list[Child]:
        """All children of the commit, each of which has greeted; one is started where there is none."""
        return [self._living(reporter), *map(greeted, self._spares)]

    def discard(self, child: Child) -> None:
        if child is self._child:
            self.drop_child()
        else:
            self._spares.remove(child)
            child.close()

    def _living(self, reporter: Reporter) -> Child:
        if self._child is not None and not self._child.alive:
            self.drop_child()
        if self._child is None:
            with self.host.stopwatch.measure(Activity.START):
                child = self._living_spare() or self.host.launch_child(self._spec(), reporter)
                child.serve(reporter, self.host.turns)
                self._child = greeted(child)
        return self._child

    def _living_spare(self) -> Child | None:
        while self._spares:
            spare = self._spares.popleft()
            if spare.alive:
                return spare
            spare.close()
        return None

    def _running_trees(self) -> CommitTrees:
        return self.trees if self._package is None else self.trees.measuring(self._package.tree)

    @property
    def _sanitized(self) -> bool:
        return self._sanitizer is not None and self._sanitizer.name == ADDRESS

    def _spec(self) -> ChildSpec:
        libraries = self._libraries / ("address" if self._sanitized else "plain")
        # The child sees libraries that are laid out after its start.
        libraries.mkdir(parents=True, exist_ok=True)
        trees, measured = self._running_trees(), self.project.measured
        commit = trees.commit.place if trees.commit is not None else None
        # A package that was installed holds what its build compiled, and the files of the commit do not.
        site = self._package.site if self._package is not None else None
        packages = commit / measured.path if commit is not None and measured is not None else None
        return ChildSpec(
            trees.root.place,
            self.host.device,
            libraries,
            THREADS,
            self.project.operators,
            self.project.native,
            self.project.interpreter,
            self.host.bootstrap,
            self._sanitizer,
            cache=self._cache,
            measured=tuple(folder for folder in (site, packages) if folder is not None),
            visible=tuple(folder for folder in (site, commit) if folder is not None),
            packages=measured.packages if measured is not None else (),
            variables=self._variables,
        )

    def _build(self, operator: str, reporter: Reporter) -> BuildReply:
        if not is_name(operator):
            return BuildReply(Status.BUILD_FAILED, f"{operator!r} cannot be the name of an operator")
        key = (operator, self._sanitized)
        if key not in self._builds:
            host, project = self.host, self.project
            options = project.interpreter, self._sanitized, self._variables
            request = BuildRequest(self.root.place, project.native, operator, host.kind, *options)
            store = LibraryStore(host.home / "libraries")
            seconds = host.settings.build_timeout_seconds
            library = build(request, store, host.confinement(), seconds, reporter)
            library.lay_out(self._spec().libraries / operator)
            self._builds[key] = replace(library.reply, cached=True, seconds=0.0)
            return library.reply
        return self._builds[key]

    def _catalogue(self, operator: str | None, reporter: Reporter) -> Catalogue:
        catalogue = self._catalogues.get(operator)
        if catalogue is None:
            with self.host.stopwatch.measure(Activity.START):
                catalogue = self.ask(
                    Catalogue, "catalogue", self.host.settings.case_timeout_seconds, reporter, operator=operator
                )
            catalogue = replace(catalogue, operators=[self._with_present(entry) for entry in catalogue.operators])
            if any(entry.missing_module is not None for entry in catalogue.operators):
                # Somebody may install it before the next job, and a child does not look twice.
                self.drop_child()
                return catalogue
            self._catalogues[operator] = catalogue
        return catalogue

    def _with_present(self, entry: OperatorEntry) -> OperatorEntry:
        """The entry with the variants that the commit has: one may exist since a later commit."""
        refs = [item.since for item in entry.variants if item.since]
        unknown = next((ref for ref in refs if ref not in self._ancestors), None)
        if unknown is not None:
            error = (
                f"since: no commit, branch or tag {unknown!r} in this repository; push it, check the spelling, or "
                "write it as one string"
            )
            return replace(entry, variants=[], cases=[], error=error)
        return replace(entry, variants=[item for item in entry.variants if self._ancestors.get(item.since, True)])


def close_at_once(children: Sequence[Child]) -> None:
    """Kills these children, each of which takes a tenth of a second to give a GPU back."""
    with ThreadPoolExecutor(max(1, len(children))) as pool:
        list(pool.map(Child.close, children))


def _with_entry(catalogue: Catalogue, operator: str) -> tuple[Catalogue, OperatorEntry | None]:
    return catalogue, next((entry for entry in catalogue.operators if entry.name == operator), None)
