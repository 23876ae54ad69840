"""Judgements of patches on hidden cases, their receipts, and the page that verifies a receipt."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import APIRouter, Form, Request, Response
from pydantic import BaseModel, ConfigDict, Field

from warpwatch.db.judgements import JudgementRow, LeaderRow, list_judgements, list_leaders, read_judgement
from warpwatch.db.reads.query import Page
from warpwatch.server.http.access import CI_PREFIX, Asking, require_repository
from warpwatch.server.http.brief import briefly, documented_brief
from warpwatch.server.http.git_threads import in_git_thread
from warpwatch.server.http.problems import FieldError, Problem, documented, not_found
from warpwatch.server.http.service import Before, Config, Db, Limit, database_of, require_schema
from warpwatch.server.intake.judgement_requests import JudgementRequest, read_rules, take_judgement
from warpwatch.server.receipts import MOST_BYTES, ReceiptError, public_keys, verify_receipt
from warpwatch.server.reports.formats import JUDGEMENT_WORDS
from warpwatch.server.web.brief import brief_judgement
from warpwatch.server.web.render import PageScope

router = APIRouter()
api = APIRouter(tags=["judgements"])


class ReceiptText(BaseModel):
    """A receipt, a JWS in its compact form."""

    model_config = ConfigDict(extra="forbid")
    receipt: str = Field(min_length=1, max_length=MOST_BYTES)


@dataclass(frozen=True, slots=True)
class VerifiedReceipt:
    """What a receipt of this server states."""

    statement: dict[str, Any]


@api.post(
    "/judgements", status_code=201, responses=documented(403, 409, 413, 422, 429, 502, 507) | documented_brief(201)
)
@briefly(brief_judgement)
@in_git_thread(lambda arguments: arguments["body"].repository)
def create_judgement(
    request: Request, body: JudgementRequest, settings: Config, caller: Asking, response: Response
) -> JudgementRow:
    """Have a patch judged on hidden cases and seeds, against the base that the server's owner chose.

    The verdict comes with a receipt. Of public cases it tells everything, of hidden ones one word and a speed-up that
    is rounded down.
    """
    require_schema(request)
    require_repository(caller, body.repository)
    database = database_of(request)
    # A CI job is named after its branch as well, of which there may be any number.
    client = caller.name if caller.repositories is None else f"{CI_PREFIX}{', '.join(sorted(caller.repositories))}"
    number = take_judgement(database, settings, body, client, request.app.state.sources)
    response.headers["Location"] = f"/api/v1/judgements/{number}"
    with database.session() as session:
        return get_judgement(session, number)


@api.get("/judgements", responses=documented(422))
def get_judgements(session: Db, before: Before = None, limit: Limit = 50) -> Page[JudgementRow]:
    """Judgements, newest first."""
    return list_judgements(session, before, limit)


@api.get("/judgements/leaders", responses=documented(409, 503))
def get_leaders(session: Db, settings: Config) -> list[LeaderRow]:
    """The best judgement of each client by operator and device, if the server's owner shows them."""
    if not read_rules(settings).leaderboard:
        raise Problem(409, "this server shows no leaderboard; its owner sets `leaderboard = true` in its rules")
    return list_leaders(session)


@api.get("/judgements/{judgement_id}", responses=documented(404, 422) | documented_brief())
@briefly(brief_judgement)
def get_judgement(session: Db, judgement_id: int) -> JudgementRow:
    """One judgement; its verdict and its receipt once it has ended."""
    row = read_judgement(session, judgement_id)
    if row is None:
        raise not_found("judgement", judgement_id)
    return row


@api.get("/receipts/keys", responses=documented())
def get_keys(settings: Config) -> dict[str, Any]:
    """The public key of this server's receipts, as a JWKS (RFC 7517)."""
    return public_keys(settings.home)


@api.post("/receipts/verify", responses=documented(413, 422))
def verify(settings: Config, body: ReceiptText) -> VerifiedReceipt:
    """What a receipt states, if this server has signed exactly this."""
    try:
        return VerifiedReceipt(verify_receipt(body.receipt, public_keys(settings.home)))
    except ReceiptError as error:
        remedy = "send the receipt as the server that is its `iss` gave it, to that server"
        raise Problem(422, "not verified", [FieldError(field="receipt", message=str(error), remedy=remedy)]) from error


@router.get("/runs/judgements")
def judgements(page: PageScope, settings: Config, before: Before = None) -> Response:
    """Judgements, newest first, and the form that verifies a receipt."""
    return _page(page, settings, before)


@router.post("/receipts/verify")
def verify_form(
    page: PageScope, settings: Config, receipt: Annotated[str, Form(min_length=1, max_length=MOST_BYTES)]
) -> Response:
    try:
        statement = verify_receipt(receipt, public_keys(settings.home))
    except ReceiptError as error:
        return _page(page, settings, None, error=str(error), receipt=receipt)
    return _page(page, settings, None, statement=json.dumps(statement, indent=2), verdict=statement.get("verdict"))


def _page(page: PageScope, settings: Config, before: int | None, **more: Any) -> Response:
    rows = list_judgements(page.session, before)
    try:
        leaders = list_leaders(page.session) if read_rules(settings).leaderboard else []
    except Problem:
        leaders = []
    words = {str(verdict): text for verdict, text in JUDGEMENT_WORDS.items()}
    given = {"error": None, "receipt": "", "statement": None, "verdict": None} | more
    return page.page(
        "judgements.html", json="/judgements", rows=rows, before=before, words=words, leaders=leaders, **given
    )
