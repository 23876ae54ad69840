"""Devices, workers, environments, and the health of the service."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Query, Request
from pydantic import BaseModel, ConfigDict, Field

from warpwatch import __version__
from warpwatch.db import registry
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


class NewDevice(BaseModel):
    """key: as workers of it register it, the model's name in lower case with dashes. name: for people."""

    model_config = ConfigDict(extra="forbid")
    key: str = Field(max_length=100, pattern=r"^[a-z0-9]+(-[a-z0-9]+)*$", examples=["nvidia-h200"])
    kind: Literal["cpu", "cuda"] = "cuda"
    name: str | None = Field(None, min_length=1, max_length=200, examples=["NVIDIA H200"])
    is_elastic: bool = False


@router.post("/devices", responses=documented(409, 422))
def add_device(session: Db, body: NewDevice) -> DeviceRow:
    """Make a device known before a worker was there, or change whether it is elastic.

    Jobs of an elastic device wait for a worker that a scheduler starts, such as Slurm, KEDA or SkyPilot.
    """
    registry.add_device(session, body.key, body.kind, body.name, is_elastic=body.is_elastic)
    return device_or_404(session, body.key)


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
