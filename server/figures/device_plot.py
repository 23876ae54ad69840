"""One operator over several devices: a row per case, a mark per device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from warpwatch.db.reads.devices import DeviceRow
from warpwatch.server.figures.charts import Figure, plain_layout
from warpwatch.server.figures.palette import PALETTE
from warpwatch.server.figures.size_axis import TITLES, SizeQuantity
from warpwatch.server.figures.speedups import TimedSeries, case_speedups, comparable, is_right
from warpwatch.server.reports.formats import change, duration, natural, plural, share, unit_of

SYMBOLS = ("circle", "diamond", "square", "triangle-up", "cross", "star", "triangle-down", "pentagon")
MOST_TICKED = 50
"""From this ratio of the largest to the smallest value on only powers of ten are written at the axis."""
MOST_CASES = 30
"""Cases that the chart shows; the table has all."""


@dataclass(frozen=True, slots=True)
class DeviceTime:
    """The time of one case on one device. speedup: over the baseline there; ratio: over the fastest device, None where
    their times cannot be compared."""

    cell: TimedSeries
    speedup: float | None
    ratio: float | None = 1.0


@dataclass(frozen=True, slots=True)
class DeviceCells:
    """A device with the cells of one operator in one metric."""

    device: DeviceRow
    metric: str
    cells: Sequence[TimedSeries]


@dataclass(frozen=True, slots=True)
class DeviceCaseRow:
    """A case on every device, None where it has no right time there."""

    case: str
    times: list[DeviceTime | None]


def compare_devices(columns: Sequence[DeviceCells], variant: str | None) -> list[DeviceCaseRow]:
    """A row for every case with a time. variant: whose times; None takes the fastest variant of each device."""
    by_device = [_times(column, variant) for column in columns]
    cases = sorted({case for times in by_device for case in times}, key=natural)
    return [DeviceCaseRow(case, _ratios([times.get(case) for times in by_device])) for case in cases]


def _times(column: DeviceCells, variant: str | None) -> dict[str, DeviceTime]:
    result: dict[str, DeviceTime] = {}
    for case in {cell.case for cell in column.cells}:
        row = [cell for cell in column.cells if cell.case == case]
        right = [cell for cell in row if is_right(cell) and variant in (None, cell.variant)]
        if right:
            fastest = min(comparable(right), key=lambda cell: cell.median_ns or 0.0)
            result[case] = DeviceTime(fastest, case_speedups(row).get(fastest.variant))
    return result


def _ratios(times: list[DeviceTime | None]) -> list[DeviceTime | None]:
    rivals = comparable(time.cell for time in times if time)
    least = min(cell.median_ns or 0.0 for cell in rivals)

    def ratio_of(cell: TimedSeries) -> float | None:
        return (cell.median_ns or 0.0) / least if cell in rivals else None

    return [time and DeviceTime(time.cell, time.speedup, ratio_of(time.cell)) for time in times]


def device_label(columns: Sequence[DeviceCells], rows: Sequence[DeviceCaseRow]) -> str:
    """The key numbers of the chart in words."""
    parts = []
    for index, column in enumerate(columns):
        times = [time for row in rows if (time := row.times[index])]
        fastest = sum(time.ratio == 1 for time in times)
        parts.append(f"{column.device.name} is the fastest in {fastest} of {plural(len(times), 'case')}")
    return "One row per case, one mark per device: " + "; ".join(parts)


def device_figure(columns: Sequence[DeviceCells], rows: Sequence[DeviceCaseRow], quantity: SizeQuantity) -> Figure:
    """The first MOST_CASES cases, the first on top."""
    shown = rows[:MOST_CASES]
    times = [time for row in shown for time in row.times if time]
    scale, unit = unit_of(max((time.cell.median_ns or 0.0 for time in times), default=1e3))
    traces = []
    for index, column in enumerate(columns):
        marks = [(row.case, time) for row in shown if (time := row.times[index])]
        traces.append(
            {
                "type": "scatter",
                "mode": "markers",
                "name": escape(f"{column.device.name} ({column.metric})"),
                "x": [_place(time, quantity, scale) for _, time in marks],
                "y": [escape(case) for case, _ in marks],
                "marker": {
                    "size": 10,
                    "symbol": SYMBOLS[index % len(SYMBOLS)],
                    "color": PALETTE[index % len(PALETTE)],
                },
                "customdata": [
                    [f"/history/{time.cell.series_id}", escape(time.cell.variant), _facts(time)] for _, time in marks
                ],
                "hovertemplate": "<b>%{fullData.name}</b><br>%{y}<br>%{customdata[1]}, %{customdata[2]}<extra></extra>",
            }
        )
    layout = plain_layout()
    layout["xaxis"] |= {"title": {"text": TITLES.get(quantity, f"median, {unit}")}, "zeroline": False}
    if quantity != SizeQuantity.SHARE:
        places = [place for time in times if (place := _place(time, quantity, scale))]
        is_wide = bool(places) and max(places) / min(places) > MOST_TICKED
        layout["xaxis"] |= {"type": "log", "dtick": 1 if is_wide else "D2"}
    layout["yaxis"] |= {
        "categoryorder": "array",
        "categoryarray": [escape(row.case) for row in reversed(shown)],
        "tickfont": {"family": "monospace", "size": 11},
    }
    return {"data": traces, "layout": layout}


def _place(time: DeviceTime, quantity: SizeQuantity, scale: float) -> float | None:
    if quantity == SizeQuantity.SHARE:
        return None if time.cell.roofline_share is None else time.cell.roofline_share * 100
    return time.speedup if quantity == SizeQuantity.SPEEDUP else (time.cell.median_ns or 0.0) / scale


def _facts(time: DeviceTime) -> str:
    parts = [duration(time.cell.median_ns)]
    if time.cell.roofline_share is not None:
        parts.append(f"{share(time.cell.roofline_share)} of the roofline")
    if time.ratio is not None and time.ratio > 1:
        parts.append(f"{change(time.ratio)} over the fastest device")
    return ", ".join(parts)
