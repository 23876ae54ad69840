"""Every statement about what forges are sent and asked finds its rows through an index."""

from __future__ import annotations

from datetime import UTC, datetime

from tests.db.conftest import World
from tests.db.test_indexes import expect_indexes, use_everything
from warpwatch.contract.words import (
    ForgeKind,
    ForgeMessageKind,
    ForgeState,
)
from warpwatch.db import forge
from warpwatch.db import forge as forge_reads
from warpwatch.db.attempts import record_failure, record_sent
from warpwatch.db.models import (
    RegressionRecord,
    SubmissionRecord,
)


def tell_forges(world: World) -> None:
    """All that a forge is sent and asked."""
    with world.database.session() as s:
        submission, number = (
            s.query(SubmissionRecord.id).limit(1).scalar(),
            s.query(RegressionRecord.id).limit(1).scalar(),
        )
        at, repository = datetime.now(UTC), world.repository
        new = forge.NewForgeLink(ForgeKind.GITLAB, "acme/kernels", "http://host/api/v4", "token", True)
        for _ in range(2):
            forge.set_link(s, repository, new)
        assert forge_reads.read_link(s, repository) is not None
        assert forge_reads.read_access(s, repository) is not None
        change = forge.record_change(s, repository, 7, "a" * 40, at, is_fork=True)
        forge.allow_head(s, change, "a" * 40, "ann")
        forge.answer_command(s, change, "no")
        assert forge.attach_submission(s, submission, change)
        assert forge_reads.read_change(s, change) == forge_reads.find_change(s, repository, 7)
        forge_reads.list_change_submissions(s, change)
        forge_reads.read_operators_of(s, submission)
        forge.queue_check_run(s, repository, submission, forge.PENDING)
        assert forge.list_open(s)
        forge.queue_check_run(s, repository, submission, forge.FINAL)
        forge.reopen_check_run(s, submission)
        assert forge_reads.list_check_runs(s, submission)
        assert forge.queue_once(s, repository, ForgeMessageKind.COMMAND, "command:1", {})
        forge.queue_issue(s, repository, number, forge.OPEN)
        forge_reads.list_unfiled(s)
        forge_reads.list_mended(s)
        due = forge.claim_message(s)
        assert due is not None
        forge.record_remote_id(s, due.id, "5")
        record_failure(s, "forge_messages", due.id, "no", 1)
        record_sent(s, "forge_messages", due.id)
        forge.set_link_state(s, repository, ForgeState.LINKED, "", 60)
        assert forge_reads.list_messages(s, repository).items
        forge.remove_link(s, repository)


def test_no_statement_about_forges_reads_a_whole_table(world: World) -> None:
    use_everything(world)
    expect_indexes(world, tell_forges, 35)
