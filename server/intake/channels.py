"""Checks and stores the channels by which people are told."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import urlsplit
from zoneinfo import available_timezones

import apprise
from pydantic import BaseModel, ConfigDict, Field, model_validator

from warpwatch.contract.words import NoticeKind
from warpwatch.db.channels import NewChannel, add_channel
from warpwatch.db.reads.code import RepositoryRow
from warpwatch.db.reads.query import Session
from warpwatch.destinations import DestinationError
from warpwatch.server.http.problems import FieldError, Problem
from warpwatch.server.intake.triage import MAX_NAME
from warpwatch.settings import Settings

WEBHOOK = "webhook"
MIN_SECRET = 16
SELF_HOSTED = ("mailto", "mailtos", "mmost", "mmosts", "matrixs", "rockets", "workflow", "workflows", "ntfys")
"""Services whose address names a host, to which the server must be allowed to connect."""
CLOUD = ("slack", "discord", "gchat", "tgram", "pagerduty", "opsgenie")
"""Services at an address of their own. apprise knows more, some of which run programs or write to this machine."""
KINDS: tuple[NoticeKind, ...] = tuple(kind for kind in NoticeKind if kind is not NoticeKind.TEST)
"""Kinds of notices that a channel sends by default."""
REFUSED = "not saved: some fields are not valid"
Hour = Annotated[int | None, Field(default=None, ge=0, le=23, description="Hour of the day in `time_zone`.")]


class ChannelRequest(BaseModel):
    """Where people of a repository are told, and of what.

    url: an address of http or https for a signed webhook, or one of apprise: `slack://…`, `workflows://…` (Teams),
    `mailto://…`, `mmost://…`, `discord://…` and so on; see https://appriseit.com.
    """

    model_config = ConfigDict(extra="forbid", str_strip_whitespace=True)
    repository: str = Field(min_length=1, max_length=100)
    name: str = Field(min_length=1, max_length=100, examples=["on-call"])
    url: str = Field(min_length=1, max_length=2000, examples=["slack://TokenA/TokenB/TokenC/#kernels"])
    secret: str | None = Field(
        default=None, min_length=MIN_SECRET, max_length=200, description="What messages of a webhook are signed with."
    )
    kinds: list[NoticeKind] = Field(default_factory=lambda: list(KINDS), min_length=1, max_length=len(NoticeKind))
    person: str | None = Field(
        default=None, min_length=1, max_length=MAX_NAME, description="Tell only of what this person watches."
    )
    quiet_from: Hour
    quiet_until: Hour
    time_zone: str = Field(default="UTC", max_length=64, examples=["Europe/Berlin"])

    @model_validator(mode="after")
    def _whole_quiet_hours(self) -> ChannelRequest:
        if (self.quiet_from is None) != (self.quiet_until is None):
            raise ValueError("quiet_from and quiet_until go together; give both, or neither")
        return self


def create_channel(session: Session, settings: Settings, repository: RepositoryRow, body: ChannelRequest) -> int:
    """The id of the new channel; Problem names every field at fault."""
    errors = []
    if body.time_zone not in available_timezones():
        remedy = "use a name such as UTC or America/Los_Angeles"
        errors.append(FieldError(field="time_zone", message="is no time zone", remedy=remedy))
    service, shown = "", ""
    try:
        service, shown = describe(settings, body.url)
    except ValueError as error:
        remedy = f"use https://…, or an address of apprise: {', '.join((*CLOUD, *SELF_HOSTED))}"
        errors.append(FieldError(field="url", message=str(error), remedy=remedy))
    if service == WEBHOOK and body.secret is None:
        remedy = f"give one of at least {MIN_SECRET} characters (openssl rand -hex 24)"
        errors.append(FieldError(field="secret", message="a webhook needs a secret", remedy=remedy))
    if errors:
        raise Problem(422, REFUSED, errors)
    new = NewChannel(
        body.name,
        service,
        body.url,
        shown,
        body.secret if service == WEBHOOK else None,
        list(dict.fromkeys(body.kinds)),
        body.person,
        body.quiet_from,
        body.quiet_until,
        body.time_zone,
    )
    return add_channel(session, repository.id, new)


def describe(settings: Settings, url: str) -> tuple[str, str]:
    """(service, address without secrets) of a channel's address; ValueError for one that cannot be used."""
    scheme = url.partition("://")[0].lower()
    if scheme in ("http", "https"):
        parts = urlsplit(url)
        if not parts.hostname or "@" in parts.netloc:
            raise ValueError("is no address of a webhook")
        _check(settings, url)
        return WEBHOOK, f"{scheme}://{parts.netloc}/…"
    if scheme not in (*SELF_HOSTED, *CLOUD):
        raise ValueError("is of a service that is not known here")
    target = open_service(url)
    if target is None:
        raise ValueError(f"lacks something that {scheme} needs")
    host = host_of_service(scheme, target)
    if host is not None:
        _check(settings, f"http://{host}")
    shown = str(target.url(privacy=True))  # type: ignore[no-untyped-call]
    return scheme, shown.partition("?")[0]


def open_service(url: str) -> apprise.NotifyBase | None:
    """The service of apprise behind an address; None where the address cannot be used."""
    # A redirect could lead to where the server may not connect.
    asset = apprise.AppriseAsset(http_redirects=False, app_id="Warpwatch", app_url="")
    return apprise.Apprise.instantiate(url, asset=asset, suppress_exceptions=True)


def host_of_service(service: str, target: apprise.NotifyBase) -> str | None:
    """The host that an address names; None for services at an address of their own."""
    if service not in SELF_HOSTED:
        return None
    return str(getattr(target, "smtp_host", "") or target.host or "") or None


def _check(settings: Settings, url: str) -> None:
    try:
        settings.destinations.check_literal(url)
    except DestinationError as error:
        raise ValueError(str(error)) from None
