"""Channels: a form to add one, the deliveries of each, and their JSON."""

from __future__ import annotations

import secrets
from functools import cache
from typing import Annotated, Any
from zoneinfo import available_timezones

from fastapi import APIRouter, Depends, Response
from fastapi.responses import RedirectResponse
from pydantic import ValidationError
from starlette.datastructures import FormData

from warpwatch.contract.words import NoticeKind
from warpwatch.db.channels import (
    ChannelRow,
    DeliveryRow,
    Notice,
    list_channels,
    list_deliveries,
    read_channel,
    remove_channel,
    tell_people,
)
from warpwatch.db.reads.query import Page
from warpwatch.db.watches import list_watchers
from warpwatch.server.http.problems import Problem, documented, not_found
from warpwatch.server.http.service import Before, Config, Db, Limit, repository_or_404
from warpwatch.server.intake.channels import KINDS, ChannelRequest, create_channel
from warpwatch.server.web.code import RepositoryName
from warpwatch.server.web.forms import form_errors, form_of
from warpwatch.server.web.render import PageScope, Scope, query
from warpwatch.server.web.schedules import named_repository
from warpwatch.server.web.tabs import RepositoryTab, repository_tab

router = APIRouter()
MEANINGS = {
    NoticeKind.CONFIRMED: "an operator became slower",
    NoticeKind.BROKEN: "an operator broke",
    NoticeKind.SETTLED: "culprit found",
    NoticeKind.FIXED: "a commit fixed or reverted it",
    NoticeKind.ALARM: "something blocks measurement",
    NoticeKind.DIGEST: "weekly digest, on Monday at 8",
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


HOURS = [(str(hour), f"{hour:02}:00") for hour in range(24)]
REGIONS = ("Africa", "America", "Antarctica", "Asia", "Atlantic", "Australia", "Europe", "Indian", "Pacific")


@cache
def zones() -> dict[str, list[str]]:
    """The time zones of each region of the world, by name."""
    names = sorted(available_timezones())
    return {region: [name for name in names if name.startswith(f"{region}/")] for region in REGIONS}


@router.post("/channels")
def add(page: PageScope, settings: Config, form: Annotated[FormData, Depends(form_of)]) -> Response:
    """Adds a channel; shows the form again with the input and a message per invalid field."""
    entered: dict[str, Any] = {name: value for name, value in form.items() if str(value).strip()}
    entered["kinds"] = form.getlist("kinds")
    page.repository = repository_or_404(page.session, str(entered.get("repository", "")))
    try:
        body = ChannelRequest.model_validate(entered)
        create_channel(page.session, settings, page.repository, body)
    except (ValidationError, Problem) as error:
        return show(page, entered, form_errors(error))
    return RedirectResponse(repository_tab(body.repository, RepositoryTab.NOTIFICATIONS), 303)


@router.post("/channels/{channel_id}/remove")
def remove(page: PageScope, channel_id: int) -> Response:
    row = read_channel(page.session, channel_id)
    if row is None:
        raise not_found("channel", channel_id)
    remove_channel(page.session, channel_id)
    return RedirectResponse(repository_tab(row.repository, RepositoryTab.NOTIFICATIONS), 303)


@router.post("/channels/{channel_id}/test")
def send_test(page: PageScope, settings: Config, channel_id: int) -> Response:
    row = send_test_message(page.session, settings, channel_id)
    return RedirectResponse(repository_tab(row.repository, RepositoryTab.NOTIFICATIONS) + f"#channel-{channel_id}", 303)


def show(
    page: Scope,
    entered: dict[str, Any] | None = None,
    errors: dict[str, str] | None = None,
    before: int | None = None,
) -> Response:
    """Every channel of the repository with its newest messages, and the form."""
    assert page.repository is not None
    rows = list_channels(page.session, page.repository.id, before, limit=20)
    return page.page(
        "settings/notifications.html",
        json=query("/channels", repository=page.repository.name, before=before),
        status=422 if errors else 200,
        rows=rows,
        before=before,
        deliveries={row.id: list_deliveries(page.session, row.id, limit=10).items for row in rows.items},
        entered=BLANK | (entered or {}),
        errors=errors or {},
        kinds=MEANINGS,
        people=[(name, name) for name in list_watchers(page.session, page.repository.id)],
        hours=HOURS,
        zones=zones(),
    )


api = APIRouter(tags=["channels"])


@api.get("/channels", responses=documented(404, 422))
def get_channels(session: Db, repository: RepositoryName, before: Before = None, limit: Limit = 50) -> Page[ChannelRow]:
    """The channels of a repository, newest first. Secrets are never shown."""
    return list_channels(session, repository_or_404(session, repository).id, before, limit)


@api.post("/channels", status_code=201, responses=documented(409, 422))
def post_channel(session: Db, settings: Config, body: ChannelRequest) -> ChannelRow:
    """Create a channel, which tells people from now on. A webhook gets JSON, signed in `X-Warpwatch-Signature-256`
    with its secret: sha256= and the HMAC of the body. A message is sent again, for about five hours, until it is
    taken."""
    repository = named_repository(session, body.repository)
    return get_channel(session, create_channel(session, settings, repository, body))


@api.get("/channels/{channel_id}", responses=documented(404, 422))
def get_channel(session: Db, channel_id: int) -> ChannelRow:
    """One channel."""
    row = read_channel(session, channel_id)
    if row is None:
        raise not_found("channel", channel_id)
    return row


@api.delete("/channels/{channel_id}", status_code=204, responses=documented(404, 422))
def delete_channel(session: Db, channel_id: int) -> None:
    """Delete a channel."""
    remove_channel(session, channel_id)


@api.get("/channels/{channel_id}/deliveries", responses=documented(404, 422))
def get_deliveries(session: Db, channel_id: int, before: Before = None, limit: Limit = 50) -> Page[DeliveryRow]:
    """The messages of a channel, newest first, with what went wrong."""
    get_channel(session, channel_id)
    return list_deliveries(session, channel_id, before, limit)


@api.post("/channels/{channel_id}/test", status_code=202, responses=documented(404, 422))
def send_test_message(session: Db, settings: Config, channel_id: int) -> ChannelRow:
    """Send a message that says that the channel works, within seconds."""
    row = get_channel(session, channel_id)
    title = f"{row.repository}: the channel {row.name} works"
    fields = {"kind": NoticeKind.TEST, "repository": row.repository}
    text = f"Messages of {', '.join(row.kinds)} come here."
    link = settings.server_url + repository_tab(row.repository, RepositoryTab.NOTIFICATIONS)
    tell_people(session, channel_id, Notice(NoticeKind.TEST, f"test:{secrets.token_hex(8)}", title, text, link, fields))
    return row
