"""What is kept for how long, and deleting submissions and branches."""

from __future__ import annotations

from fastapi import APIRouter

from warpwatch.contract.words import RetentionKind
from warpwatch.db.deletion import order_branch_deletion, order_submission_deletion
from warpwatch.db.reads.query import Page
from warpwatch.server.http.problems import documented
from warpwatch.server.http.service import Db, repository_or_404
from warpwatch.server.intake.retention import RetentionRow, RetentionSettings, change_retention, list_retention

router = APIRouter(tags=["keeping"])


@router.get("/repositories/{name}/retention", responses=documented(404, 422))
def get_retention(session: Db, name: str) -> Page[RetentionRow]:
    """How many days each kind of data is kept, and what the next round deletes. The server applies the rules every
    hour. Medians, intervals, statuses and verdicts are kept for good, and so are the traces that a regression shows."""
    return Page(list_retention(session, repository_or_404(session, name).id), None)


@router.patch("/repositories/{name}/retention", responses=documented(404, 422))
def set_retention(session: Db, name: str, body: RetentionSettings) -> Page[RetentionRow]:
    """Set how many days each kind of data is kept; null keeps it for good."""
    repository = repository_or_404(session, name)
    change_retention(session, repository.id, body)
    return get_retention(session, name)


@router.post("/repositories/{name}/retention/preview", responses=documented(404, 422))
def preview_retention(session: Db, name: str, body: RetentionSettings) -> Page[RetentionRow]:
    """What would be deleted with these days. Nothing is changed."""
    days = {RetentionKind(kind): getattr(body, kind) for kind in body.model_fields_set}
    return Page(list_retention(session, repository_or_404(session, name).id, days), None)


@router.delete("/submissions/{submission_id}", status_code=204, responses=documented(404, 409, 422))
def delete_submission(session: Db, submission_id: int) -> None:
    """Delete a submission with its jobs, results and traces. It leaves the lists at once; its rows go in the
    background. 409 where a verdict rests on its results."""
    order_submission_deletion(session, submission_id)


@router.delete("/branches", status_code=204, responses=documented(404, 409, 422))
def delete_branch(session: Db, repository: str, name: str) -> None:
    """Delete the commits that only this branch holds, with their results. The rows go in the background. 409 for the
    watched branch. A branch that git still has comes back with its next submission."""
    order_branch_deletion(session, repository_or_404(session, repository).id, name)
