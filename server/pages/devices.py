"""Devices, their workers, environments and measured ceilings."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Annotated

from fastapi import APIRouter, Depends, Response
from fastapi.responses import RedirectResponse
from pydantic import ValidationError
from starlette.datastructures import FormData

from warpwatch.contract.measurement import METRICS
from warpwatch.db.errors import StateError
from warpwatch.db.reads.code import find_operator, list_operators, list_suites
from warpwatch.db.reads.devices import list_devices, list_environments, list_workers
from warpwatch.db.reads.occupancy import list_device_runs, list_timed_runs
from warpwatch.db.reads.overview import read_overview
from warpwatch.db.reads.worker_keys import list_keys
from warpwatch.db.worker_keys import add_key, revoke_key
from warpwatch.server.api.worker_keys import NewKey
from warpwatch.server.figures.cards import list_card_lines
from warpwatch.server.figures.device_plot import DeviceCells, compare_devices, device_figure, device_label
from warpwatch.server.figures.formats import variant_order
from warpwatch.server.figures.gantt import DAY, busy_seconds, strip_svg
from warpwatch.server.figures.run_times import device_times
from warpwatch.server.figures.size_axis import SizeQuantity
from warpwatch.server.http.problems import not_found
from warpwatch.server.http.service import Before, Config
from warpwatch.server.pages.choices import Text
from warpwatch.server.pages.render import Page, Scope, query
from warpwatch.server.pages.submissions import form_of
from warpwatch.settings import Settings

router = APIRouter()
MOST_DEVICES = 8
"""Devices of one chart: as many as there are marks that can be told apart."""


@router.get("/devices")
def devices(page: Page, settings: Config, before: Before = None) -> Response:
    """Every device with its workers, environments and measured ceilings, and the keys of workers."""
    return _show(page, settings, before=before)


@router.post("/devices/keys")
def add_worker_key(page: Page, settings: Config, form: Annotated[FormData, Depends(form_of)]) -> Response:
    """Makes a key and shows it this once; shows the form again with a message where the name cannot be used."""
    name = str(form.get("name", "")).strip()
    try:
        key = add_key(page.session, NewKey.model_validate({"name": name}).name)
    except ValidationError:
        return _show(page, settings, name=name, error="Use letters, digits, dots, dashes and underscores, at most 60.")
    except StateError as error:
        return _show(page, settings, name=name, error=str(error))
    return _show(page, settings, new_key=key)


@router.post("/devices/keys/{name}/revoke")
def revoke_worker_key(page: Page, name: str) -> Response:
    """Revokes a key and returns to the list."""
    revoke_key(page.session, name)
    return RedirectResponse("/devices#keys", 303)


def _show(
    page: Scope,
    settings: Settings,
    before: int | None = None,
    name: str = "",
    error: str | None = None,
    new_key: str | None = None,
) -> Response:
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
        "devices.html",
        json="/devices",
        status=422 if error else 200,
        keys=list_keys(page.session, before),
        before=before,
        entered={"name": name},
        errors={"name": error} if error else {},
        new_key=new_key,
        devices=rows,
        operators=[row.name for row in list_operators(page.session, page.repository.id)] if page.repository else [],
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


@router.get("/devices/compare")
def compare(
    page: Page,
    operator: Text = None,
    variant: Text = None,
    suite: Text = None,
    against: SizeQuantity = SizeQuantity.TIME,
) -> Response:
    """One operator over all devices that it was measured on, case by case; by default the fastest variant of each."""
    row = find_operator(page.session, page.repository.id, operator) if page.repository and operator else None
    if page.repository is None or row is None:
        raise not_found("operator", operator or "", "open one from the overview")
    columns = _columns(page, row.name, suite)
    chosen = variant if variant in row.variants else None
    rows = compare_devices(columns, chosen)
    return page.page(
        "devices_compare.html",
        json=query("/series", repository=page.repository.name, operator=row.name, variant=chosen),
        operator=row.name,
        operators=[other.name for other in list_operators(page.session, page.repository.id)],
        variants=sorted(row.variants, key=variant_order),
        variant=chosen,
        suite=suite,
        suites=list_suites(page.session, page.repository.id),
        quantity=against,
        columns=columns,
        rows=rows,
        figure=device_figure(columns, rows, against),
        label=device_label(columns, rows),
    )


def _columns(page: Scope, operator: str, suite: str | None) -> list[DeviceCells]:
    """The devices with a time of the operator, each in its first metric."""
    assert page.repository is not None
    columns = []
    for device in list_devices(page.session):
        metric = METRICS[device.kind][0]
        cells = read_overview(page.session, page.repository.id, device.id, metric, page.line, suite, operator)
        if any(cell.median_ns for cell in cells):
            columns.append(DeviceCells(device, metric, cells))
    return columns[:MOST_DEVICES]
