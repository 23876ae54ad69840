"""The parts of a story told with a simulated machine: what is planted, and what pages and the API state."""

from __future__ import annotations

from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from fastapi.testclient import TestClient

from tests.builders import described, run_git
from tests.server.simulated import BASE_NS, V3, Cell, Machine, Truth
from warpwatch import git
from warpwatch.contract.words import Status
from warpwatch.db import registry
from warpwatch.db.database import Database
from warpwatch.server.history.branches import follow_branches
from warpwatch.settings import Settings

SLOW = 1.22


@dataclass
class Planted(Truth):
    """What is true of every commit by its place in the lab. slow: commits at which v3 takes SLOW times as long."""

    slow: set[int] = field(default_factory=set)
    wrong: dict[Cell, set[int]] = field(default_factory=dict)

    def status(self, cell: Cell, number: int) -> Status:
        return Status.WRONG if number in self.wrong.get(cell, ()) else Status.OK

    def time(self, cell: Cell, number: int) -> float:
        return BASE_NS * (SLOW if cell == V3 and number in self.slow else 1.0)


class Statements(HTMLParser):
    """Collects the data attributes of a page's statements."""

    def __init__(self) -> None:
        super().__init__()
        self.elements: list[dict[str, str]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        data = {name.removeprefix("data-"): value or "" for name, value in attrs if name.startswith("data-")}
        if data:
            self.elements.append(data | {"tag": tag})


@dataclass
class Story:
    """A repository, its planted truth, and short names of its commits."""

    source: Path
    machine: Machine
    settings: Settings
    database: Database
    names: dict[str, int] = field(default_factory=dict)

    @property
    def client(self) -> TestClient:
        return self.machine.client

    def sha(self, name: str) -> str:
        return self.machine.lab.shas[self.names[name]]

    def main(self) -> set[str]:
        """The commits of main that there are so far."""
        return {self.sha(name) for name in self.names if name.isdigit() or name == "merge"}

    def sha_or_none(self, name: str) -> str | None:
        return self.sha(name) if name in self.names else None

    def commit(self, name: str, text: str | None = None) -> None:
        """One more commit on the branch that is checked out; text: new content of the operator, None leaves it."""
        if text is not None:
            (self.source / "kernels" / "square.py").write_text(text)
        (self.source / "README.md").write_text(f"{name}\n")
        run_git(self.source, "add", "--all")
        run_git(self.source, "commit", "--quiet", "--message", f"Commit {name}")
        self.learn(name)

    def learn(self, name: str) -> None:
        """Names the commit that is checked out, and stores it as a submission of it would."""
        sha = run_git(self.source, "rev-parse", "HEAD").strip()
        lab = self.machine.lab
        lab.shas.append(sha)
        self.names[name] = len(lab.shas) - 1
        with self.database.session() as session:
            lab.commits |= registry.record_commits(session, lab.repository, described(lab.source, (sha,)))

    def fetch(self) -> None:
        git.update_mirror(str(self.source), self.settings.home)
        follow_branches(self.database, self.settings, self.machine.lab.repository)

    def measure(self, *names: str) -> None:
        """Checks and benches commits, and leaves the trials that follow to `work`."""
        self.fetch()
        for name in names:
            self.machine.check(self.names[name])
            self.machine.bench(self.names[name])

    def work(self) -> None:
        self.machine.work()

    def step(self) -> None:
        """One trial is measured and judged."""
        self.machine.answer(self.machine.waiting()[0])
        self.machine.judge.sweep()

    def json(self, path: str, **query: Any) -> Any:
        answer = self.client.get(f"/api/v1{path}", params=query)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def page(self, path: str, **query: Any) -> list[dict[str, str]]:
        answer = self.client.get(path, params={"repository": "kernels", **query})
        assert answer.status_code == 200, answer.text
        parser = Statements()
        parser.feed(answer.text)
        return parser.elements

    def row(self, name: str, direction: str, **query: Any) -> dict[str, Any]:
        """The regression whose head is this commit."""
        rows = [
            row
            for verdict in ("confirmed", "suspected")
            for row in self.json(
                "/regressions", repository="kernels", state="any", branch="*", verdict=verdict, limit=200
            )["items"]
            if (row["head_sha"], row["direction"]) == (self.sha(name), direction) and row["phase"] != "invalid"
        ]
        assert len(rows) == 1, rows
        return dict(rows[0])
