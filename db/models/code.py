"""Tables of code and machines: repositories, commits, operators, variants, cases; devices, environments, workers."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import ForeignKey, Index, UniqueConstraint, text
from sqlalchemy.orm import Mapped, mapped_column

from warpwatch.contract.words import BranchKind, Reason
from warpwatch.db.models.base import Base, created, one_of


class RepositoryRecord(Base):
    __tablename__ = "repositories"
    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(unique=True)
    url: Mapped[str]
    """Address that git clones: a path or a URL."""
    definitions_url: Mapped[str | None]
    """Where its operators are defined; None where each commit defines its own."""
    definitions_ref: Mapped[str | None]
    """The branch, tag or commit of the definitions; None for the newest."""
    definitions_sha: Mapped[str | None]
    """The version of the definitions that new jobs are measured with."""
    branch: Mapped[str | None]
    """The branch whose history is watched; None for the one that git checks out by itself."""
    webhook_secret: Mapped[str | None]
    """Secret that signs pushes; with None the repository takes no webhooks."""
    status_url: Mapped[str | None]
    """Where commit statuses are sent, with {sha} in it; None sends none."""
    status_token: Mapped[str | None]
    is_example: Mapped[bool] = mapped_column(server_default="false")
    """Whether its history was measured elsewhere and shipped with Warpwatch."""
    is_public: Mapped[bool] = mapped_column(server_default="false")
    """Whether anybody may read its results, where the server lets the public in."""
    deleted_at: Mapped[datetime | None]
    """When somebody deleted it; its rows go one batch after the other, its own last."""
    branches_key: Mapped[str | None]
    """Digest of the refs and commits that `branches` was last read from; None before the first time."""
    created_at: Mapped[datetime] = created()


class CommitRecord(Base):
    __tablename__ = "commits"
    __table_args__ = (
        UniqueConstraint("repository_id", "sha"),
        Index(None, "repository_id", "ordinal"),
        Index(None, "patch_id", postgresql_where="patch_id IS NOT NULL"),
        Index("ix_commits_uncounted", "id", postgresql_where="counts IS NULL"),
        Index("ix_commits_releases", "repository_id", "ordinal", postgresql_where="tags <> '[]'"),
        Index(
            "ix_commits_words",
            text("to_tsvector('simple', left(subject, 500) || ' ' || left(author, 100))"),
            postgresql_using="gin",
        ),
    )
    id: Mapped[int] = mapped_column(primary_key=True)
    repository_id: Mapped[int] = mapped_column(ForeignKey("repositories.id", ondelete="CASCADE"))
    sha: Mapped[str]
    parent_sha: Mapped[str | None]
    ordinal: Mapped[int]
    """Number of its ancestors, itself included: order in history that does not depend on when it was measured."""
    author: Mapped[str]
    authored_at: Mapped[datetime]
    subject: Mapped[str]
    catalogue: Mapped[dict[str, Any] | None]
    """contract.catalogue.Catalogue as JSON, once a worker has read it."""
    catalogue_digest: Mapped[str | None]
    """Fingerprint of the catalogue, so that a worker can see whether it brings another one."""
    counts: Mapped[dict[str, Any] | None]
    """Its results as `points`, `wrong` and `broken`, once the server counted them; see db.tallies."""
    tags: Mapped[list[Any]] = mapped_column(server_default="[]")
    """Names of the tags that point at it."""
    patch_id: Mapped[int | None] = mapped_column(ForeignKey("patches.id", ondelete="CASCADE"))
    """The patch of a working tree that makes it; None for a commit of the repository."""


class BranchRecord(Base):
    """A branch or change request with a stored commit of its own, as the mirror last had it; see db.reads.lines."""

    __tablename__ = "branches"
    __table_args__ = (
        one_of("kind", BranchKind),
        UniqueConstraint("repository_id", "name"),
        Index("ix_branches_watched", "repository_id", unique=True, postgresql_where="is_watched"),
        Index("ix_branches_merged", "id", postgresql_where="merged_sha IS NOT NULL"),
    )
    id: Mapped[int] = mapped_column(primary_key=True)
    repository_id: Mapped[int] = mapped_column(ForeignKey("repositories.id", ondelete="CASCADE"))
    name: Mapped[str]
    kind: Mapped[str]
    is_watched: Mapped[bool] = mapped_column(server_default="false")
    head_sha: Mapped[str]
    fork_at: Mapped[int | None]
    """Place of the newest commit that it shares with the watched branch along first parents; None for that branch
    itself, and where they share none."""
    fork_sha: Mapped[str | None]
    merge_base_sha: Mapped[str | None]
    """Commit that the branch is compared with: the newest common ancestor with the watched branch."""
    merged_sha: Mapped[str | None]
    """The commit of the watched branch that merged it; None while it is not merged."""


class BranchCommitRecord(Base):
    """A stored commit of a branch: of the watched one along first parents, of others since they left that one."""

    __tablename__ = "branch_commits"
    __table_args__ = (Index(None, "branch_id", "place"),)
    commit_id: Mapped[int] = mapped_column(ForeignKey("commits.id", ondelete="CASCADE"), primary_key=True)
    branch_id: Mapped[int] = mapped_column(ForeignKey("branches.id", ondelete="CASCADE"), primary_key=True)
    place: Mapped[int]
    """Number of its ancestors along first parents, itself included."""


class OperatorRecord(Base):
    __tablename__ = "operators"
    __table_args__ = (UniqueConstraint("repository_id", "name"),)
    id: Mapped[int] = mapped_column(primary_key=True)
    repository_id: Mapped[int] = mapped_column(ForeignKey("repositories.id", ondelete="CASCADE"))
    name: Mapped[str]
    summary: Mapped[str] = mapped_column(server_default="")


class VariantRecord(Base):
    __tablename__ = "variants"
    __table_args__ = (UniqueConstraint("operator_id", "name"),)
    id: Mapped[int] = mapped_column(primary_key=True)
    operator_id: Mapped[int] = mapped_column(ForeignKey("operators.id", ondelete="CASCADE"))
    name: Mapped[str]
    idea: Mapped[str] = mapped_column(server_default="")


class CaseRecord(Base):
    __tablename__ = "cases"
    __table_args__ = (UniqueConstraint("operator_id", "key"),)
    id: Mapped[int] = mapped_column(primary_key=True)
    operator_id: Mapped[int] = mapped_column(ForeignKey("operators.id", ondelete="CASCADE"))
    key: Mapped[str]
    sizes: Mapped[dict[str, Any]]
    precision: Mapped[str]
    direction: Mapped[str]
    layout: Mapped[str]
    suites: Mapped[list[Any]]
    flops: Mapped[int]
    bytes: Mapped[int]


class DeviceRecord(Base):
    """A model of hardware; workers with the same model share one queue."""

    __tablename__ = "devices"
    id: Mapped[int] = mapped_column(primary_key=True)
    key: Mapped[str] = mapped_column(unique=True)
    kind: Mapped[str]
    name: Mapped[str]
    is_elastic: Mapped[bool] = mapped_column(server_default="false")
    """Whether a scheduler starts workers when jobs wait; then nobody misses one."""
    created_at: Mapped[datetime] = created()


class EnvironmentRecord(Base):
    """Software and hardware fingerprint, stored once; points refer to it."""

    __tablename__ = "environments"
    id: Mapped[int] = mapped_column(primary_key=True)
    device_id: Mapped[int] = mapped_column(ForeignKey("devices.id", ondelete="CASCADE"), index=True)
    key: Mapped[str] = mapped_column(unique=True)
    facts: Mapped[dict[str, Any]]
    peaks: Mapped[dict[str, Any] | None]
    """Measured ceilings: "copy" in bytes per second, precisions in FLOP per second."""
    created_at: Mapped[datetime] = created()


class CardRecord(Base):
    """A physical card of a device: one GPU of its model, or one machine."""

    __tablename__ = "cards"
    __table_args__ = (UniqueConstraint("device_id", "key"),)
    id: Mapped[int] = mapped_column(primary_key=True)
    device_id: Mapped[int] = mapped_column(ForeignKey("devices.id", ondelete="CASCADE"))
    key: Mapped[str]
    """The UUID of a GPU, a hash of the machine's id for a CPU."""
    facts: Mapped[dict[str, Any]]
    """As its newest run had them: board, VBIOS, slot, host; see contract.environment.Card."""
    created_at: Mapped[datetime] = created()


class WorkerRecord(Base):
    __tablename__ = "workers"
    __table_args__ = (one_of("pause_reason", Reason), {"postgresql_with": {"fillfactor": 50}})
    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(unique=True)
    """host, process and device, such as `node7-4242-cpu`."""
    device_id: Mapped[int] = mapped_column(ForeignKey("devices.id", ondelete="CASCADE"), index=True)
    key_id: Mapped[int | None] = mapped_column(ForeignKey("worker_keys.id", ondelete="SET NULL"), index=True)
    """With which it came over HTTP; None for a worker with the database's address."""
    version: Mapped[str]
    started_at: Mapped[datetime] = created()
    heartbeat_at: Mapped[datetime] = created()
    stopped_at: Mapped[datetime | None]
    paused_until: Mapped[datetime | None]
    """When it takes jobs again, after several in a row failed for a reason that speaks against its machine."""
    pause_reason: Mapped[str | None]
    facts: Mapped[dict[str, Any]] = mapped_column(server_default="{}")
