"""Reports on submissions, in every form that CI takes."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request, Response
from fastapi.responses import JSONResponse

from warpwatch.db.reads.callbacks import CallbackRow, list_callbacks
from warpwatch.db.reads.query import Page
from warpwatch.db.reads.reports import read_report_facts
from warpwatch.db.reads.work import read_submission
from warpwatch.server.history.commits import operator_folder
from warpwatch.server.http.problems import documented, not_found
from warpwatch.server.http.service import Config, Db
from warpwatch.server.reports.build import build_report
from warpwatch.server.reports.github import check_run
from warpwatch.server.reports.junit import junit
from warpwatch.server.reports.markdown import markdown
from warpwatch.server.reports.model import Report
from warpwatch.server.reports.sarif import sarif

router = APIRouter(tags=["reports"])
_MEDIA_TYPES = {"junit": "application/xml", "md": "text/markdown", "sarif": "application/sarif+json"}


class Reported:
    """The report on a submission, and what its forms need besides."""

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
    """How an endpoint that answers with something else than our JSON is described."""
    schema = {"type": "object"} if media_type.endswith("json") else {"type": "string"}
    return documented(404, 422) | {200: {"description": description, "content": {media_type: {"schema": schema}}}}


@router.get("/submissions/{submission_id}/report", responses=documented(404, 422))
def get_report(found: Submission) -> Report:
    """What a submission came to: only what matters, worst first, with an exit code for CI.

    It is `pending` until all is decided.
    """
    return found.report


@router.get(
    "/submissions/{submission_id}/report.junit.xml",
    responses=_form(
        _MEDIA_TYPES["junit"], "JUnit XML: wrong and slower fail, what could not run is an error, the rest is skipped."
    ),
    response_class=Response,
)
def get_junit(found: Submission) -> Response:
    """The report as JUnit XML, one suite per operator and device."""
    return _file(found, junit(found.report), "junit", "xml")


@router.get(
    "/submissions/{submission_id}/report.md",
    responses=_form(_MEDIA_TYPES["md"], "Markdown of at most 65,536 characters."),
    response_class=Response,
)
def get_markdown(found: Submission) -> Response:
    """The report as Markdown, for a comment; its first line is a marker to find the comment again."""
    return _file(found, markdown(found.report), "md", "md")


@router.get(
    "/submissions/{submission_id}/report.sarif",
    responses=_form(_MEDIA_TYPES["sarif"], "SARIF 2.1.0."),
    response_class=Response,
)
def get_sarif(found: Submission) -> Response:
    """The report as SARIF 2.1.0, for code scanning; every finding points at its operator's file."""
    content = sarif(found.report, found.repository_url, found.folder)
    return JSONResponse(content, headers=_named(found, "sarif"), media_type=_MEDIA_TYPES["sarif"])


@router.get("/submissions/{submission_id}/report.github.json", responses=documented(404, 422))
def get_check_run(found: Submission) -> dict[str, Any]:
    """The report as the body of GitHub's `POST /repos/{owner}/{repo}/check-runs`."""
    return check_run(found.report, found.folder)


@router.get("/submissions/{submission_id}/callbacks", responses=documented(404, 422))
def get_callbacks(session: Db, submission_id: int) -> Page[CallbackRow]:
    """Commit statuses that another system is or was to be told of this submission, oldest first."""
    if read_submission(session, submission_id) is None:
        raise not_found("submission", submission_id)
    return Page(list_callbacks(session, submission_id), None)


def _file(found: Reported, text: str, form: str, ending: str) -> Response:
    return Response(text, headers=_named(found, ending), media_type=f"{_MEDIA_TYPES[form]}; charset=utf-8")


def _named(found: Reported, ending: str) -> dict[str, str]:
    return {"Content-Disposition": f'inline; filename="warpwatch-{found.report.submission_id}.{ending}"'}
