"""Keeps code hosts informed, in the background: check runs, the comment of each pull request, issues; and does what
members command in comments."""

from __future__ import annotations

from warpwatch.contract.words import ForgeKind, ForgeMessageKind, ForgeState
from warpwatch.db import forge as messages
from warpwatch.db.database import Database
from warpwatch.db.forge import (
    CLOSED,
    FAILING,
    FINAL,
    OPEN,
    DueForgeMessage,
    ForgeAccess,
    list_change_submissions,
    list_mended,
    list_unfiled,
    read_access,
    read_change,
    read_operators_of,
)
from warpwatch.db.reads.devices import list_device_names
from warpwatch.db.reads.query import Session
from warpwatch.db.reads.reports import read_report_facts
from warpwatch.db.regressions import read_regression
from warpwatch.server.forge.client import ForgeClient, ForgeError
from warpwatch.server.forge.github import GithubApp, GithubClient
from warpwatch.server.forge.gitlab import GitlabClient
from warpwatch.server.history.commits import operator_folder
from warpwatch.server.intake.commands import run_command
from warpwatch.server.reports.build import build_report
from warpwatch.server.reports.comments import change_comment
from warpwatch.server.reports.github import NAME
from warpwatch.server.reports.issues import issue_marker, issue_text, issue_title
from warpwatch.server.reports.markdown import MARKER
from warpwatch.server.reports.open_reports import OpenReports
from warpwatch.server.threads.notifier import FIRST_PAUSE_SECONDS, Notifier
from warpwatch.server.threads.posting import PostAttempt
from warpwatch.settings import Settings

POLL_SECONDS = 1.0
PARALLEL = 4
"""Messages at once, at most one of each repository."""
_MOST_NAMES = 100


class ForgeNotifier(Notifier[DueForgeMessage]):
    """A thread that notices what the forges are to be told, and tells it."""

    def __init__(self, settings: Settings, database: Database, *, first_pause: float = FIRST_PAUSE_SECONDS) -> None:
        super().__init__(
            "forge",
            "messages to forges",
            "forge_messages",
            settings,
            database,
            poll_seconds=POLL_SECONDS,
            parallel=PARALLEL,
            first_pause=first_pause,
        )
        self._reports = OpenReports(settings.server_url)
        self._app = GithubApp(settings, self._poster)

    def sweep(self) -> None:
        """One round: submissions that came to their end, regressions to file or to close, then what is due."""
        with self._database.session() as session:
            for repository_id, submission_id in messages.list_open(session):
                report = self._reports.read_news(session, submission_id)
                if report is not None:
                    state = FAILING if report.pending else FINAL
                    messages.queue_check_run(session, repository_id, submission_id, state)
        with self._database.session() as session:
            for row in list_unfiled(session):
                messages.queue_issue(session, row.repository_id, row.regression_id, OPEN)
            for row in list_mended(session):
                messages.queue_issue(session, row.repository_id, row.regression_id, CLOSED)
        self.send_due()

    def claim(self, session: Session) -> DueForgeMessage | None:
        return messages.claim_message(session)

    def describe(self, due: DueForgeMessage) -> str:
        return f"the message {due.id} ({due.subject}) to the forge of repository {due.repository_id}"

    def send(self, due: DueForgeMessage) -> PostAttempt:
        with self._database.session() as session:
            access = read_access(session, due.repository_id)
        if access is None:
            return PostAttempt("the repository is not linked any more", is_final=True)
        try:
            remote_id = self._tell(due, access, self._client(access))
        except ForgeError as error:
            self._record_state(due, error.state, error.trouble, error.pause_seconds)
            return PostAttempt(error.trouble, error.is_final, error.pause_seconds)
        self._record_state(due, ForgeState.LINKED, "", 0)
        if remote_id is not None:
            with self._database.session() as session:
                messages.record_remote_id(session, due.id, remote_id)
        return PostAttempt()

    def _record_state(self, due: DueForgeMessage, state: ForgeState | None, trouble: str, pause: float) -> None:
        if state is None and not pause:
            return
        with self._database.session() as session:
            messages.set_link_state(session, due.repository_id, state or ForgeState.LINKED, trouble, pause)

    def _client(self, access: ForgeAccess) -> ForgeClient:
        if access.forge == ForgeKind.GITHUB:
            return GithubClient(self._app, access.project)
        if access.api_url is None or access.token is None:
            raise ForgeError("the link has no token", ForgeState.REFUSED, is_final=True)
        return GitlabClient(self._poster, access.api_url, access.project, access.token)

    def _tell(self, due: DueForgeMessage, access: ForgeAccess, client: ForgeClient) -> str | None:
        """Sends one message; what the forge calls the thing that it is about."""
        match due.kind:
            case ForgeMessageKind.LINK:
                client.check_link()
            case ForgeMessageKind.CHECK_RUN:
                return self._send_check_run(due, access, client)
            case ForgeMessageKind.COMMENT:
                return self._put_comment(due, access, client)
            case ForgeMessageKind.ISSUE:
                return self._put_issue(due, client)
            case ForgeMessageKind.REACTION:
                client.react(due.fields["number"], due.fields["comment_id"], is_accepted=due.fields["is_accepted"])
            case ForgeMessageKind.COMMAND:
                run_command(self._database, self._settings, access, client, due.fields)
        return None

    def _send_check_run(self, due: DueForgeMessage, access: ForgeAccess, client: ForgeClient) -> str | None:
        with self._database.session() as session:
            facts = read_report_facts(session, due.submission_id or 0)
            operators = read_operators_of(session, due.submission_id or 0)
        if facts is None or facts.head_sha is None:
            return None
        report = build_report(facts, self._settings.server_url)
        # What was measured in part must not stand for the whole.
        name = f"{NAME}: {', '.join(operators)}"[:_MOST_NAMES] if operators else NAME
        folder = operator_folder(self._settings, access.repository_url, report.head_sha)
        return client.send_check_run(report, name, due.state, folder, due.remote_id)

    def _put_comment(self, due: DueForgeMessage, access: ForgeAccess, client: ForgeClient) -> str | None:
        with self._database.session() as session:
            change = read_change(session, due.change_id or 0)
            if change is None:
                return None
            reports = []
            for row in list_change_submissions(session, change.id):
                facts = read_report_facts(session, row.id)
                if facts is not None:
                    reports.append((build_report(facts, self._settings.server_url), row.operators))
        text = change_comment(change, reports, access.repository, self._settings.server_url)
        return client.put_comment(change.number, due.remote_id, MARKER, text)

    def _put_issue(self, due: DueForgeMessage, client: ForgeClient) -> str | None:
        with self._database.session() as session:
            detail = read_regression(session, due.regression_id or 0)
            names = list_device_names(session)
        if detail is None:
            return None
        url = self._settings.server_url
        name = names[detail.regression.device_key]
        marker, title = issue_marker(url, detail.regression.id), issue_title(detail.regression, name)
        text = issue_text(detail, url, name)
        return client.put_issue(due.remote_id, marker, title, text, is_open=due.state == OPEN)
