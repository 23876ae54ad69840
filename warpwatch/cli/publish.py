"""`warpwatch publish`: static pages of results, for those who run no server."""

from __future__ import annotations

import functools
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from warpwatch.cli.app import app, exit_on
from warpwatch.settings import SettingError, Settings, load_settings

if TYPE_CHECKING:
    from warpwatch.server.site import SiteReport


@app.command()
def publish(
    folder: Path = typer.Argument(help="Folder of the site: a new or empty one, or one that was published before."),
    files: list[Path] = typer.Argument(
        None, help="Results files (.wwb) to publish; without any, what the database of the server holds."
    ),
    repository: list[str] = typer.Option(
        [], help="Repository to publish; may be repeated. Default: of results files all, of a database the public ones."
    ),
    with_addresses: bool = typer.Option(
        False, "--with-addresses", help="Keep e-mail addresses in names of authors and subjects of commits."
    ),
    everything: bool = typer.Option(False, "--all", help="Render pages again whose data did not change, too."),
) -> None:
    """Write the pages of a server as files that need none, for a web host or a folder.

    Pages show what the public may read: no logs, names of hosts, notes or sources.
    """
    from warpwatch.bundle import BundleError
    from warpwatch.db.errors import EngineError
    from warpwatch.server.site import SiteError

    began = time.monotonic()
    errors = (BundleError, EngineError, SettingError, SiteError, OSError)
    with exit_on(*errors), _source(load_settings(), files or []) as (settings, url):
        names = repository or (_names(url) if files else None)
        report = publish_site(settings, url, folder, names, with_addresses=with_addresses, everything=everything)
    typer.echo(
        f"{folder}: {report.files} files, {report.size / 1e6:.1f} MB; {report.rendered} pages rendered, "
        f"{report.kept} unchanged, {report.removed} files removed, in {time.monotonic() - began:.1f} s"
    )


def publish_site(
    settings: Settings,
    url: str,
    folder: Path,
    repositories: list[str] | None,
    *,
    with_addresses: bool = False,
    everything: bool = False,
) -> SiteReport:
    """Builds the site from the database at `url`. repositories: instead of those marked public."""
    from warpwatch.db.database import Database
    from warpwatch.db.published import open_published
    from warpwatch.server.site import build_site

    public = open_published(url, repositories, with_addresses=with_addresses)
    with closing(Database(url, pool_size=1)) as database, closing(public) as published:
        return build_site(settings, database, published, folder, everything=everything)


@contextmanager
def _source(settings: Settings, files: list[Path]) -> Iterator[tuple[Settings, str]]:
    """The database of the server; or one that lasts as long as the block and holds the results files, judged."""
    from warpwatch.cli.results_files import fetch_commits, import_file
    from warpwatch.cli.services import running_database
    from warpwatch.db.database import Database
    from warpwatch.server.judge import Judge

    if not files:
        with running_database(settings) as url:
            yield settings, url
        return
    with tempfile.TemporaryDirectory(prefix="warpwatch-publish-") as home:
        settings = replace(settings, home=Path(home), database_url=None)
        with running_database(settings) as url:
            for file in files:
                import_file(url, file, fetch=functools.partial(fetch_commits, settings))
            with closing(Database(url, pool_size=2)) as database:
                Judge(settings, database).sweep()
            yield settings, url


def _names(url: str) -> list[str]:
    from warpwatch.db.database import Database
    from warpwatch.db.reads.code import list_repositories

    with closing(Database(url, pool_size=1)) as database, database.session() as session:
        return [row.name for row in list_repositories(session)]
