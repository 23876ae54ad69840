"""A small world for the engine's tests: one repository, three commits, one operator, one device, one worker."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Any

import pytest

from tests.builders import count
from warpwatch.contract.catalogue import Catalogue, CommitInfo
from warpwatch.contract.codec import from_json
from warpwatch.contract.environment import Environment
from warpwatch.contract.measurement import Measurement
from warpwatch.contract.messages import BenchReply
from warpwatch.contract.outcome import Finding, Outcome
from warpwatch.contract.spec import JobSpec
from warpwatch.contract.words import Status
from warpwatch.db import registry, submissions
from warpwatch.db.database import Database
from warpwatch.db.models import JobRecord

_CATALOGUE: dict[str, Any] = {
    "contract": 1,
    "operators": [
        {
            "name": "kron",
            "summary": "Kronecker product",
            "variants": [{"name": "v1", "idea": "plain", "outcome": "", "devices": ["cpu"], "native": False}],
            "cases": [
                {
                    "key": f"n={n} f32 fwd",
                    "sizes": {"n": n},
                    "precision": "f32",
                    "direction": "fwd",
                    "layout": "contiguous",
                    "suites": ["quick"],
                    "flops": n * n,
                    "bytes": 4 * n,
                }
                for n in (16, 32)
            ],
            "error": None,
        }
    ],
}
CATALOGUE = from_json(Catalogue, _CATALOGUE)
ENVIRONMENT = Environment("e" * 64, "cpu", "test-cpu", "Test CPU", {"torch": "2.13.0"})
PEAKS = {"copy": 1e10}


@dataclass(frozen=True, slots=True)
class World:
    """Ids of what is registered, and the ways to make work."""

    database: Database
    repository: int
    commits: list[int]
    operator: int
    device: int
    worker: int

    def job(self, kind: str = "bench", *, commit: int = 0, priority: int = 0, base: int | None = None) -> int:
        """The id of a queued job."""
        new = submissions.NewJob(
            kind,
            self.commits[commit],
            self.operator,
            self.device,
            JobSpec(),
            None if base is None else self.commits[base],
        )
        with self.database.session() as s:
            request = submissions.NewSubmission(self.repository, {"kinds": [kind]}, [new], priority=priority)
            submission_id = submissions.create_submission(s, request)
            return s.query(JobRecord.id).where(JobRecord.submission_id == submission_id).scalar()

    def look(self, job_id: int) -> JobRecord:
        """The job as it is now."""
        with self.database.session() as s:
            return s.get_one(JobRecord, job_id)


@pytest.fixture
def world(database: Database) -> World:
    return make_world(database)


def make_world(database: Database) -> World:
    with database.session() as s:
        repository = registry.ensure_repository(s, "example", "/srv/example")
        when = datetime(2026, 1, 1, tzinfo=UTC)
        rows = [
            CommitInfo(c * 40, chr(ord(c) - 1) * 40 if c > "a" else None, n, "Ann", when, f"Change {n}")
            for n, c in enumerate("abc", 1)
        ]
        ids = registry.record_commits(s, repository, rows)
        operator = registry.ensure_operators(s, repository, ["kron"])["kron"]
        device = registry.ensure_device(s, "test-cpu", "cpu", "Test CPU")
        worker = registry.register_worker(s, "node-1-cpu", device, "0.1.0", {})
        return World(database, repository, [ids[row.sha] for row in rows], operator, device, worker)


def measurement(median: float = 1000.0, metric: str = "hot") -> Measurement:
    return Measurement(metric, [median - 1, median, median + 1], median, median - 1, median + 1, 0.001)


def timed(variant: str, case: str, median: float = 1000.0) -> Finding:
    """A good bench. Its 5000 bytes take half of a median of 1000 ns at the peak."""
    bench = BenchReply(Status.OK, bytes=5000, measurements=[measurement(median)])
    return Finding(variant, case, Status.OK, bench=bench)


def outcome(median: float = 1000.0, **changes: Any) -> Outcome:
    """A good bench of both cases."""
    findings = [timed("v1", f"n={n} f32 fwd", median) for n in (16, 32)]
    usual = {"environment": ENVIRONMENT, "peaks": PEAKS, "catalogue": CATALOGUE, "findings": findings}
    return Outcome(**{**usual, **changes})


@pytest.fixture
def counted(database: Database) -> Callable[[str], int]:
    """Number of rows in a table."""
    return partial(count, database)
