"""A repository of many commits whose every effect is known, and a worker that measures them with the noise of real
ones."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any

from fastapi.testclient import TestClient

from tests.builders import CASES, Lab, write_commits
from warpwatch.contract.outcome import Finding
from warpwatch.contract.words import Status
from warpwatch.server.judge import Judge

Cell = tuple[str, str]
V1, V2, V3 = (("v1", CASES[0]), ("v2", CASES[0]), ("v3", CASES[0]))
BASE_NS, LAUNCH_NS = 100_000.0, 40_000.0


def write_history(path: Path, changes: Mapping[int, str], commits: int = 40) -> list[str]:
    """A repository in which the commits named touch the file named, and all others the manual; ids, oldest first."""
    history = [(f"Change {n}", {changes.get(n, "README.md"): f"STATE = {n}\n"}) for n in range(commits)]
    history[0][1].setdefault("kernels/square.py", "STATE = 0\n")
    return write_commits(path, history)


@dataclass
class Truth:
    """What really happened: factors of time from a commit on, statuses from a commit on (until the second), commits
    that do not build. launches: of the host's time of a call of LAUNCH_NS, for cells that are timed on a GPU."""

    times: Mapping[Cell, Mapping[int, float]] = field(default_factory=dict)
    broken: Mapping[Cell, tuple[int, Status]] = field(default_factory=dict)
    unbuildable: frozenset[int] = frozenset()
    launches: Mapping[Cell, Mapping[int, float]] = field(default_factory=dict)

    def status(self, cell: Cell, number: int) -> Status:
        if number in self.unbuildable:
            return Status.BUILD_FAILED
        since, status = self.broken.get(cell, (10**9, Status.OK))
        return status if number >= since else Status.OK

    def time(self, cell: Cell, number: int) -> float:
        return BASE_NS * _product(self.times.get(cell, {}), number)

    def launch(self, cell: Cell, number: int) -> float:
        """The host's time of a call."""
        return LAUNCH_NS * _product(self.launches[cell], number)


def _product(factors: Mapping[int, float], number: int) -> float:
    """What all factors up to a commit make together."""
    return prod(factor for since, factor in factors.items() if number >= since)


@dataclass
class Machine:
    """Answers jobs by the truth. between: deviation of one run's median; within: of one round's ratio; host: of one
    run's launch, and of one round's."""

    client: TestClient
    lab: Lab
    judge: Judge
    truth: Truth
    cells: tuple[Cell, ...] = (V1, V2, V3)
    between: float = 0.01
    within: float = 0.01
    host: float = 0.02
    chance: random.Random = field(default_factory=lambda: random.Random(5))
    done: Counter[str] = field(default_factory=Counter)

    def bench(self, number: int) -> None:
        """A bench of all cells at a commit, judged at once."""
        self.lab.bench(number, {cell: self._medians(cell, number) for cell in self.cells})
        self.judge.sweep()

    def check(self, number: int) -> None:
        """A check of all cells at a commit, judged at once."""
        self.lab.check(number, {cell: self.truth.status(cell, number) for cell in self.cells})
        self.judge.sweep()

    def work(self, limit: int = 200) -> None:
        """Does what trials ask for, the most urgent first, until nothing is asked for any more."""
        for _ in range(limit):
            self.judge.sweep()
            waiting = self.waiting()
            if not waiting:
                return
            self.answer(waiting[0])
        raise AssertionError(f"there is no end to what is asked for: {self.done}")

    def waiting(self) -> list[dict[str, Any]]:
        rows = self.client.get("/api/v1/jobs", params={"state": "queued", "limit": 200}).json()["items"]
        return sorted(rows, key=lambda row: (-row["priority"], row["id"]))

    def answer(self, job: dict[str, Any]) -> None:
        """Measures what one job asks for."""
        spec = self.client.get(f"/api/v1/jobs/{job['id']}").json()["spec"]
        head = self.lab.shas.index(job["commit_sha"])
        self.done[job["kind"]] += 1
        if job["kind"] == "check":
            cells = [(variant, case) for variant in spec["variants"] for case in spec["cases"]]
            rows = [Finding(*cell, status := self.truth.status(cell, head), f"it was {status}") for cell in cells]
            self.lab.finish(job["id"], self.lab.outcome(rows))
            return
        if job["kind"] == "bench":
            timed = [self.lab._timed(*cell, self._medians(cell, head), 0.002) for cell in self.cells]
            self.lab.finish(job["id"], self.lab.outcome(timed))
            return
        pairs = [(variant, case) for variant, case in spec["pairs"]]
        base = self.lab.shas.index(job["base_sha"])
        if head in self.truth.unbuildable:
            self.lab.compare(job["id"], {cell: ([], []) for cell in pairs}, Status.BUILD_FAILED)
            return
        count = spec.get("rounds", 12)
        rounds: dict[Cell, Any] = {cell: self._rounds(cell, base, head, count) for cell in pairs}
        for cell in pairs:
            if cell in self.truth.launches:
                launches = self._launch_rounds(cell, base, head, count)
                rounds[cell] = {"graph": rounds[cell], "launch": launches}
        self.lab.compare(job["id"], rounds)

    def found(self, **filters: Any) -> set[tuple[str, int, int]]:
        """(direction, base, head) of what is confirmed and open, by numbers of commits."""
        params: dict[str, Any] = {"repository": "kernels", "limit": 200} | filters
        rows = self.client.get("/api/v1/regressions", params=params).json()["items"]
        return {
            (row["direction"], self.lab.shas.index(row["base_sha"]), self.lab.shas.index(row["head_sha"]))
            for row in rows
            if row["state"] == "new"
        }

    def rows(self, verdict: str = "confirmed") -> list[dict[str, Any]]:
        params: dict[str, Any] = {"repository": "kernels", "verdict": verdict, "limit": 200}
        rows: list[dict[str, Any]] = self.client.get("/api/v1/regressions", params=params).json()["items"]
        return rows

    def notes(self, regression: int) -> list[str]:
        notes = self.client.get(f"/api/v1/regressions/{regression}").json()["notes"]
        assert {note["author"] for note in notes} <= {"warpwatch"}
        return [note["note"] for note in notes]

    def _medians(self, cell: Cell, number: int) -> Any:
        """What a bench of a cell says: a median, both of a cell that is timed on a GPU, or a status."""
        timed = self._timed(cell, number)
        if isinstance(timed, Status) or cell not in self.truth.launches:
            return timed
        launch = self.truth.launch(cell, number) * max(0.01, self.chance.gauss(1, self.host))
        return {"graph": timed, "kernel": timed, "launch": launch}

    def _launch_rounds(self, cell: Cell, base: int, head: int, count: int) -> tuple[list[float], list[float]]:
        sides = [self.truth.launch(cell, number) for number in (base, head)]
        before, after = ([time * max(0.01, self.chance.gauss(1, self.host)) for _ in range(count)] for time in sides)
        return before, after

    def _timed(self, cell: Cell, number: int) -> float | Status:
        status = self.truth.status(cell, number)
        return (
            self.truth.time(cell, number) * max(0.01, self.chance.gauss(1, self.between))
            if status == Status.OK
            else status
        )

    def _rounds(self, cell: Cell, base: int, head: int, count: int) -> tuple[list[float], list[float]]:
        before, after = self.truth.time(cell, base), self.truth.time(cell, head)
        pace = [max(0.01, self.chance.gauss(1, self.between)) for _ in range(count)]
        # A normal distribution this wide reaches below 0, where no time does.
        within = [max(0.01, self.chance.gauss(1, self.within)) for _ in pace]
        return [before * p for p in pace], [after * p * w for p, w in zip(pace, within, strict=True)]
