"""Channels: a form to add one, and what each told."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Response
from fastapi.responses import RedirectResponse
from pydantic import ValidationError
from starlette.datastructures import FormData

from warpwatch.contract.words import NoticeKind
from warpwatch.db.channels import remove_channel
from warpwatch.db.reads.channels import list_channels, list_deliveries, read_channel
from warpwatch.server.api.channels import send_test_message
from warpwatch.server.http.problems import Problem, not_found
from warpwatch.server.http.service import Before, Config, repository_or_404
from warpwatch.server.intake.channels import KINDS, ChannelRequest, create_channel
from warpwatch.server.pages.forms import form_errors
from warpwatch.server.pages.render import Page, query
from warpwatch.server.pages.submissions import form_of

router = APIRouter()
MEANINGS = {
    NoticeKind.CONFIRMED: "an operator became slower",
    NoticeKind.BROKEN: "an operator broke",
    NoticeKind.SETTLED: "the commit behind it is known",
    NoticeKind.FIXED: "a commit fixed it",
    NoticeKind.ALARM: "something blocks measurement",
    NoticeKind.DIGEST: "what the week brought, on Monday at 8",
}
BLANK: dict[str, Any] = {
    "name": "",
    "url": "",
    "person": "",
    "quiet_from": "",
    "quiet_until": "",
    "time_zone": "UTC",
    "kinds": list(KINDS),
}


@router.get("/channels")
def channels(page: Page, before: Before = None) -> Response:
    """Every channel of the repository with its newest messages, and the form."""
    return _show(page, before=before)


@router.post("/channels")
def add(page: Page, settings: Config, form: Annotated[FormData, Depends(form_of)]) -> Response:
    """Adds a channel; shows the form again with the input and a message per invalid field."""
    entered: dict[str, Any] = {name: value for name, value in form.items() if str(value).strip()}
    entered["kinds"] = form.getlist("kinds")
    page.repository = repository_or_404(page.session, str(entered.get("repository", "")))
    try:
        body = ChannelRequest.model_validate(entered)
        create_channel(page.session, settings, page.repository, body)
    except (ValidationError, Problem) as error:
        return _show(page, entered, form_errors(error))
    return RedirectResponse(query("/channels", repository=body.repository), 303)


@router.post("/channels/{channel_id}/remove")
def remove(page: Page, channel_id: int) -> Response:
    row = read_channel(page.session, channel_id)
    if row is None:
        raise not_found("channel", channel_id)
    remove_channel(page.session, channel_id)
    return RedirectResponse(query("/channels", repository=row.repository), 303)


@router.post("/channels/{channel_id}/test")
def send_test(page: Page, settings: Config, channel_id: int) -> Response:
    row = send_test_message(page.session, settings, channel_id)
    return RedirectResponse(query("/channels", repository=row.repository) + f"#channel-{channel_id}", 303)


def _show(
    page: Page, entered: dict[str, Any] | None = None, errors: dict[str, str] | None = None, before: int | None = None
) -> Response:
    if page.repository is None:
        return page.page("welcome.html")
    rows = list_channels(page.session, page.repository.id, before, limit=20)
    return page.page(
        "channels.html",
        json=query("/channels", repository=page.repository.name, before=before),
        status=422 if errors else 200,
        rows=rows,
        before=before,
        deliveries={row.id: list_deliveries(page.session, row.id, limit=10).items for row in rows.items},
        entered=BLANK | (entered or {}),
        errors=errors or {},
        kinds=MEANINGS,
    )
