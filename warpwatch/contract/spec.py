"""Specification of one job, the request that a worker executes, and the command lines of the job."""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from typing import Any

from warpwatch.contract.codec import from_json, to_json
from warpwatch.contract.rounds import StopRule
from warpwatch.contract.words import JobKind

BUDGET_NS = 1_000_000_000
"""Time that timing one variant on one case takes where a specification names none."""
MAX_NAMES = 200
"""Operators, or variants, that one request may name."""
ADDRESS = "address"
SANITIZERS = {"memcheck": "cuda", "racecheck": "cuda", "initcheck": "cuda", ADDRESS: "cpu"}
"""Every sanitizer and the kind of device whose code it looks at."""
TOOLCHAIN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_OF_ENVIRONMENT = "environment-"
_ALWAYS_STORED = ("suite", "variants", "cases", "seed")


@dataclass(frozen=True, slots=True)
class ProfilePlan:
    """How a profile is taken: the number of calls to skip, to warm up with and to record, and of repetitions.

    The trace holds every repetition. counters: ask Nsight Compute for hardware counters as well.
    """

    wait: int = 1
    warm_up: int = 1
    active: int = 2
    repeat: int = 1
    counters: bool = False


USUAL_PLAN = ProfilePlan()
PLAN_LIMITS = {"wait": (0, 100), "warm_up": (0, 100), "active": (1, 100), "repeat": (1, 10)}
"""Least and greatest value of every number of a plan."""


def name_environment(key: str) -> str:
    """The name that asks, in place of a toolchain, for whichever gives the environment with this key."""
    return _OF_ENVIRONMENT + key


def named_environment(name: str) -> str | None:
    """The key of the environment that a name asks for; None for the name of a toolchain."""
    return name.removeprefix(_OF_ENVIRONMENT) if name.startswith(_OF_ENVIRONMENT) else None


@dataclass(frozen=True, slots=True)
class KnownNames:
    """Variants and cases that an earlier commit had. Where a commit does not load, each of them gets its status."""

    variants: list[str] = field(default_factory=list)
    cases: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class JobSpec:
    """Specification of a job besides its kind, commit, operator and device.

    suite: "quick" | "full" …; cases, by key, replace the suite. variants, cases: None means all. case_limit: how many
    of the suite's cases, None means all. budget_ns: time for one variant on one case, None means BUDGET_NS. rounds,
    stop, pairs (variant, case): of a comparison; rounds None means contract.rounds.ROUNDS, stop None takes all rounds.
    sanitize: a name of SANITIZERS, for checks. known: see KnownNames; the field asks for nothing. toolchains: of a
    comparison, the old and the new toolchain; see worker.toolchains. Each builds and runs both commits, where there are
    two. A name that `name_environment` made asks for whichever of them gives that environment. sealed: of a judgement,
    whose cases and seed are stored apart and nobody but a worker gets; its child leaves nothing to later children.
    step_seconds: a sealed job ends at a multiple of this after its begin, so that its time tells nothing.
    """

    suite: str = "quick"
    variants: list[str] | None = None
    cases: list[str] | None = None
    case_limit: int | None = None
    seed: int = 0
    budget_ns: int | None = None
    rounds: int | None = None
    stop: StopRule | None = None
    pairs: list[tuple[str, str]] | None = None
    profile: ProfilePlan = USUAL_PLAN
    sanitize: str | None = None
    known: KnownNames | None = None
    toolchains: tuple[str, str] | None = None
    sealed: bool = False
    step_seconds: int | None = None

    @classmethod
    def from_stored(cls, stored: Mapping[str, Any]) -> JobSpec:
        """Reads what `to_stored` wrote. A key that is unknown or holds a value of a wrong type takes its default, so
        that one bad row breaks no page; what comes from outside goes through `from_json`, which refuses it."""
        try:
            return from_json(cls, stored)
        except ValueError:
            usable: dict[str, Any] = {}
            for name, value in stored.items():
                with suppress(ValueError):
                    usable[name] = getattr(from_json(cls, {name: value}), name)
            return cls(**usable)

    def to_stored(self) -> dict[str, Any]:
        """JSON for the database: suite, variants, cases and seed, and whatever else differs from its default."""
        values = to_json(self)
        if self.stop is not None:
            # Services of an earlier version, which may read the same database, know fewer limits.
            values["stop"] = {name: value for name, value in values["stop"].items() if value is not None}
        kept = [f.name for f in fields(self) if f.name in _ALWAYS_STORED or getattr(self, f.name) != f.default]
        return {name: values[name] for name in kept}

    def asks_for_same(self, other: JobSpec) -> bool:
        """Whether both ask for the same; `known` asks for nothing."""
        return replace(self, known=None) == replace(other, known=None)

    def is_whole_suite(self) -> bool:
        """Whether all variants run on all cases of the suite."""
        return not (self.variants or self.cases or self.case_limit)

    def of_cell(self, variant: str, case: str) -> JobSpec:
        """The same for one variant on one case."""
        return replace(
            self,
            suite="quick",
            variants=[variant],
            cases=[case],
            case_limit=None,
            pairs=None,
            rounds=None,
            stop=None,
            known=None,
            toolchains=None,
        )

    def to_command(
        self,
        kind: str,
        sha: str,
        operator: str,
        device_kind: str,
        base_sha: str | None = None,
        output: str = "",
        definitions: DefinitionsVersion | None = None,
    ) -> list[str]:
        """The words of the `warpwatch run` command that does the job in a checkout and writes `output`.

        device_kind: cpu | cuda. base_sha: the commit that a comparison measures beside `sha`. definitions: what defines
        the operator, where no commit does.
        """
        words = ["warpwatch", "run", "--commits", sha, "--kinds", kind, "--operators", operator]
        words += ["--base", base_sha] if base_sha is not None else []
        words += ["--definitions", f"{definitions.url}@{definitions.sha}"] if definitions is not None else []
        words += [*self._options(kind), *self._run_options(kind)]
        return [*words, "--device", device_kind, "--output", output or "replay.wwb"]

    def to_submit_command(
        self, repository: str, kind: str, sha: str, operator: str, device_key: str, base_sha: str | None = None
    ) -> list[str]:
        """The words of the `warpwatch submit` command that asks a server for the job.

        The server chooses pairs, rounds and known cells anew.
        """
        words = ["warpwatch", "submit", "--repository", repository, "--commit", sha, "--kinds", kind]
        words += ["--operators", operator, *(["--base", base_sha] if base_sha is not None else [])]
        words += ["--case-limit", str(self.case_limit)] if self.case_limit is not None else []
        # Who repeats a job wants it measured, whatever was measured of the same sources. Comparisons are never skipped.
        anew = ["--all"] if kind != JobKind.COMPARE else []
        return [*words, *self._options(kind), "--device", device_key, *anew, "--wait"]

    def _options(self, kind: str) -> list[str]:
        """Options that `run` and `submit` share; what is at its default is left out, and what means nothing to the
        kind of job as well."""
        words = ["--suite", self.suite] if self.suite != "quick" else []
        words += [word for variant in self.variants or () for word in ("--variants", variant)]
        words += [word for case in self.cases or () for word in ("--cases", case)]
        if kind in (JobKind.PROFILE, JobKind.COMPARE) and self.profile != USUAL_PLAN:
            words += ["--profile", ",".join(str(getattr(self.profile, name)) for name in PLAN_LIMITS)]
            words += ["--counters"] if self.profile.counters else []
        words += ["--seed", str(self.seed)] if self.seed else []
        words += ["--toolchains", ",".join(self.toolchains)] if self.toolchains and kind == JobKind.COMPARE else []
        words += ["--sanitize", self.sanitize] if self.sanitize is not None and kind == JobKind.CHECK else []
        return words + (["--budget-ms", f"{self.budget_ns / 1e6:.15g}"] if self.budget_ns is not None else [])

    def _run_options(self, kind: str) -> list[str]:
        words: list[str] = []
        # `warpwatch run` profiles one case where neither cases nor a limit are named; 0 means no limit.
        usual = 1 if kind == JobKind.PROFILE and self.cases is None else None
        words += ["--case-limit", str(self.case_limit or 0)] if self.case_limit != usual else []
        if kind == JobKind.COMPARE:
            words += ["--rounds", str(self.rounds)] if self.rounds is not None else []
            words += ["--stop", self.stop.to_words()] if self.stop is not None else []
            words += [word for variant, case in self.pairs or () for word in ("--pairs", f"{variant}:{case}")]
        if self.known is not None:
            words += [word for variant in self.known.variants for word in ("--known-variants", variant)]
            words += [word for case in self.known.cases for word in ("--known-cases", case)]
        return words


@dataclass(frozen=True, slots=True)
class DefinitionsVersion:
    """Definitions that lie beside the measured history: their own repository or folder, and the commit of it."""

    url: str
    sha: str


@dataclass(frozen=True, slots=True)
class SourcePatch:
    """Uncommitted changes on a commit; see warpwatch.patches."""

    base_sha: str
    content: bytes


@dataclass(frozen=True, slots=True)
class JobRequest:
    """One job as a worker executes it: one operator at one commit of the repository at `url`.

    base_sha: the commit that a comparison measures beside `sha`, None for other kinds. definitions: what defines the
    operator, None where each commit defines its own. patch: what makes `sha`, where the repository does not hold it.
    """

    kind: JobKind
    url: str
    sha: str
    operator: str
    spec: JobSpec = JobSpec()
    base_sha: str | None = None
    definitions: DefinitionsVersion | None = None
    patch: SourcePatch | None = None

    @property
    def is_crossed(self) -> bool:
        """Whether it measures two commits under two toolchains, which tells apart what either did."""
        return self.kind is JobKind.COMPARE and self.spec.toolchains is not None and self.base_sha != self.sha
