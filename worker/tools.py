"""Keeps a worker's state between jobs: the checkouts that the worker used last, and the identity of its device."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from warpwatch.contract.activities import Activity
from warpwatch.contract.codec import from_json, to_json
from warpwatch.contract.environment import Environment
from warpwatch.contract.messages import CeilingsReply
from warpwatch.contract.spec import DefinitionsVersion, JobRequest
from warpwatch.contract.words import Reason, Status
from warpwatch.worker import sandbox
from warpwatch.worker.caches import remove_unused
from warpwatch.worker.cards import read_card
from warpwatch.worker.checkout import QUICK_SECONDS, Checkout
from warpwatch.worker.child import Child, ChildFailure
from warpwatch.worker.devices import device_turn, physical_id
from warpwatch.worker.host import Host
from warpwatch.worker.mirrors import mirror_commit
from warpwatch.worker.plausibility import TimeLimits
from warpwatch.worker.reporter import CannotRunError, Reporter
from warpwatch.worker.toolchains import Toolchain
from warpwatch.worker.worktrees import clear_worktrees


@dataclass(frozen=True, slots=True)
class MeasuredPeaks:
    """values: the ceilings by name, see CeilingsReply. at_rest: whether nothing else of ours ran meanwhile."""

    values: dict[str, float]
    at_rest: bool


def read_peaks(home: Path, environment_key: str) -> MeasuredPeaks | None:
    """None where they were not measured yet, or their file cannot be used."""
    try:
        return from_json(MeasuredPeaks, json.loads(_path(home, environment_key).read_text()))
    except (OSError, ValueError):
        return None


def store_peaks(home: Path, environment_key: str, peaks: MeasuredPeaks) -> None:
    path = _path(home, environment_key)
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(f".{os.getpid()}")
    partial.write_text(json.dumps(to_json(peaks)))
    partial.replace(path)


def _path(home: Path, environment_key: str) -> Path:
    return home / "peaks" / f"{environment_key}.json"


CEILINGS_SECONDS = 180.0


def _ask_for_rates(
    child: Child | Checkout, verb: Literal["ceilings", "bounds"], reporter: Reporter
) -> dict[str, float] | None:
    """None where they could not be measured."""
    reporter.log(f"measuring the {verb} of this device")
    try:
        reply = child.ask(CeilingsReply, verb, CEILINGS_SECONDS, reporter)
    except ChildFailure as failure:
        reply = CeilingsReply(failure.status, failure.message)
    if reply.status is not Status.OK:
        reporter.log(f"the {verb} could not be measured: {reply.message}")
        return None
    return reply.peaks


CheckoutKey = tuple[str, str, int, DefinitionsVersion | None, bool, Toolchain | None]
"""URL, commit, how many others of the same commit there are, what defines its operators, whether a sealed job has it,
and what it is run with."""


class Tools:
    """The state that a worker keeps between jobs: the checkouts that the worker used last, with their running children,
    and the device's identity. lasting: commits whose checkouts stay, whatever other commits are asked for. upcoming:
    the job that is likely to come next."""

    def __init__(self, host: Host) -> None:
        self.host = host
        self.lasting: frozenset[str] = frozenset()
        self.upcoming: JobRequest | None = None
        self._identity: tuple[Environment, dict[str, float] | None] | None = None
        self._warm: dict[CheckoutKey, Checkout] = {}
        self._physical = physical_id(host.device)
        clear_worktrees(host.home)
        sandbox.clear_leftovers()
        remove_unused(host.home)

    def identify(self, reporter: Reporter) -> tuple[Environment, dict[str, float] | None]:
        """Fingerprint and ceilings of this device with the worker's own interpreter, asked of a child that loads no
        repository."""
        if self._identity is None:
            try:
                with self.host.lone_child(reporter) as child:
                    environment = child.ask(Environment, "environment", QUICK_SECONDS, reporter)
                    environment = replace(environment, card=read_card(self.host.device))
                    self._identity = environment, self._peaks(environment, reporter, child)
            except ChildFailure as failure:
                raise CannotRunError(f"{self.host.device} cannot be used: {failure}") from failure
        return self._identity

    def device_turn(self, reporter: Reporter) -> AbstractContextManager[None]:
        """See devices.device_turn."""
        return device_turn(self.host.device, self._physical, reporter)

    def checkouts(
        self,
        url: str,
        shas: list[str],
        reporter: Reporter,
        definitions: DefinitionsVersion | None = None,
        toolchains: Sequence[Toolchain] = (),
        *,
        sealed: bool = False,
    ) -> list[Checkout]:
        """The commits `shas` checked out side by side; checkouts of others are closed first, unless they are lasting.

        definitions: what defines their operators; None where each does. toolchains: one for each commit, or none.
        sealed: for a job of which no other job may learn anything, so their children write no cache.

        Raises GitError when the repository or a commit cannot be fetched, ProjectError when a commit's warpwatch.toml
        cannot be used.
        """
        # A commit may be compared with itself, so each mention of it is a checkout of its own.
        chosen: list[Toolchain | None] = list(toolchains) if toolchains else [None] * len(shas)
        keys = [
            (url, sha, shas[:index].count(sha), definitions, sealed, chosen[index]) for index, sha in enumerate(shas)
        ]
        with self.host.stopwatch.measure(Activity.CHECKOUT):
            self._keep(set(keys))
            for key in keys:
                if key in self._warm:
                    continue
                sha, toolchain = key[1], key[-1]
                reporter.log(
                    f"checkout {sha[:12]}"
                    + (f", defined by {definitions.sha[:12]}" if definitions else "")
                    + (f", with {toolchain.name}" if toolchain else "")
                )
                isolation = self.host.confinement().isolation
                commit = mirror_commit(self.host.settings, isolation, url, sha, definitions)
                self._warm[key] = Checkout(self.host, commit, toolchain, writes_cache=not sealed)
        for key in keys:
            different = self._warm[key].trees.differences()
            if different:
                self._warm.pop(key).close()
                message = f"the checkout of {key[1][:12]} does not hold its files: {different[0]} differs"
                raise CannotRunError(message, retry=True, reason=Reason.HOST_FAULT)
            try:
                self._warm[key].build_package(reporter)
            except OSError:
                # Whatever it left half done must not be measured by the next attempt.
                self._warm.pop(key).close()
                raise
        return [self._warm[key] for key in keys]

    def peaks(self, checkout: Checkout, reporter: Reporter) -> dict[str, float] | None:
        """Ceilings of the checkout's environment; measured once, then read from a file in the home folder."""
        return self._peaks(checkout.environment(reporter), reporter, checkout)

    def measure_peaks_at_rest(self, reporter: Reporter) -> None:
        """Measures the ceilings of a CPU once more, where nothing else of ours runs beside it, and keeps the highest.

        When a worker starts, a server, a database and compilers often do, too, and make them a third of what they are.
        """
        if self.host.kind == "cpu":
            environment, _ = self.identify(reporter)
            known = read_peaks(self.host.home, environment.key)
            if known is None or not known.at_rest:
                with self.host.lone_child(reporter) as child:
                    self._peaks(environment, reporter, child, at_rest=True)

    def time_limits(self, peaks: dict[str, float] | None, reporter: Reporter) -> TimeLimits:
        """Limits of plausible times by these ceilings. Before they accuse, those of a GPU are measured again, and
        the bounds of a CPU, which no other work lowers, are measured."""

        def measure_again() -> dict[str, float] | None:
            environment, _ = self.identify(reporter)
            with self.host.lone_child(reporter) as child:
                if self.host.kind == "cpu":
                    return _ask_for_rates(child, "bounds", reporter)
                return self._peaks(environment, reporter, child, again=True)

        return TimeLimits(peaks, self.host.kind, measure_again)

    def _peaks(
        self,
        environment: Environment,
        reporter: Reporter,
        child: Child | Checkout,
        at_rest: bool = False,
        again: bool = False,
    ) -> dict[str, float] | None:
        known = read_peaks(self.host.home, environment.key)
        before = known.values if known is not None else None
        if known is not None and not again and (known.at_rest or not at_rest):
            return before
        rates = _ask_for_rates(child, "ceilings", reporter)
        if rates is None:
            return before
        peaks = {name: max(rate, (before or {}).get(name, 0.0)) for name, rate in rates.items()}
        is_at_rest = at_rest or (known is not None and known.at_rest)
        store_peaks(self.host.home, environment.key, MeasuredPeaks(peaks, is_at_rest))
        return peaks

    def close(self) -> None:
        """Closes all checkouts; whoever asks for one later gets a new one."""
        self.lasting = frozenset()
        self._keep(set())

    def close_sealed(self) -> None:
        """Closes the checkouts of sealed jobs with their children, which know the cases of the last one."""
        for key in [key for key in self._warm if key[-2]]:
            self._warm.pop(key).close()

    def _keep(self, keys: set[CheckoutKey]) -> None:
        for key in set(self._warm) - keys:
            if key[1] not in self.lasting:
                self._warm.pop(key).close()
