"""What compilers made of the sources: builds, their machine code, and how it changed from commit to commit."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class KernelCode:
    """One kernel on one architecture, or one source file's code for the CPU, where registers are 0.

    code_hash is empty where nothing is known of the machine code.
    """

    name: str
    arch: str
    registers: int = 0
    shared_bytes: int = 0
    spill_bytes: int = 0
    code_bytes: int = 0
    code_hash: str = ""


@dataclass(frozen=True, slots=True)
class CodeChange:
    """One kernel before and after. state: changed | added | removed | unknown (no fingerprint on one side)."""

    name: str
    arch: str
    state: str
    before: KernelCode | None
    after: KernelCode | None


@dataclass(frozen=True, slots=True)
class BuildView:
    """A build of one operator's library for one commit.

    base_sha: the nearest earlier commit with a build of it on the same device; changes is against that one, None where
    there is none. unchanged_since: the first commit of those in a row whose machine code is all the same; None where it
    is unknown.
    """

    operator: str
    device_key: str
    status: str
    cached: bool
    seconds: float
    compile_seconds: float | None
    log: str
    code_hash: str
    resources: list[KernelCode]
    base_sha: str | None = None
    base_compile_seconds: float | None = None
    changes: list[CodeChange] | None = None
    unchanged_since: str | None = None


@dataclass(frozen=True, slots=True)
class CodeCommit:
    """One commit of a history of machine code; code_hash is that of the whole library."""

    sha: str
    ordinal: int
    subject: str
    code_hash: str
    compile_seconds: float | None


@dataclass(frozen=True, slots=True)
class CodeSeries:
    """One kernel over the commits of its history; None where a commit does not have it."""

    name: str
    values: list[KernelCode | None]


@dataclass(frozen=True, slots=True)
class CodeHistory:
    """The machine code of one operator on one device and architecture, oldest commit first. archs: those there are."""

    operator: str
    device_key: str
    arch: str | None
    archs: list[str]
    commits: list[CodeCommit] = field(default_factory=list)
    kernels: list[CodeSeries] = field(default_factory=list)
