"""Publishes 1,000 commits of 20 operators, all measured at every commit, and prints seconds, pages and size.

python bench/published.py [--commits 1000] [--operators 20]

Publishes again after one change of one operator, and after nothing. The goals on two cores are 60 s and 20 MB for
everything, and 5 s for what changed.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

import psycopg

from bench.million_points import DAYS, LOAD
from warpwatch.cli.publish import publish_site
from warpwatch.db import embedded, migrate
from warpwatch.settings import Settings

MORE = """
INSERT INTO regressions (operator_id, device_id, base_commit_id, head_commit_id, direction, verdict, state, ratio)
  SELECT operators.id, devices.id, max(commits.id) - 1, max(commits.id), 'slower', 'suspected', 'new', 1.2
  FROM operators, devices, commits GROUP BY operators.id, devices.id ORDER BY operators.id LIMIT 1
"""
"""One change of one operator at the newest commit."""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--commits", type=int, default=1000)
    parser.add_argument("--operators", type=int, default=20)
    sizes = vars(parser.parse_args()) | {"variants": 1, "cases": 1, "days": DAYS, "metrics": ["hot"]}
    with tempfile.TemporaryDirectory(prefix="ww") as folder, embedded.running(Path(folder) / "home") as url:
        migrate.upgrade(url)
        with psycopg.connect(url) as connection:
            psycopg.ClientCursor(connection).execute(LOAD.encode(), sizes)
            connection.commit()
            connection.autocommit = True
            connection.execute("VACUUM ANALYZE")
        for title, statement in (("everything", "SELECT"), ("one change more", MORE), ("nothing new", "SELECT")):
            with psycopg.connect(url) as connection:
                connection.execute(statement.encode())
            began = time.monotonic()
            settings = Settings(home=Path(folder) / "home", database_url=url)
            report = publish_site(settings, url, Path(folder) / "site", ["load"])
            seconds, pages = time.monotonic() - began, report.rendered + report.kept
            print(
                f"{title}: {seconds:.1f} s, {report.rendered} of {pages} pages rendered, "
                f"{report.files} files, {report.size / 1e6:.1f} MB",
                flush=True,
            )


if __name__ == "__main__":
    main()
