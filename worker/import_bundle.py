"""Imports a results file into the database: all of it in one transaction, and the same file only once."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path

from warpwatch.bundle import BundleError, BundleReader
from warpwatch.db import bundles
from warpwatch.db.bundles import BundledJob, ImportedBundle, NewBundle
from warpwatch.db.database import Database
from warpwatch.db.errors import OutcomeError
from warpwatch.db.reads.code import find_repository
from warpwatch.db.registry import NewCommit
from warpwatch.worker import sandbox


def import_bundle(
    database: Database,
    path: Path,
    repository: str | None = None,
    origin: str = "bundle",
    url: str | None = None,
    fetch: Callable[[str], None] = lambda _: None,
) -> ImportedBundle:
    """Imports the results file at `path`; BundleError when it cannot be used, and then nothing was written.

    repository: name to record it under, instead of the one it was measured under. origin: "bundle", or "example" for
    shipped data. url: where the repository is here. fetch: brings the mirror of a repository that is registered here up
    to date, by its address: without the commits nobody could judge the results.
    """
    with BundleReader(path) as bundle:
        manifest = bundle.manifest
        name = repository or manifest.repository
        folder = sandbox.make_temp()
        commits = [
            NewCommit(c.sha, c.parent_sha, c.ordinal, c.author, datetime.fromisoformat(c.authored_at), c.subject)
            for c in manifest.commits
        ]
        with database.session() as s:
            known = find_repository(s, name)
        if known is not None:
            fetch(known.url)
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
                    {"file": path.name, "version": manifest.version, "created_at": manifest.created_at},
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
