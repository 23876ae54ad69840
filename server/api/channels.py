"""Channels: where people are told of changes and alarms, and what they were told."""

from __future__ import annotations

import secrets

from fastapi import APIRouter

from warpwatch.contract.words import NoticeKind
from warpwatch.db.channels import Notice, remove_channel, tell_people
from warpwatch.db.reads.channels import ChannelRow, DeliveryRow, list_channels, list_deliveries, read_channel
from warpwatch.db.reads.query import Page
from warpwatch.server.api.code import RepositoryName
from warpwatch.server.api.schedules import named_repository
from warpwatch.server.http.problems import documented, not_found
from warpwatch.server.http.service import Before, Config, Db, Limit, repository_or_404
from warpwatch.server.intake.channels import ChannelRequest, create_channel

router = APIRouter(tags=["channels"])


@router.get("/channels", responses=documented(404, 422))
def get_channels(session: Db, repository: RepositoryName, before: Before = None, limit: Limit = 50) -> Page[ChannelRow]:
    """The channels of a repository, newest first. Secrets are never shown."""
    return list_channels(session, repository_or_404(session, repository).id, before, limit)


@router.post("/channels", status_code=201, responses=documented(409, 422))
def post_channel(session: Db, settings: Config, body: ChannelRequest) -> ChannelRow:
    """Tell people from now on. A webhook gets JSON, signed in `X-Warpwatch-Signature-256` with its secret: sha256= and
    the HMAC of the body. A message is sent again, for about five hours, until it is taken."""
    repository = named_repository(session, body.repository)
    return get_channel(session, create_channel(session, settings, repository, body))


@router.get("/channels/{channel_id}", responses=documented(404, 422))
def get_channel(session: Db, channel_id: int) -> ChannelRow:
    """One channel."""
    row = read_channel(session, channel_id)
    if row is None:
        raise not_found("channel", channel_id)
    return row


@router.delete("/channels/{channel_id}", status_code=204, responses=documented(404, 422))
def delete_channel(session: Db, channel_id: int) -> None:
    """Tell nobody there any more."""
    remove_channel(session, channel_id)


@router.get("/channels/{channel_id}/deliveries", responses=documented(404, 422))
def get_deliveries(session: Db, channel_id: int, before: Before = None, limit: Limit = 50) -> Page[DeliveryRow]:
    """The messages of a channel, newest first, with what went wrong."""
    get_channel(session, channel_id)
    return list_deliveries(session, channel_id, before, limit)


@router.post("/channels/{channel_id}/test", status_code=202, responses=documented(404, 422))
def send_test_message(session: Db, settings: Config, channel_id: int) -> ChannelRow:
    """Send a message that says that the channel works, within seconds."""
    row = get_channel(session, channel_id)
    title = f"{row.repository}: the channel {row.name} works"
    fields = {"kind": NoticeKind.TEST, "repository": row.repository}
    text = f"Messages of {', '.join(row.kinds)} come here."
    link = f"{settings.server_url}/channels?repository={row.repository}"
    tell_people(session, channel_id, Notice(NoticeKind.TEST, f"test:{secrets.token_hex(8)}", title, text, link, fields))
    return row
