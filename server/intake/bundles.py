"""Imports results files into the database, each in one transaction and only once, and writes them from it."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path

from warpwatch import __version__
from warpwatch.bundle import BundleError, BundleReader, BundleWriter
from warpwatch.db import bundles
from warpwatch.db.bundles import BundledJob, ImportedBundle, NewBundle
from warpwatch.db.database import Database
from warpwatch.db.errors import OutcomeError
from warpwatch.db.outcomes import list_exported_runs, list_run_commits, read_outcome
from warpwatch.db.reads.code import RepositoryRow, find_repository
from warpwatch.git import CommitInfo
from warpwatch.project import REPOSITORY_NAME, REPOSITORY_NAME_REMEDY


def import_bundle(
    database: Database,
    path: Path,
    repository: str | None = None,
    origin: str = "bundle",
    url: str | None = None,
    fetch: Callable[[str], None] = lambda _: None,
    *,
    confirm: bool = False,
) -> ImportedBundle:
    """Imports the results file at `path`; BundleError when it cannot be used, and then nothing was written.

    repository: name to record it under, instead of the one it was measured under. origin: "bundle", or "example" for
    shipped data. url: where the repository is here. fetch: brings the mirror of a repository that is registered here up
    to date, by its address: without the commits nobody could judge the results. confirm: whether the changes that the
    results show are to be compared here.
    """
    with BundleReader(path) as bundle:
        manifest = bundle.manifest
        name = repository or manifest.repository
        folder = _make_folder()
        commits = [
            CommitInfo(c.sha, c.parent_sha, c.ordinal, c.author, datetime.fromisoformat(c.authored_at), c.subject)
            for c in manifest.commits
        ]
        with database.session() as s:
            known = find_repository(s, name)
        if known is not None:
            fetch(known.url)
        elif not REPOSITORY_NAME.fullmatch(name):
            raise BundleError(
                f"{path.name} cannot be recorded: {name[:200]!r} is no name of a repository; choose another with "
                f"--repository, and {REPOSITORY_NAME_REMEDY}"
            )
        try:
            with database.session() as s:
                # A file from elsewhere must not redirect a repository that is registered here to another address.
                registered = find_repository(s, name)
                new = NewBundle(
                    bundle.sha256,
                    path.name,
                    name,
                    url or (registered.url if registered else manifest.url),
                    commits,
                    _jobs(bundle, folder),
                    {"file": path.name, "version": manifest.version, "created_at": manifest.created_at}
                    | ({"confirm": True} if confirm else {}),
                    origin,
                )
                return bundles.import_bundle(s, new)
        except OutcomeError as error:
            raise BundleError(f"{path.name} cannot be recorded: {error}") from error
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def _jobs(bundle: BundleReader, folder: Path) -> Iterator[BundledJob]:
    """Yields one job after the other; its traces are on disk only while it is recorded."""
    for run in bundle.runs():
        started, finished = (datetime.fromisoformat(text) for text in (run.started_at, run.finished_at))
        yield BundledJob(run.order, bundle.extract(run.outcome, folder), started, finished)
        for trace in folder.iterdir():
            trace.unlink()


def export_bundle(database: Database, repository: RepositoryRow, path: Path) -> int:
    """Writes every job of the repository that is done, with its traces, to the results file `path`; returns their
    number. Results that were struck out stay behind."""
    with database.session() as s:
        runs = list_exported_runs(s, repository.id)
        commits = [
            CommitInfo(c.sha, c.parent_sha, c.ordinal, c.author, c.authored_at, c.subject)
            for c in list_run_commits(s, runs)
        ]
    folder = _make_folder()
    try:
        with BundleWriter(path, repository.name, repository.url, commits, __version__) as bundle:
            for run in runs:
                # One transaction a run: a long one would keep the database from removing dead rows.
                with database.session() as s:
                    outcome = read_outcome(s, run, folder)
                bundle.add(run.request, outcome, run.started_at, run.finished_at)
                for trace in folder.iterdir():
                    trace.unlink()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return len(runs)


def _make_folder() -> Path:
    """A folder for traces while they are read or written."""
    return Path(tempfile.mkdtemp(prefix="warpwatch-results-"))
