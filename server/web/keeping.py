"""Retention: how long the measurements of a repository are kept, and the deletion of branches and submissions."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Response
from fastapi.responses import RedirectResponse
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.datastructures import FormData

from warpwatch.contract.words import RetentionKind
from warpwatch.db.deletion import order_branch_deletion, order_submission_deletion
from warpwatch.db.keeping import RetentionRule, list_rules, preview_rule, set_rules
from warpwatch.db.reads.query import Page, Session
from warpwatch.server.http.problems import documented
from warpwatch.server.http.service import Db, repository_or_404
from warpwatch.server.web.forms import form_errors, form_of
from warpwatch.server.web.render import PageScope, Scope
from warpwatch.server.web.tabs import RepositoryTab, repository_tab

Days = Annotated[int | None, Field(default=None, ge=1, le=36_500, description="Days; null keeps it for good.")]


class RetentionSettings(BaseModel):
    """Days that each kind of data is kept. A kind that is left out stays as it is."""

    model_config = ConfigDict(extra="forbid")
    samples: Days
    traces: Days
    logs: Days
    builds: Days
    mirror: Days


@dataclass(frozen=True, slots=True)
class RetentionRow:
    """One kind of data. days: null where it is kept for good. due_rows, due_bytes: what the next round would delete.

    deleted, freed_bytes: what was deleted altogether.
    """

    kind: RetentionKind
    days: int | None
    run_at: datetime | None
    due_rows: int
    due_bytes: int
    deleted: int
    freed_bytes: int


def change_retention(session: Session, repository_id: int, body: RetentionSettings) -> None:
    set_rules(session, repository_id, {RetentionKind(kind): getattr(body, kind) for kind in body.model_fields_set})


def list_retention(
    session: Session, repository_id: int, preview: dict[RetentionKind, int | None] | None = None
) -> list[RetentionRow]:
    """Every kind with its rule; with `preview`, as if these days were set."""
    rules = {RetentionKind(rule.kind): rule for rule in list_rules(session, repository_id)}
    for kind, days in (preview or {}).items():
        if days is None:
            rules.pop(kind, None)
        else:
            rules[kind] = RetentionRule(repository_id, kind, days, 0, None, 0, 0)
    rows = []
    for kind in RetentionKind:
        rule = rules.get(kind)
        if rule is None:
            rows.append(RetentionRow(kind, None, None, 0, 0, 0, 0))
            continue
        due = preview_rule(session, rule)
        rows.append(RetentionRow(kind, rule.days, rule.run_at, due.rows, due.bytes, rule.deleted, rule.freed_bytes))
    return rows


router = APIRouter()
_HINTS = {
    RetentionKind.SAMPLES: "Every single timing. Medians, intervals and noise stay.",
    RetentionKind.TRACES: "Chrome traces of profiles. Those that a regression shows stay.",
    RetentionKind.LOGS: "Logs of runs. Statuses and messages stay.",
    RetentionKind.BUILDS: "Logs of compilers. Registers, spills and fingerprints of machine code stay.",
    RetentionKind.MIRROR: "The server's clone, when nothing fetched it for so long; it is cloned again when needed.",
}


@router.post("/repositories/{name}/retention")
def set_retention_form(page: PageScope, name: str, form: Annotated[FormData, Depends(form_of)]) -> Response:
    """Saves the days, or shows what they would delete; an empty field keeps that kind for good."""
    entered = {kind: str(form.get(kind, "")).strip() for kind in RetentionKind}
    page.moved(name)
    try:
        body = RetentionSettings.model_validate({kind: text or None for kind, text in entered.items()})
    except ValidationError as error:
        return show(page, entered, form_errors(error))
    if "preview" in form:
        return show(page, entered)
    change_retention(page.session, repository_or_404(page.session, name).id, body)
    return RedirectResponse(repository_tab(name, RepositoryTab.RETENTION), 303)


def show(
    page: Scope, entered: dict[RetentionKind, str] | None = None, errors: dict[str, str] | None = None
) -> Response:
    """The days that each kind of data of the repository is kept, and what the next clean-up deletes."""
    assert page.repository is not None
    days: dict[RetentionKind, Any] = {}
    if entered is not None and not errors:
        days = {kind: int(text) if text else None for kind, text in entered.items()}
    rows = list_retention(page.session, page.repository.id, days)
    return page.page(
        "settings/retention.html",
        json=f"/repositories/{page.repository.name}/retention",
        status=422 if errors else 200,
        rows=rows,
        entered=entered or {row.kind: row.days or "" for row in rows},
        hints=_HINTS,
        is_preview=bool(entered) and not errors,
        errors=errors or {},
    )


api = APIRouter(tags=["keeping"])


@api.get("/repositories/{name}/retention", responses=documented(404, 422))
def get_retention(session: Db, name: str) -> Page[RetentionRow]:
    """How many days each kind of data is kept, and what the next round deletes. The server applies the rules every
    hour. Medians, intervals, statuses and verdicts are kept for good, and so are the traces that a regression shows."""
    return Page(list_retention(session, repository_or_404(session, name).id), None)


@api.patch("/repositories/{name}/retention", responses=documented(404, 422))
def set_retention(session: Db, name: str, body: RetentionSettings) -> Page[RetentionRow]:
    """Set how many days each kind of data is kept; null keeps it for good."""
    repository = repository_or_404(session, name)
    change_retention(session, repository.id, body)
    return get_retention(session, name)


@api.post("/repositories/{name}/retention/preview", responses=documented(404, 422))
def preview_retention(session: Db, name: str, body: RetentionSettings) -> Page[RetentionRow]:
    """Preview the deletion of old data with these days. Nothing is changed."""
    days = {RetentionKind(kind): getattr(body, kind) for kind in body.model_fields_set}
    return Page(list_retention(session, repository_or_404(session, name).id, days), None)


@api.delete("/submissions/{submission_id}", status_code=204, responses=documented(404, 409, 422))
def delete_submission(session: Db, submission_id: int) -> None:
    """Delete a submission with its jobs, results and traces. It leaves the lists at once; its rows go in the
    background. 409 where a verdict rests on its results."""
    order_submission_deletion(session, submission_id)


@api.delete("/branches", status_code=204, responses=documented(404, 409, 422))
def delete_branch(session: Db, repository: str, name: str) -> None:
    """Delete the commits that only this branch holds, with their results. The rows go in the background. 409 for the
    watched branch. A branch that git still has comes back with its next submission."""
    order_branch_deletion(session, repository_or_404(session, repository).id, name)
