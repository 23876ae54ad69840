"""Reports on submissions, in the formats that CI reads."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request, Response
from fastapi.responses import JSONResponse

from warpwatch.db.callbacks import CallbackRow, list_callbacks
from warpwatch.db.reads.query import Page
from warpwatch.db.reads.reports import list_reported_series, read_report_facts
from warpwatch.db.reads.work import read_submission
from warpwatch.server.history.commits import operator_folder
from warpwatch.server.http.brief import briefly, documented_brief
from warpwatch.server.http.downloads import content_disposition
from warpwatch.server.http.problems import documented, not_found
from warpwatch.server.http.service import Config, Db
from warpwatch.server.reports.build import build_report
from warpwatch.server.reports.github import check_run
from warpwatch.server.reports.junit import junit
from warpwatch.server.reports.markdown import markdown
from warpwatch.server.reports.model import Report
from warpwatch.server.reports.sarif import sarif
from warpwatch.server.web.brief import brief_report

api = APIRouter(tags=["reports"])
_MEDIA_TYPES = {"junit": "application/xml", "md": "text/markdown", "sarif": "application/sarif+json"}


class Reported:
    """The report on a submission, with the values that its output formats need."""

    def __init__(self, request: Request, session: Db, settings: Config, submission_id: int) -> None:
        facts = read_report_facts(session, submission_id)
        if facts is None:
            raise not_found("submission", submission_id)
        self.report = build_report(facts, str(request.base_url).rstrip("/"))
        self.repository_url = facts.repository_url
        self._settings = settings

    @property
    def folder(self) -> str:
        return operator_folder(self._settings, self.repository_url, self.report.head_sha)


Submission = Annotated[Reported, Depends(Reported, scope="function")]


def _form(media_type: str, description: str) -> dict[int | str, dict[str, Any]]:
    """OpenAPI description of an endpoint that returns another format than JSON models."""
    schema = {"type": "object"} if media_type.endswith("json") else {"type": "string"}
    return documented(404, 422) | {200: {"description": description, "content": {media_type: {"schema": schema}}}}


@api.get("/submissions/{submission_id}/report", responses=documented(404, 422) | documented_brief())
@briefly(brief_report)
def get_report(reported: Submission) -> Report:
    """The findings of a submission, worst first, with an exit code for CI. `pending` until every verdict is made."""
    return reported.report


@api.get(
    "/submissions/{submission_id}/report.junit.xml",
    responses=_form(
        _MEDIA_TYPES["junit"],
        "JUnit XML: wrong and slower are failures, failed and not run are errors, other findings are skipped.",
    ),
    response_class=Response,
)
def get_junit(reported: Submission, session: Db) -> Response:
    """The report as JUnit XML: one suite per operator and device, one test per variant and case."""
    measured = list_reported_series(session, reported.report.submission_id)
    return _file(reported, junit(reported.report, measured), "junit", "xml")


@api.get(
    "/submissions/{submission_id}/report.md",
    responses=_form(_MEDIA_TYPES["md"], "Markdown of at most 65,536 characters."),
    response_class=Response,
)
def get_markdown(reported: Submission) -> Response:
    """The report as Markdown, for a comment; its first line marks the comment, so that CI can replace it."""
    return _file(reported, markdown(reported.report), "md", "md")


@api.get(
    "/submissions/{submission_id}/report.sarif",
    responses=_form(_MEDIA_TYPES["sarif"], "SARIF 2.1.0."),
    response_class=Response,
)
def get_sarif(reported: Submission) -> Response:
    """The report as SARIF 2.1.0, for code scanning; every finding points at its operator's file."""
    content = sarif(reported.report, reported.repository_url, reported.folder)
    return JSONResponse(content, headers=_named(reported, "sarif"), media_type=_MEDIA_TYPES["sarif"])


@api.get("/submissions/{submission_id}/report.github.json", responses=documented(404, 422))
def get_check_run(reported: Submission) -> dict[str, Any]:
    """The report as the body of GitHub's `POST /repos/{owner}/{repo}/check-runs`."""
    return check_run(reported.report, reported.folder)


@api.get("/submissions/{submission_id}/callbacks", responses=documented(404, 422))
def get_callbacks(session: Db, submission_id: int) -> Page[CallbackRow]:
    """Commit statuses that were or will be sent for this submission, oldest first."""
    if read_submission(session, submission_id) is None:
        raise not_found("submission", submission_id)
    return Page(list_callbacks(session, submission_id), None)


def _file(reported: Reported, text: str, form: str, ending: str) -> Response:
    return Response(text, headers=_named(reported, ending), media_type=f"{_MEDIA_TYPES[form]}; charset=utf-8")


def _named(reported: Reported, ending: str) -> dict[str, str]:
    return content_disposition(f"warpwatch-{reported.report.submission_id}.{ending}", "inline")
