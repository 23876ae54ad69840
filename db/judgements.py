"""Judgements: patches that are judged on cases and seeds that nobody but the server's owner and its workers know.

A judgement is a submission of a patch with further *sealed* jobs. Their rows in `jobs` say nothing of cases and seeds;
those stand in `sealed_jobs`, and so does what they found until the receipt is signed. No read of pages, JSON, exports
or the public asks that table, so what no statement selects no answer can tell.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from sqlalchemy import ForeignKey, Index, text, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Mapped, Session, mapped_column

from warpwatch.contract.codec import to_json
from warpwatch.contract.outcome import Outcome
from warpwatch.contract.spec import JobSpec
from warpwatch.contract.words import JobKind, JudgementVerdict
from warpwatch.db.models.base import Base, created, one_of
from warpwatch.db.reads.query import Page, fetch, fetch_one, fetch_page

SEALED_MESSAGE = "a sealed job of a judgement could not be measured"
"""In place of every message of a sealed job: messages quote what kernel code printed and which case it was at."""


class JudgementRecord(Base):
    """A patch that somebody had judged. Without a submission once the patch has expired; the receipt stays."""

    __tablename__ = "judgements"
    __table_args__ = (
        one_of("verdict", JudgementVerdict),
        Index("ix_judgements_client_created_at", "client", "created_at"),
    )
    id: Mapped[int] = mapped_column(primary_key=True)
    repository_id: Mapped[int] = mapped_column(ForeignKey("repositories.id", ondelete="CASCADE"), index=True)
    submission_id: Mapped[int | None] = mapped_column(ForeignKey("submissions.id", ondelete="SET NULL"), unique=True)
    operator: Mapped[str]
    device_key: Mapped[str]
    client: Mapped[str]
    """The caller, by which quotas and turns are counted."""
    salt: Mapped[str]
    """What the digests of the receipt are made with. The owner may disclose it, to prove which cases they stand for."""
    facts: Mapped[dict[str, Any]]
    """What the receipt says that is known before anything is measured."""
    budget_seconds: Mapped[float]
    verdict: Mapped[str | None]
    receipt: Mapped[str | None]
    """The signed statement, a JWS in its compact form; None before the end."""
    at_least: Mapped[float | None]
    """Speed-up on the hidden cases, rounded down to a step; see server.receipts."""
    created_at: Mapped[datetime] = created()
    finished_at: Mapped[datetime | None]


class SealedJobRecord(Base):
    """The cases and the seed of a sealed job, and its outcome until the judgement ends."""

    __tablename__ = "sealed_jobs"
    job_id: Mapped[int] = mapped_column(ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True)
    cases: Mapped[list[Any]]
    seed: Mapped[int]
    outcome: Mapped[dict[str, Any] | None]


@dataclass(frozen=True, slots=True)
class NewJudgement:
    """A judgement whose submission was made in the same transaction. seeds: of its sealed jobs, in their order."""

    repository_id: int
    submission_id: int
    operator: str
    device_key: str
    client: str
    salt: str
    facts: dict[str, Any]
    budget_seconds: float
    hidden: list[str]
    seeds: list[int]


@dataclass(frozen=True, slots=True)
class JudgementRow:
    """A judgement as its client sees it. state: pending, or ended once there is a receipt. at_least: the speed-up on
    the hidden cases, rounded down."""

    id: int
    repository: str
    operator: str
    device_key: str
    client: str
    submission_id: int | None
    state: str
    verdict: str | None
    at_least: float | None
    budget_seconds: float
    created_at: datetime
    receipt: str | None


@dataclass(frozen=True, slots=True)
class JudgedJob:
    """One job of an open judgement. outcome: contract.outcome.Outcome as JSON, None where it has none. seconds: of
    device time. longest: those of its longest run."""

    id: int
    kind: str
    state: str
    reason: str | None
    spec: JobSpec
    cases: list[str] | None
    seed: int | None
    outcome: dict[str, Any] | None
    seconds: float
    longest: float
    card: str | None


@dataclass(frozen=True, slots=True)
class OpenJudgement:
    """A judgement without a receipt."""

    id: int
    submission_id: int | None
    repository: str
    operator: str
    device_key: str
    device_kind: str
    salt: str
    facts: dict[str, Any]
    budget_seconds: float
    verdict: str | None


def unseal(spec: JobSpec, kind: str, cases: list[str] | None, seed: int | None) -> JobSpec:
    """The specification as the worker gets it; cases, seed: those of the sealed job, None for any other job."""
    if cases is None or seed is None:
        return spec
    pairs = [(variant, case) for case in cases for variant in spec.variants or ()] if kind == JobKind.COMPARE else None
    return replace(spec, cases=cases, seed=seed, pairs=pairs)


def create_judgement(session: Session, new: NewJudgement) -> int:
    """The id of the judgement; seals the jobs of its submission that are to be."""
    row = {
        "repository_id": new.repository_id,
        "submission_id": new.submission_id,
        "operator": new.operator,
        "device_key": new.device_key,
        "client": new.client,
        "salt": new.salt,
        "facts": new.facts,
        "budget_seconds": new.budget_seconds,
    }
    number = session.scalars(insert(JudgementRecord).values(**row).returning(JudgementRecord.id)).one()
    sql = "SELECT id FROM jobs WHERE submission_id = :id AND spec ->> 'sealed' = 'true' ORDER BY id"
    jobs = session.scalars(text(sql), {"id": new.submission_id}).all()
    rows = [{"job_id": job_id, "cases": new.hidden, "seed": seed} for job_id, seed in zip(jobs, new.seeds, strict=True)]
    session.execute(insert(SealedJobRecord), rows)
    return number


def store_sealed_outcome(session: Session, job_id: int, outcome: Outcome) -> bool:
    """Keeps the outcome of a sealed job for the receipt; False for any other job, of which nothing is written."""
    values = to_json(replace(outcome, catalogue=None, base_catalogue=None, peaks=None))
    statement = update(SealedJobRecord).where(SealedJobRecord.job_id == job_id).values(outcome=values)
    return session.scalar(statement.returning(SealedJobRecord.job_id)) is not None


def is_of_judgement(session: Session, submission_id: int) -> bool:
    """Whether a submission is of a judgement, which is decided once."""
    sql = "SELECT EXISTS (SELECT FROM judgements WHERE submission_id = :id)"
    return bool(session.scalar(text(sql), {"id": submission_id}))


def count_turns(session: Session, client: str) -> tuple[int, int]:
    """How many judgements of a client are open, and how many it had within a day. Clients wait for one another here, so
    that requests at once do not pass a limit together."""
    session.execute(text("SELECT pg_advisory_xact_lock(hashtext('judgements ' || :client))"), {"client": client})
    sql = """
    SELECT count(*) FILTER (WHERE receipt IS NULL), count(*) FILTER (WHERE created_at > now() - interval '1 day')
    FROM judgements WHERE client = :client
    """
    opened, today = session.execute(text(sql), {"client": client}).one()
    return opened, today


_ROW = """
judgements.id, repositories.name AS repository, operator, device_key, client, submission_id,
CASE WHEN receipt IS NULL THEN 'pending' ELSE 'ended' END AS state,
CASE WHEN receipt IS NOT NULL THEN verdict END AS verdict, CASE WHEN receipt IS NOT NULL THEN at_least END AS at_least,
budget_seconds, judgements.created_at, receipt
FROM judgements JOIN repositories ON repositories.id = judgements.repository_id
"""


def read_judgement(session: Session, judgement_id: int) -> JudgementRow | None:
    return fetch_one(session, JudgementRow, f"SELECT {_ROW} WHERE judgements.id = :id", id=judgement_id)


def list_judgements(session: Session, before: int | None = None, limit: int = 50) -> Page[JudgementRow]:
    """Judgements, newest first."""
    sql = f"""
    SELECT {_ROW} WHERE CAST(:before AS bigint) IS NULL OR judgements.id < :before
    ORDER BY judgements.id DESC LIMIT :limit
    """
    return fetch_page(session, JudgementRow, sql, limit, before=before)


@dataclass(frozen=True, slots=True)
class LeaderRow:
    """The best judgement of a client for an operator on a device. at_least: its speed-up on the hidden cases."""

    repository: str
    operator: str
    device_key: str
    client: str
    at_least: float
    judgement: int
    created_at: datetime


def list_leaders(session: Session) -> list[LeaderRow]:
    """The best `faster` judgement of each client by operator and device, the fastest first, then the earliest. Only
    those that were judged like the newest one, on the same base and hidden cases, can be compared."""
    sql = """
    WITH newest AS (
        SELECT DISTINCT ON (repository_id, operator, device_key) repository_id, operator, device_key,
               facts ->> 'base' AS base, facts ->> 'hidden_set' AS hidden_set
        FROM judgements ORDER BY repository_id, operator, device_key, id DESC
    ), best AS (
        SELECT DISTINCT ON (repository_id, operator, device_key, client)
               repository_id, operator, device_key, client, at_least, judgements.id AS judgement, created_at
        FROM judgements JOIN newest USING (repository_id, operator, device_key)
        WHERE verdict = 'faster' AND receipt IS NOT NULL AND at_least IS NOT NULL
          AND facts ->> 'base' = newest.base AND facts ->> 'hidden_set' = newest.hidden_set
        ORDER BY repository_id, operator, device_key, client, at_least DESC, judgements.id
    )
    SELECT repositories.name AS repository, operator, device_key, client, at_least, judgement, best.created_at
    FROM best JOIN repositories ON repositories.id = repository_id AND deleted_at IS NULL
    ORDER BY repository, operator, device_key, at_least DESC, judgement
    """
    return fetch(session, LeaderRow, sql)


def list_open(session: Session) -> list[OpenJudgement]:
    """Judgements without a receipt, oldest first; another server that reads them meanwhile gets the others."""
    sql = """
    SELECT judgements.id, submission_id, repositories.name AS repository, operator, device_key,
           coalesce(devices.kind, 'cpu') AS device_kind, salt, judgements.facts, budget_seconds, verdict
    FROM judgements JOIN repositories ON repositories.id = judgements.repository_id
    LEFT JOIN devices ON devices.key = device_key
    WHERE receipt IS NULL ORDER BY judgements.id FOR UPDATE OF judgements SKIP LOCKED
    """
    return fetch(session, OpenJudgement, sql)


def list_judged_jobs(session: Session, submission_id: int) -> list[JudgedJob]:
    """The jobs of a judgement in the order in which they were made."""
    sql = """
    SELECT jobs.id, jobs.kind, jobs.state, jobs.reason, jobs.spec, sealed_jobs.cases, sealed_jobs.seed,
           coalesce(sealed_jobs.outcome, patch_outcomes.outcome) AS outcome, coalesce(spent.seconds, 0) AS seconds,
           coalesce(spent.longest, 0) AS longest, spent.card
    FROM jobs LEFT JOIN sealed_jobs ON sealed_jobs.job_id = jobs.id
    LEFT JOIN patch_outcomes ON patch_outcomes.job_id = jobs.id
    LEFT JOIN LATERAL (
        SELECT sum(run.seconds) AS seconds, max(run.seconds) AS longest, max(cards.key) AS card
        FROM runs CROSS JOIN LATERAL (
            SELECT extract(epoch FROM coalesce(finished_at, now()) - started_at)::float AS seconds
        ) AS run LEFT JOIN cards ON cards.id = runs.card_id WHERE runs.job_id = jobs.id
    ) AS spent ON true
    WHERE jobs.submission_id = :id ORDER BY jobs.id
    """
    return fetch(session, JudgedJob, sql, id=submission_id)


def decide(session: Session, judgement_id: int, verdict: JudgementVerdict) -> None:
    """Notes the verdict of a judgement whose other jobs need not run."""
    statement = update(JudgementRecord).where(JudgementRecord.id == judgement_id)
    session.execute(statement.values(verdict=verdict))


def end_judgement(
    session: Session, judgement_id: int, verdict: JudgementVerdict, at_least: float | None, receipt: str
) -> None:
    """Stores the receipt, and forgets what the sealed jobs found."""
    sql = """
    UPDATE judgements SET verdict = :verdict, at_least = :at_least, receipt = :receipt, finished_at = now()
    WHERE id = :id RETURNING submission_id
    """
    values = {"id": judgement_id, "verdict": verdict, "at_least": at_least, "receipt": receipt}
    submission_id = session.scalar(text(sql), values)
    sql = "UPDATE sealed_jobs SET outcome = NULL WHERE job_id IN (SELECT id FROM jobs WHERE submission_id = :id)"
    session.execute(text(sql), {"id": submission_id})
