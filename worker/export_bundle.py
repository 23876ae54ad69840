"""Writes the results of a repository in the database to a results file, from which another server imports them."""

from __future__ import annotations

import shutil
from pathlib import Path

from warpwatch import __version__
from warpwatch.bundle import BundleWriter
from warpwatch.db.database import Database
from warpwatch.db.outcomes import list_exported_runs, list_run_commits, read_outcome
from warpwatch.db.reads.code import RepositoryRow
from warpwatch.git import CommitInfo
from warpwatch.worker import sandbox


def export_bundle(database: Database, repository: RepositoryRow, path: Path) -> int:
    """Writes every job of the repository that is done, with its traces, to the results file `path`; returns their
    number. Results that were struck out stay behind."""
    with database.session() as s:
        runs = list_exported_runs(s, repository.id)
        commits = [
            CommitInfo(c.sha, c.parent_sha, c.ordinal, c.author, c.authored_at, c.subject)
            for c in list_run_commits(s, runs)
        ]
    folder = sandbox.make_temp()
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
