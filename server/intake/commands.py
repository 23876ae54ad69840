"""Does what members command in comments of pull requests, once the forge has said that they are members."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from warpwatch.contract.words import ForgeMessageKind
from warpwatch.db import forge as messages
from warpwatch.db.access import NewAuditEntry, record_audit
from warpwatch.db.database import Database
from warpwatch.db.forge import ChangeRequestRow, ForgeAccess, find_change
from warpwatch.db.reads.work import find_submission
from warpwatch.git import GitError
from warpwatch.server.forge.client import ForgeChange, ForgeClient, ForgeError, ForgeUser
from warpwatch.server.history.commits import MERGE_BASE
from warpwatch.server.http.problems import Problem
from warpwatch.server.intake.comment_commands import PREFIX, CommandVerb
from warpwatch.server.intake.hooks import CommentEvent
from warpwatch.server.intake.submission_request import SubmissionRequest
from warpwatch.server.intake.submissions import submit
from warpwatch.server.reports.comments import HELP, refusal
from warpwatch.settings import Settings

ORIGIN = "comment"


class CommandRefusal(Exception):  # noqa: N818 - it is an answer, no error.
    """A command of a member that is not done; the words say why."""


def queue_command(database: Database, repository_id: int, event: CommentEvent) -> bool:
    """Stores a command for the thread that asks the forge who gave it; False for one that was told before."""
    fields = {
        "number": event.number,
        "comment_id": event.comment_id,
        "user_id": event.user_id,
        "login": event.login,
        "at": event.at.isoformat(),
        "verb": event.command.verb,
        "operators": list(event.command.operators),
        "sha": event.command.sha,
    }
    kind, subject = ForgeMessageKind.COMMAND, f"command:{event.comment_id}"
    with database.session() as session:
        return messages.queue_once(session, repository_id, kind, subject, fields)


def run_command(
    database: Database, settings: Settings, access: ForgeAccess, client: ForgeClient, fields: dict[str, Any]
) -> None:
    """Does a command and queues the answer. Who is no member only gets a thumb down."""
    number = int(fields["number"])
    is_accepted = is_member = client.is_member(ForgeUser(int(fields["user_id"]), str(fields["login"])))
    change, answer = None, ""
    if is_member:
        pull = client.read_change(number)
        # When its head came is known from its event alone.
        with database.session() as session:
            messages.record_change(session, access.repository_id, number, pull.head_sha, None, is_fork=pull.is_fork)
            change = find_change(session, access.repository_id, number)
        assert change is not None
        try:
            answer = _do(database, settings, access, change, pull, fields)
        except CommandRefusal as refused:
            is_accepted, answer = False, refusal(str(refused))
    reaction = {"number": number, "comment_id": int(fields["comment_id"]), "is_accepted": is_accepted}
    subject = f"reaction:{fields['comment_id']}"
    with database.session() as session:
        messages.queue_once(session, access.repository_id, ForgeMessageKind.REACTION, subject, reaction)
        if is_accepted and fields["verb"] != CommandVerb.HELP:
            caller, path = f"{access.forge}:{fields['login']}", f"{access.repository}/{number}: {_words(fields)}"
            record_audit(session, NewAuditEntry(caller, "POST", "/api/v1/hooks/{repository}", path, 201, None))
        if change is not None:
            messages.answer_command(session, change.id, answer)
            messages.queue_comment(session, access.repository_id, change.id)


def _words(fields: dict[str, Any]) -> str:
    """A command as it was written."""
    return " ".join([PREFIX, fields["verb"], *fields["operators"], *([fields["sha"]] if fields["sha"] else [])])


def _do(
    database: Database,
    settings: Settings,
    access: ForgeAccess,
    change: ChangeRequestRow,
    pull: ForgeChange,
    fields: dict[str, Any],
) -> str:
    """Does a member's command; the answer, in Markdown."""
    verb, operators = fields["verb"], list(fields["operators"])
    if verb == CommandVerb.HELP:
        return HELP
    if verb == CommandVerb.ALLOW:
        _check_allowed(change, pull, fields)
        with database.session() as session:
            messages.allow_head(session, change.id, pull.head_sha, str(fields["login"]))
        key = f"allowed:{access.repository_id}:{pull.head_sha}:{pull.target}"
        _submit(database, settings, access, change, pull, [], key)
        return ""
    if verb == CommandVerb.BENCH:
        if pull.is_fork and change.allowed_sha != pull.head_sha:
            words = f"commit {pull.head_sha} comes from a fork; look at it and write {PREFIX} allow {pull.head_sha}"
            raise CommandRefusal(words)
        _submit(database, settings, access, change, pull, operators, f"comment:{change.id}:{fields['comment_id']}")
        return ""
    raise CommandRefusal(f"unknown command; {PREFIX} help lists all commands")


def _check_allowed(change: ChangeRequestRow, pull: ForgeChange, fields: dict[str, Any]) -> None:
    """CommandRefusal unless the member must have meant the commit that would be measured.

    Its author may push another one while the member reads. Both times are those of the forge's clock.
    """
    if not pull.is_fork:
        raise CommandRefusal("this pull request comes from this repository, so its commits are measured automatically")
    exact = f"look at it and write {PREFIX} allow {pull.head_sha}"
    if fields["sha"] is not None:
        if fields["sha"] != pull.head_sha:
            raise CommandRefusal(f"the newest commit is {pull.head_sha} by now; {exact}")
    elif change.head_at is None or change.head_at >= datetime.fromisoformat(fields["at"]):
        raise CommandRefusal(f"commit {pull.head_sha} may have been pushed after you looked; {exact}")


def _submit(
    database: Database,
    settings: Settings,
    access: ForgeAccess,
    change: ChangeRequestRow,
    pull: ForgeChange,
    operators: list[str],
    key: str,
) -> None:
    with database.session() as session:
        earlier = find_submission(session, key)
    if earlier is not None:
        submission_id = earlier.id
    else:
        try:
            request = SubmissionRequest(
                repository=access.repository,
                commits=pull.head_sha,
                base=MERGE_BASE,
                branch=pull.target,
                operators=operators,
                skip_unchanged=not operators,
            )
            submission_id = submit(database, settings, request, ORIGIN, key)
        except Problem as problem:
            if problem.status >= 500:
                raise ForgeError(problem.detail) from None
            remarks = [f"{error.message}; {error.remedy}" for error in problem.errors]
            raise CommandRefusal("; ".join(remarks) or problem.detail) from None
        except GitError as error:
            raise ForgeError(str(error)) from None
    with database.session() as session:
        messages.attach_submission(session, submission_id, change.id)
