"""Devices, workers, environments, and the health of the service."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request
from pydantic import BaseModel

from warpwatch import __version__
from warpwatch.db.errors import EngineError
from warpwatch.db.reads.devices import (
    DeviceRow,
    EnvironmentView,
    HealthRow,
    WorkerRow,
    find_environment,
    list_devices,
    list_workers,
    read_health,
)
from warpwatch.db.reads.query import Page
from warpwatch.server.figures.cards import CardLine, list_card_lines
from warpwatch.server.http.problems import documented, not_found
from warpwatch.server.http.service import Config, Db, database_of, device_or_404, require_schema

router = APIRouter(tags=["devices"])


class ServiceHealth(BaseModel):
    """status is ok while the database answers and its schema is current."""

    status: str
    version: str
    counts: HealthRow


@router.get("/health", responses=documented())
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


@router.get("/devices", responses=documented())
def get_devices(session: Db, settings: Config) -> Page[DeviceRow]:
    """All devices with measurements or a worker, with their queues."""
    return Page(list_devices(session, settings.lease_seconds), None)


@router.get("/cards", responses=documented(404, 422))
def get_cards(
    session: Db, device: Annotated[str | None, Query(max_length=500, description="Key of a device.")] = None
) -> Page[CardLine]:
    """The physical cards of a device, or of all devices: board, VBIOS, slot and host, and by how much each differs from
    the first card of its device in series that both measured at the same commits."""
    chosen = None if device is None else device_or_404(session, device).id
    return Page(list_card_lines(session, chosen), None)


@router.get("/workers", responses=documented())
def get_workers(session: Db, settings: Config) -> Page[WorkerRow]:
    """Workers, online ones first, each with its current job."""
    return Page(list_workers(session, settings.lease_seconds), None)


@router.get("/environments/{environment_id}", responses=documented(404, 422))
def get_environment(session: Db, environment_id: int) -> EnvironmentView:
    """One environment: everything besides the code that can change a time, and the measured ceilings."""
    environment = find_environment(session, environment_id)
    if environment is None:
        raise not_found("environment", environment_id)
    return environment
