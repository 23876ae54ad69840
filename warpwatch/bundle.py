"""Results files (`.wwb`): what a machine without server, database and network measured, to be imported elsewhere.

A zip of `manifest.json`, one `runs/NNNNN.json` per job and one `traces/NNNNN.json.gz` per trace. The manifest names
every other member with its size and SHA-256. A file may come from anywhere, so the reader checks all of it before it
returns anything.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from io import SEEK_CUR, SEEK_END, BufferedReader
from pathlib import Path
from types import TracebackType
from typing import IO, Any, TypeVar

from warpwatch.contract.catalogue import Catalogue
from warpwatch.contract.codec import from_json, to_json
from warpwatch.contract.measurement import METRICS
from warpwatch.contract.messages import ProfileReply
from warpwatch.contract.outcome import Finding, Outcome
from warpwatch.contract.spec import SANITIZERS, JobRequest
from warpwatch.git import CommitInfo

T = TypeVar("T")
FORMAT = 1
FILE_LIMIT = 2 * 2**30
TOTAL_LIMIT = 4 * 2**30
MEMBER_LIMIT = 50_000
JSON_LIMIT = 64 * 2**20
OBJECT_LIMIT = 200_000
"""Objects and lists that one JSON member may hold: each takes a hundred bytes of memory, and three in the file."""
VALUE_LIMIT = 2_000_000
"""Values that one JSON member may hold, samples above all: fifty times as many as our largest job has."""
CATALOGUE_LIMIT = 32 * 2**20
"""Length of all catalogues of one file as JSON; they stay in memory until the file is read."""
RATIO_LIMIT = 200
"""Highest ratio to which JSON may be compressed; results and traces longer than a megabyte do not pass 30."""
TRACE_LIMIT = 512 * 2**20
INFLATED_TRACE_LIMIT = 8 * 2**30
_MANIFEST = "manifest.json"
_MEMBER = re.compile(r"runs/\d{5}\.json|traces/\d{5}\.json\.gz")
_SHA = re.compile(r"[0-9a-f]{40}")
_NAME = re.compile(r"[A-Za-z_]\w{0,99}")
_CHUNK = 2**20
_TAIL = 2**16 + 22
"""The record at the end of a zip, with the longest comment."""
_ENTRY_BYTES = 100
"""An entry of a zip's directory, with the longest name and the fields of a large file."""


class BundleError(ValueError):
    """A results file cannot be used; the message says why. Nothing of it was imported."""


@dataclass(frozen=True, slots=True)
class BundledCommit:
    """See CommitInfo; authored_at is ISO 8601."""

    sha: str
    parent_sha: str | None
    ordinal: int
    author: str
    authored_at: str
    subject: str


@dataclass(frozen=True, slots=True)
class BundleMember:
    name: str
    sha256: str
    size: int


@dataclass(frozen=True, slots=True)
class Manifest:
    """version is that of Warpwatch; created_at is ISO 8601."""

    format: int
    version: str
    created_at: str
    repository: str
    url: str
    commits: list[BundledCommit]
    members: list[BundleMember]


@dataclass(frozen=True, slots=True)
class BundledRun:
    """One job and its outcome. `order` is the name that the files use for the request.

    A catalogue that is null is that of the commit's earlier run; a trace's path is the name of its member.
    """

    order: JobRequest
    outcome: Outcome
    started_at: str
    finished_at: str


class BundleWriter:
    """Writes a results file, which appears under its name only when it is complete."""

    def __init__(self, path: Path, repository: str, url: str, commits: list[CommitInfo], version: str) -> None:
        self._path = path
        self._partial = path.with_name(f"{path.name}.partial")
        self._about = (version, repository, url, commits)
        self._members: list[BundleMember] = []
        self._catalogues: dict[str, Catalogue] = {}
        self.traces = 0
        self.runs = 0
        self._zip = zipfile.ZipFile(self._partial, "w", zipfile.ZIP_DEFLATED, compresslevel=9)

    def __enter__(self) -> BundleWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Completes the file; after an error deletes it."""
        if kind is None:
            self._finish()
        else:
            self._zip.close()
            self._partial.unlink(missing_ok=True)

    def add(self, request: JobRequest, outcome: Outcome, started_at: datetime, finished_at: datetime) -> None:
        """Adds one job with its traces, which are read from the files that its findings name."""
        slim = replace(
            outcome,
            catalogue=self._new_catalogue(request.sha, outcome.catalogue),
            base_catalogue=self._new_catalogue(request.base_sha, outcome.base_catalogue),
            findings=[self._slim(finding) for finding in outcome.findings],
            base_findings=[self._slim(finding) for finding in outcome.base_findings],
        )
        run = BundledRun(request, slim, started_at.isoformat(), finished_at.isoformat())
        self.runs += 1
        self._write(f"runs/{self.runs:05}.json", json.dumps(to_json(run), separators=(",", ":")).encode())

    def _finish(self) -> None:
        version, repository, url, commits = self._about
        described = [
            BundledCommit(c.sha, c.parent_sha, c.ordinal, c.author, c.authored_at.isoformat(), c.subject)
            for c in commits
        ]
        manifest = Manifest(FORMAT, version, datetime.now(UTC).isoformat(), repository, url, described, self._members)
        self._zip.writestr(_MANIFEST, json.dumps(to_json(manifest), indent=1))
        self._zip.close()
        self._partial.replace(self._path)

    def _new_catalogue(self, sha: str | None, catalogue: Catalogue | None) -> Catalogue | None:
        """None when an earlier run of the same commit brought the same catalogue."""
        if sha is None or catalogue is None or self._catalogues.get(sha) == catalogue:
            return None
        self._catalogues[sha] = catalogue
        return catalogue

    def _slim(self, finding: Finding) -> Finding:
        # Seven digits, as many as the database stores.
        bench = finding.bench and replace(
            finding.bench,
            measurements=[
                replace(m, samples_ns=[float(f"{sample:.7g}") for sample in m.samples_ns])
                for m in finding.bench.measurements
            ],
        )
        profile = finding.profile
        if profile is not None and profile.path is not None:
            self.traces += 1
            name = f"traces/{self.traces:05}.json.gz"
            self._copy(name, Path(profile.path))
            profile = replace(profile, path=name)
        return replace(finding, bench=bench, profile=profile)

    def _write(self, name: str, data: bytes) -> None:
        self._zip.writestr(name, data)
        self._members.append(BundleMember(name, hashlib.sha256(data).hexdigest(), len(data)))

    def _copy(self, name: str, source: Path) -> None:
        digest, size = hashlib.sha256(), 0
        entry = zipfile.ZipInfo(name, date_time=(1980, 1, 1, 0, 0, 0))
        with source.open("rb") as file, self._zip.open(entry, "w", force_zip64=True) as target:
            while chunk := file.read(_CHUNK):
                digest.update(chunk)
                size += len(chunk)
                target.write(chunk)
        self._members.append(BundleMember(name, digest.hexdigest(), size))


class BundleReader:
    """A results file that was checked as a whole, so that it can be recorded. Opening raises BundleError."""

    def __init__(self, path: Path) -> None:
        self._file = _open(path)
        self._kept: list[BundledRun] | None = None
        self._objects = self._values = 0
        try:
            self.sha256 = hashlib.file_digest(self._file, "sha256").hexdigest()
            self._zip = _open_zip(self._file)
            self.manifest = self._read_manifest()
            for member in self.manifest.members:
                self._check_digest(member)
            self._check_runs()
        except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError, OSError) as error:
            self._file.close()
            raise BundleError(f"{path.name} is damaged: {error}") from error
        except ValueError as error:
            self._file.close()
            raise BundleError(f"{path.name} cannot be used: {error}") from error

    def __enter__(self) -> BundleReader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()

    def runs(self) -> Iterator[BundledRun]:
        """Every job in the order it was done, its catalogue filled in."""
        return self._read_runs() if self._kept is None else iter(self._kept)

    def _read_runs(self) -> Iterator[BundledRun]:
        catalogues: dict[str, Catalogue] = {}
        members = [member for member in self.manifest.members if member.name.startswith("runs/")]
        may_be_large = sum(member.size for member in members) > CATALOGUE_LIMIT
        kept_bytes = 0
        for member in members:
            run = self._read_run(member.name)
            request, outcome = run.order, run.outcome
            brought = {request.base_sha or "": outcome.base_catalogue, request.sha: outcome.catalogue}
            for sha, catalogue in brought.items():
                if catalogue is not None:
                    catalogues[sha] = catalogue
                    kept_bytes += len(json.dumps(to_json(catalogue))) if may_be_large else 0
            if kept_bytes > CATALOGUE_LIMIT:
                raise ValueError(f"its catalogues are larger than {CATALOGUE_LIMIT >> 20} MiB together")
            base = catalogues.get(request.base_sha or "")
            yield replace(run, outcome=replace(outcome, catalogue=catalogues.get(request.sha), base_catalogue=base))

    def extract(self, outcome: Outcome, folder: Path) -> Outcome:
        """The outcome with its traces as files in `folder`."""

        def extracted(finding: Finding) -> Finding:
            if finding.profile is None or finding.profile.path is None:
                return finding
            target = folder / Path(finding.profile.path).name
            with self._zip.open(finding.profile.path) as source, target.open("wb") as file:
                shutil.copyfileobj(source, file, _CHUNK)
            return replace(finding, profile=replace(finding.profile, path=str(target)))

        findings, base_findings = ([extracted(f) for f in side] for side in (outcome.findings, outcome.base_findings))
        return replace(outcome, findings=findings, base_findings=base_findings)

    def _read_run(self, member: str) -> BundledRun:
        data = self._zip.read(member)
        objects, values = _count(data)
        self._objects += objects
        self._values += values
        try:
            return from_json(BundledRun, _loads(data))
        except ValueError as error:
            raise ValueError(f"{member}: {error}; import the file as `warpwatch run` wrote it") from None

    def _read_manifest(self) -> Manifest:
        if _MANIFEST not in self._zip.namelist():
            raise ValueError("it has no manifest, so it is no results file of Warpwatch")
        if self._zip.getinfo(_MANIFEST).file_size > JSON_LIMIT:
            raise ValueError("its manifest is too large")
        for info in self._zip.infolist():
            # A bomb: kilobytes that unpack to gigabytes.
            if info.file_size > max(2**20, RATIO_LIMIT * info.compress_size):
                raise ValueError(f"{info.filename[:80]!r} unpacks to more than {RATIO_LIMIT} times its size")
        values = _loads(self._zip.read(_MANIFEST))
        number = values.get("format") if isinstance(values, dict) else None
        if number != FORMAT:
            raise ValueError(f"it is of format {number!r}; this version of Warpwatch reads format {FORMAT}")
        manifest = from_json(Manifest, values)
        infos = self._zip.infolist()
        names = [member.name for member in manifest.members]
        if len(infos) > MEMBER_LIMIT or len(names) > MEMBER_LIMIT:
            raise ValueError(f"it has more than {MEMBER_LIMIT} members")
        if sum(member.size for member in manifest.members) > TOTAL_LIMIT:
            raise ValueError(f"its members are larger than {TOTAL_LIMIT >> 30} GiB together")
        if sorted([*names, _MANIFEST]) != sorted(info.filename for info in infos) or len(set(names)) != len(names):
            raise ValueError("its members are not those that the manifest names")
        for name in names:
            if not _MEMBER.fullmatch(name):
                raise ValueError(f"it has a member called {name[:80]!r}")
        for commit in manifest.commits:
            if (
                not _SHA.fullmatch(commit.sha)
                or not _SHA.fullmatch(commit.parent_sha or commit.sha)
                or commit.ordinal < 1
            ):
                raise ValueError(f"it describes a commit {commit.sha[:80]!r} that cannot be one")
            _moment(commit.authored_at)
        _moment(manifest.created_at)
        return manifest

    def _check_digest(self, member: BundleMember) -> None:
        limit = JSON_LIMIT if member.name.startswith("runs/") else TRACE_LIMIT
        if member.size > limit:
            raise ValueError(f"{member.name} has {member.size} bytes; at most {limit} are read")
        digest, remaining = hashlib.sha256(), member.size
        with self._zip.open(member.name) as file:
            # One byte more than declared is read, so that a member that unpacks to more is detected without unpacking
            # all of it.
            while chunk := file.read(min(_CHUNK, remaining + 1)):
                remaining -= len(chunk)
                digest.update(chunk)
                if remaining < 0:
                    break
        if remaining != 0 or digest.hexdigest() != member.sha256:
            raise ValueError(f"{member.name} is not what the manifest says it is")

    def _check_runs(self) -> None:
        shas = {commit.sha for commit in self.manifest.commits}
        unused = {member.name for member in self.manifest.members if member.name.startswith("traces/")}
        # Decoded once, where all of them together take no more memory than one may.
        kept: list[BundledRun] | None = []
        for run in self._read_runs():
            _check_run(run, shas)
            if kept is not None and self._objects <= OBJECT_LIMIT and self._values <= VALUE_LIMIT:
                kept.append(run)
            else:
                kept = None
            for finding in [*run.outcome.findings, *run.outcome.base_findings]:
                if finding.profile is not None and finding.profile.path is not None:
                    if finding.profile.path not in unused:
                        raise ValueError(f"{finding.profile.path} is missing, or named twice")
                    unused.remove(finding.profile.path)
                    self._check_trace(finding.profile)
        if unused:
            raise ValueError(f"no run names {min(unused)}")
        self._kept = kept

    def _check_trace(self, profile: ProfileReply) -> None:
        inflate, size = zlib.decompressobj(wbits=zlib.MAX_WBITS | 16), 0
        with self._zip.open(profile.path or "") as file:
            while (chunk := inflate.unconsumed_tail or file.read(2**16)) and size <= min(
                profile.size, INFLATED_TRACE_LIMIT
            ):
                size += len(inflate.decompress(chunk, _CHUNK))
        size += len(inflate.flush())
        if not inflate.eof or size != profile.size:
            raise ValueError(f"{profile.path} is not a gzip'ed trace of {profile.size} bytes")


def _open(path: Path) -> BufferedReader:
    try:
        file = path.open("rb")
    except OSError as error:
        raise BundleError(f"{path} cannot be read: {error.strerror}") from error
    if path.stat().st_size > FILE_LIMIT:
        file.close()
        raise BundleError(f"{path.name} is larger than {FILE_LIMIT >> 30} GiB; measure fewer commits per file")
    return file


def _open_zip(file: IO[bytes]) -> zipfile.ZipFile:
    # zipfile makes an object of each entry of the directory before anybody can count them.
    file.seek(0, SEEK_END)
    file.seek(-min(file.tell(), _TAIL), SEEK_CUR)
    before, mark, end = file.read().rpartition(b"PK\5\6")
    # A second record, for zips over 4 GiB, would hold another length.
    is_long = int.from_bytes(end[8:12], "little") > MEMBER_LIMIT * _ENTRY_BYTES or before[-20:].startswith(b"PK\6\7")
    if mark and is_long:
        raise ValueError(f"it has more than {MEMBER_LIMIT} members")
    try:
        return zipfile.ZipFile(file)
    except zipfile.BadZipFile:
        raise ValueError("it is no results file of Warpwatch, or its end is missing; copy it again") from None


def _check_run(run: BundledRun, shas: set[str]) -> None:
    request = run.order
    if not _NAME.fullmatch(request.operator):
        raise ValueError(f"it has a job of an operator {request.operator[:80]!r}, which is no name of one")
    if run.outcome.environment.device_kind not in METRICS:
        raise ValueError(f"it was measured on a device of the kind {run.outcome.environment.device_kind[:40]!r}")
    sanitizer = request.spec.sanitize
    if sanitizer is not None and sanitizer not in SANITIZERS:
        raise ValueError(f"order.spec.sanitize is {sanitizer[:40]!r}; choose from {', '.join(SANITIZERS)}")
    if (
        request.sha not in shas
        or (request.kind == "compare") != (request.base_sha is not None)
        or not shas >= {request.base_sha or request.sha}
    ):
        raise ValueError(f"a {request.kind} job measures commits that the manifest does not describe")
    if _moment(run.started_at) > _moment(run.finished_at):
        raise ValueError(f"a {request.kind} job of {request.operator} ended before it began")


def _moment(text: str) -> datetime:
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        raise ValueError(f"the time {text[:40]!r} has no time zone")
    return moment


def _count(data: bytes) -> tuple[int, int]:
    """Objects with lists, and other values, that a JSON text holds at most."""
    return data.count(b"{") + data.count(b"["), data.count(b",")


def _loads(data: bytes) -> Any:
    """The values of a JSON text; ValueError for one that would take far more memory than its length."""
    objects, values = _count(data)
    if objects > OBJECT_LIMIT or values > VALUE_LIMIT:
        raise ValueError(f"its JSON has more than {OBJECT_LIMIT} objects or {VALUE_LIMIT} values; measure fewer cases")
    try:
        return json.loads(data)
    except RecursionError:
        raise ValueError("its JSON is nested too deeply") from None
