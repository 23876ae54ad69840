"""Devices with their workers and keys, the cards of a device, and their JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Annotated, Literal

from fastapi import APIRouter, Depends, Query, Request, Response
from fastapi.responses import RedirectResponse
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.datastructures import FormData

from warpwatch import __version__
from warpwatch.db import registry
from warpwatch.db.cards import CardRow, OffsetRow, list_card_offsets, list_cards
from warpwatch.db.errors import EngineError, StateError
from warpwatch.db.reads.devices import (
    DeviceRow,
    EnvironmentView,
    HealthRow,
    WorkerRow,
    find_environment,
    list_devices,
    list_environments,
    list_workers,
    read_health,
)
from warpwatch.db.reads.occupancy import list_device_runs, list_timed_runs
from warpwatch.db.reads.query import Page, Session
from warpwatch.db.worker_keys import add_key, list_keys, revoke_key
from warpwatch.server.figures.gantt import DAY, busy_seconds, strip_svg
from warpwatch.server.figures.run_times import device_times
from warpwatch.server.http.brief import briefly, documented_brief
from warpwatch.server.http.problems import documented, not_found
from warpwatch.server.http.service import Config, Db, database_of, device_or_404, require_schema
from warpwatch.server.verdicts.cards import CardOffset, pool_offset
from warpwatch.server.web.brief import brief_devices
from warpwatch.server.web.forms import form_of
from warpwatch.server.web.render import PageScope, Scope
from warpwatch.server.web.tabs import DevicesTab, devices_tab
from warpwatch.server.web.worker_keys import NewKey
from warpwatch.settings import Settings


@dataclass(frozen=True, slots=True)
class CardLine:
    """A card. facts: board, VBIOS, slot, host and the like. base: the card that the offset refers to, the first one of
    the device; None for that one. offset: over all series that both measured at the same commits, None for too few; it
    is agreed where it is in every operator."""

    id: int
    name: str
    device_key: str
    key: str
    facts: dict[str, str]
    created_at: datetime
    last_seen_at: datetime | None
    base: str | None
    offset: CardOffset | None


def list_card_lines(session: Session, device_id: int | None = None) -> list[CardLine]:
    """The cards of a device, or of all, in the order in which they came."""
    cards = list_cards(session, device_id)
    offsets = {id_: list_card_offsets(session, id_) for id_ in dict.fromkeys(card.device_id for card in cards)}
    firsts: dict[int, CardRow] = {}
    return [_line(card, firsts.setdefault(card.device_id, card), offsets[card.device_id]) for card in cards]


def _line(card: CardRow, first: CardRow, offsets: Sequence[OffsetRow]) -> CardLine:
    rows = [row for row in offsets if (row.card_id, row.other_card_id) == (card.id, first.id)]
    offset = pool_offset([log for row in rows for log in row.logs], is_agreed=all(row.is_agreed for row in rows))
    base = first.name if card.id != first.id else None
    seen = card.created_at, card.last_seen_at
    return CardLine(card.id, card.name, card.device_key, card.key, card.facts, *seen, base, offset)


router = APIRouter()


@router.post("/devices/keys")
def add_worker_key(page: PageScope, form: Annotated[FormData, Depends(form_of)]) -> Response:
    """Makes a key and shows it this once; shows the form again with a message where the name cannot be used."""
    name = str(form.get("name", "")).strip()
    try:
        key = add_key(page.session, NewKey.model_validate({"name": name}).name)
    except ValidationError:
        return show_keys(page, name=name, error="Use letters, digits, dots, dashes and underscores, at most 60.")
    except StateError as error:
        return show_keys(page, name=name, error=str(error))
    return show_keys(page, new_key=key)


@router.post("/devices/keys/{name}/revoke")
def revoke_worker_key(page: PageScope, name: str) -> Response:
    """Revokes a key and returns to the list."""
    revoke_key(page.session, name)
    return RedirectResponse(devices_tab(DevicesTab.KEYS), 303)


def show_keys(
    page: Scope, before: int | None = None, name: str = "", error: str | None = None, new_key: str | None = None
) -> Response:
    """The keys of workers, newest first, and the form."""
    return page.page(
        "settings/keys.html",
        json="/worker-keys",
        status=422 if error else 200,
        keys=list_keys(page.session, before),
        before=before,
        entered={"name": name},
        errors={"name": error} if error else {},
        new_key=new_key,
    )


def show(page: Scope, settings: Settings) -> Response:
    """Every device with its workers, environments and measured ceilings."""
    rows = list_devices(page.session, settings.lease_seconds)
    recently = datetime.now(UTC) - timedelta(days=1)
    workers = [
        row
        for row in list_workers(page.session, settings.lease_seconds)
        if row.state != "stopped" or row.heartbeat_at > recently
    ]
    environments = {device.id: list_environments(page.session, device.id, limit=10) for device in rows}
    now = datetime.now(UTC)
    runs = list_device_runs(page.session, now - DAY, limit=5000)
    timed = list_timed_runs(page.session, now - DAY)
    peaks = [environment.peaks for found in environments.values() for environment in found[:1] if environment.peaks]
    return page.page(
        "settings/devices.html",
        json="/devices",
        devices=rows,
        workers=workers,
        environments=environments,
        cards={device.id: list_card_lines(page.session, device.id) for device in rows},
        strips={device.id: strip_svg(runs, device.id, now) for device in rows},
        times={device.id: device_times(timed, device.id, now) for device in rows},
        busy={device.id: busy_seconds(runs, device.id, now) / DAY.total_seconds() for device in rows},
        highest={
            name: max(peak.get(name, 0.0) for peak in peaks) for name in {name for peak in peaks for name in peak}
        },
    )


api = APIRouter(tags=["devices"])


class ServiceHealth(BaseModel):
    """status is ok while the database answers and its schema is current."""

    status: str
    version: str
    counts: HealthRow


@api.get("/health", responses=documented())
def get_health(request: Request, settings: Config) -> ServiceHealth:
    """Whether the service can work; 503 with the reason and the remedy when it cannot. Needs no token."""
    try:
        require_schema(request)
        with database_of(request).session() as session:
            return ServiceHealth(status="ok", version=__version__, counts=read_health(session, settings.lease_seconds))
    except EngineError:
        # The schema may have changed meanwhile, by a restored backup for example.
        request.app.state.schema_is_current = False
        raise


@api.get("/devices", responses=documented() | documented_brief())
@briefly(brief_devices)
def get_devices(session: Db, settings: Config) -> Page[DeviceRow]:
    """All devices with measurements or a worker, with their queues."""
    return Page(list_devices(session, settings.lease_seconds), None)


class NewDevice(BaseModel):
    """key: as workers of it register it, the model's name in lower case with dashes. name: for people."""

    model_config = ConfigDict(extra="forbid")
    key: str = Field(max_length=100, pattern=r"^[a-z0-9]+(-[a-z0-9]+)*$", examples=["nvidia-h200"])
    kind: Literal["cpu", "cuda"] = "cuda"
    name: str | None = Field(None, min_length=1, max_length=200, examples=["NVIDIA H200"])
    is_elastic: bool = False


@api.post("/devices", responses=documented(409, 422))
def add_device(session: Db, body: NewDevice) -> DeviceRow:
    """Make a device known before a worker was there, or change whether it is elastic.

    Jobs of an elastic device wait for a worker that a scheduler starts, such as Slurm, KEDA or SkyPilot.
    """
    registry.add_device(session, body.key, body.kind, body.name, is_elastic=body.is_elastic)
    return device_or_404(session, body.key)


@api.get("/cards", responses=documented(404, 422))
def get_cards(
    session: Db, device: Annotated[str | None, Query(max_length=500, description="Key of a device.")] = None
) -> Page[CardLine]:
    """The physical cards of a device, or of all devices: board, VBIOS, slot and host, and by how much each differs from
    the first card of its device in series that both measured at the same commits."""
    chosen = None if device is None else device_or_404(session, device).id
    return Page(list_card_lines(session, chosen), None)


@api.get("/workers", responses=documented())
def get_workers(session: Db, settings: Config) -> Page[WorkerRow]:
    """Workers, online ones first, each with its current job."""
    return Page(list_workers(session, settings.lease_seconds), None)


@api.get("/environments/{environment_id}", responses=documented(404, 422))
def get_environment(session: Db, environment_id: int) -> EnvironmentView:
    """One environment: everything besides the code that can change a time, and the measured ceilings."""
    environment = find_environment(session, environment_id)
    if environment is None:
        raise not_found("environment", environment_id)
    return environment
