"""Imports results that another program wrote, as a bench of each commit that they are about.

A file of one commit that the repository does not hold yet waits for it (server.threads.awaiting).
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from warpwatch import CONTRACT, git
from warpwatch.contract.catalogue import Catalogue
from warpwatch.contract.commit_ids import short_sha
from warpwatch.contract.environment import Environment, key_of
from warpwatch.contract.outcome import Outcome
from warpwatch.contract.spec import JobRequest, JobSpec
from warpwatch.contract.words import AwaitedState, JobKind
from warpwatch.db import bundles
from warpwatch.db.awaited_files import (
    AwaitedFile,
    NewAwaitedFile,
    await_commit,
    count_waiting,
    end_waiting,
    read_content,
)
from warpwatch.db.bundles import BundledJob, NewBundle
from warpwatch.db.database import Database
from warpwatch.db.errors import OutcomeError
from warpwatch.db.forge import PENDING, queue_check_run
from warpwatch.db.reads.code import RepositoryRow, find_repository, list_repositories
from warpwatch.db.reads.devices import find_device
from warpwatch.db.reads.query import Session
from warpwatch.formats import ForeignResults, FormatError, case_entry, list_findings, operator_entry, read_history
from warpwatch.server.reports.status import tell_pending
from warpwatch.settings import Settings

_LONGEST_NAME = 100
_FULL_SHA = re.compile(r"(?!0+$)([0-9a-f]{40}|[0-9a-f]{64})")
"""Zeros alone are what git writes for no commit."""
MOST_WAITING = 1000
"""Files of a repository that wait for their commits."""


class ForeignFileError(ValueError):
    """A file of results cannot be imported, because of one field of the request; nothing was written."""

    def __init__(self, field: str, message: str, remedy: str) -> None:
        super().__init__(f"{field}: {message}; {remedy}")
        self.field = field
        self.message = message
        self.remedy = remedy


@dataclass(frozen=True, slots=True)
class ForeignFile:
    """A file to import, and what it is about.

    commit: None for what the file says. repository: None for the only one. program: name of the operator, None for that
    of the format. device: key of a device, None for what the file says. confirm: whether the changes that the results
    show are to be compared by the repository's own program. fetch: see formats.read_results. received_at: when it came,
    None for now.
    """

    data: bytes
    name: str
    commit: str | None
    format: str
    repository: str | None = None
    program: str | None = None
    device: str | None = None
    confirm: bool = False
    fetch: Callable[[str], bytes | None] = lambda _: None
    received_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class ImportedResults:
    """What became of a file. new: false where the same file had been imported before; then nothing was written.

    submission_id: None while the file waits for its commit. left_out: what of the file could not be read, a sentence
    for each part. awaits: the commit that it waits for, "" where it was imported.
    """

    submission_id: int | None
    new: bool
    left_out: list[str]
    awaits: str = ""


def import_foreign(database: Database, settings: Settings, file: ForeignFile) -> ImportedResults:
    """Imports a file in one transaction, and the same file for the same commits only once; ForeignFileError names the
    field at fault. A longer history brings only what an earlier one did not, and a file of one commit that is not there
    waits for it."""
    try:
        history = read_history(file.format, file.data, file.fetch)
    except FormatError as error:
        field = "format" if error.fault == "unknown_format" else "file"
        raise ForeignFileError(field, error.message, error.remedy) from error
    program = file.program or file.format.replace("-", "_")
    if not program.isidentifier() or len(program) > _LONGEST_NAME:
        raise ForeignFileError("program", f"{program!r} is no name", "use letters, digits and underscores")
    with database.session() as session:
        repository = _repository(session, file.repository)
        environments = [
            (results, model, _environment(session, results, file.device, model))
            for results in history
            for model in dict.fromkeys(benchmark.device for benchmark in results.benchmarks)
        ]
    names = _commit_names(file, history)
    # git may have to fetch, so no transaction is open meanwhile.
    infos = _describe(settings, repository, names)
    left_out = [fault for results in history for fault in results.list_faults()]
    if not infos:
        return ImportedResults(None, _await_commit(database, file, repository, names[0]), left_out, names[0])
    now = file.received_at or datetime.now(UTC)
    jobs = [
        BundledJob(
            JobRequest(JobKind.BENCH, repository.url, infos[name].sha, program, JobSpec()),
            _outcome(results, program, model, environment),
            results.measured_at or now,
            results.measured_at or now,
        )
        for results, model, environment in environments
        if (name := file.commit or results.commit) in infos
    ]
    commits = sorted(infos.values(), key=lambda info: info.ordinal)
    about = {"format": file.format, "program": program, "commit": commits[-1].sha}
    keys = dict.fromkeys(environment.key for _, _, environment in environments)
    identity = json.dumps([repository.id, *keys, *about.values(), *(commit.sha for commit in commits[:-1])]).encode()
    digest = hashlib.sha256(identity + hashlib.sha256(file.data).digest()).hexdigest()
    unknown = [f"{short_sha(name)}: no such commit in this repository" for name in names if name not in infos]
    request = {"file": file.name} | about | ({"confirm": True} if file.confirm else {})
    bundle = NewBundle(digest, file.name, repository.name, repository.url, commits, jobs, request)
    try:
        with database.session() as session:
            imported = bundles.import_bundle(session, bundle)
            # A whole history is no news about a commit.
            if imported.new and len(commits) == 1:
                tell_pending(session, settings.server_url, repository, imported.submission_id, commits[0].sha)
                queue_check_run(session, repository.id, imported.submission_id, PENDING)
    except OutcomeError as error:
        raise ForeignFileError("file", str(error), "import the file as the program wrote it") from error
    return ImportedResults(imported.submission_id, imported.new, [*unknown, *left_out])


def import_awaited(database: Database, settings: Settings, waiting: AwaitedFile) -> None:
    """Imports a file that waited, whose commit is there now, and writes what became of it."""
    with database.session() as session:
        data = read_content(session, waiting.id)
    if data is None:
        return
    file = ForeignFile(
        data,
        waiting.name,
        waiting.commit_sha,
        waiting.format,
        waiting.repository,
        waiting.program,
        waiting.device,
        waiting.confirm,
        received_at=waiting.created_at,
    )
    try:
        imported = import_foreign(database, settings, file)
    except ForeignFileError as error:
        with database.session() as session:
            end_waiting(session, waiting.id, AwaitedState.REFUSED, str(error))
        return
    if not imported.awaits:
        with database.session() as session:
            end_waiting(session, waiting.id, AwaitedState.IMPORTED, submission_id=imported.submission_id)


def _await_commit(database: Database, file: ForeignFile, repository: RepositoryRow, sha: str) -> bool:
    """Keeps the file until the repository has the commit; whether it was not kept already."""
    about = json.dumps([repository.id, sha, file.format, file.program, file.device, file.confirm]).encode()
    digest = hashlib.sha256(about + hashlib.sha256(file.data).digest()).hexdigest()
    kept = (file.name, file.format, file.program, file.device, file.confirm, file.data)
    with database.session() as session:
        if count_waiting(session, repository.id) >= MOST_WAITING:
            message = f"no such commit in this repository, and {MOST_WAITING} files wait for theirs already"
            raise ForeignFileError("commit", message, "push the commit first")
        return await_commit(session, NewAwaitedFile(repository.id, digest, sha, *kept))


def _commit_names(file: ForeignFile, history: list[ForeignResults]) -> list[str]:
    """The commits that the results are about, as the request or else the file names them."""
    if file.commit is not None:
        if len(history) > 1:
            raise ForeignFileError("commit", "the file holds the results of several commits", "leave the commit out")
        return [file.commit]
    if any(results.is_dirty for results in history):
        fault = "the file was measured with changes that are in no commit"
        raise ForeignFileError("commit", fault, "name the commit that it counts for")
    names = list(dict.fromkeys(results.commit for results in history))
    if "" in names:
        raise ForeignFileError("commit", "the file does not name its commit", "name it by its SHA, branch or tag")
    return names


def _outcome(results: ForeignResults, program: str, model: str, environment: Environment) -> Outcome:
    """The benchmarks that ran on one model of device."""
    here = replace(results, benchmarks=[item for item in results.benchmarks if item.device == model])
    cases = [case_entry(benchmark.name, benchmark.sizes) for benchmark in here.benchmarks]
    catalogue = Catalogue(CONTRACT, [operator_entry(program, f"Benchmarks in {results.format} format.", cases)])
    return Outcome(environment, catalogue=catalogue, findings=list_findings(here, environment.device_kind))


def _repository(session: Session, name: str | None) -> RepositoryRow:
    rows = [row for row in list_repositories(session) if not row.is_example]
    repository = find_repository(session, name) if name else rows[0] if len(rows) == 1 else None
    if repository is not None and not repository.is_example:
        return repository
    names = ", ".join(row.name for row in rows) or "none yet; `warpwatch repository add NAME URL` registers one"
    message = f"there is no repository {name!r} of yours" if name else "the results may belong to several repositories"
    raise ForeignFileError("repository", message, f"name one of: {names}")


def _describe(settings: Settings, repository: RepositoryRow, names: list[str]) -> dict[str, git.CommitInfo]:
    """The commits by their names, without those that the repository does not hold; ForeignFileError where it holds none
    of them, unless a single one is named by its full id."""
    infos: dict[str, git.CommitInfo] = {}
    unknown: git.UnknownRefError | None = None
    try:
        mirror = git.update_mirror(repository.url, settings.home, settings.destinations, git.REQUEST_SECONDS)
        for name in names:
            try:
                infos[name] = git.describe(mirror, git.resolve(mirror, name))
            except git.UnknownRefError as error:
                unknown = error
    except git.GitError as error:
        raise ForeignFileError("repository", str(error), "check that the server can reach it") from error
    if not infos and unknown is not None and not (len(names) == 1 and _FULL_SHA.fullmatch(names[0])):
        raise ForeignFileError("commit", str(unknown), "name it by its SHA, branch or tag") from unknown
    return infos


def _environment(session: Session, results: ForeignResults, key: str | None, model: str) -> Environment:
    """Environment of what ran on one model: the machine facts from the file, on the device that `key` or the file
    names."""
    name = key or model or results.device_name
    if not name:
        raise ForeignFileError(
            "device", "the file does not name its device", "name a key of /api/v1/devices or a new one"
        )
    if key is not None and model:
        raise ForeignFileError("device", f"the file holds results of {model!r} as well", "leave the device out")
    # Names in other scripts than Latin have no letter left.
    slug = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:100]
    slug = slug or f"device-{hashlib.sha256(name.encode()).hexdigest()[:8]}"
    device = find_device(session, slug)
    kind = device.kind if device is not None else results.device_kind
    if device is not None and key is None and device.kind != results.device_kind:
        raise ForeignFileError("device", f"{name!r} is of another kind", "name a device by its key")
    facts = {"measured_by": results.format, **results.facts}
    # The file's facts need not name the device.
    key = key_of({"device": slug, "facts": facts})
    return Environment(key, kind, slug, device.name if device is not None else name[:200], facts)
