"""Writes points as CSV, JSON, Parquet or nvbench JSON, piece by piece: none of them is ever whole in memory."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, fields
from datetime import datetime
from importlib.util import find_spec
from itertools import groupby
from typing import Any

from warpwatch.db.database import Database
from warpwatch.db.reads.export import ExportCursor, ExportedPoint, ExportFilter, list_exported_series, list_points
from warpwatch.formats import EXPORT_TAG, VARIANT

VERSION = 1
"""Of the JSON."""
Pages = Iterator[list[ExportedPoint]]
_FORMULA = ("=", "+", "-", "@", "\t", "\r")


class ExportError(RuntimeError):
    """An export cannot be written; the message says what to do."""


def read_pages(database: Database, chosen: ExportFilter) -> Pages:
    """All points, series by series, each page in a transaction of its own, so that no slow reader holds one open."""
    before: int | None = None
    while True:
        with database.session() as session:
            series = list_exported_series(session, chosen, before)
        for row in series:
            after: ExportCursor | None = ExportCursor()
            while after is not None:
                with database.session() as session:
                    points, after = list_points(session, row, chosen, after)
                if points:
                    yield points
        if not series:
            return
        before = series[-1].id


def write_csv(pages: Pages) -> Iterator[bytes]:
    """A header and a row per point; samples are separated by blanks."""
    columns = [field.name for field in fields(ExportedPoint)]
    yield _csv([columns])
    for page in pages:
        yield _csv([[csv_cell(getattr(point, column)) for column in columns] for point in page])


def write_json(pages: Pages) -> Iterator[bytes]:
    """An object with the version of the format and all points."""
    yield f'{{"warpwatch_export": {VERSION}, "points": ['.encode()
    separator = ""
    for page in pages:
        yield (separator + ",".join(json.dumps(asdict(point), default=str) for point in page)).encode()
        separator = ","
    yield b"]}\n"


def write_parquet(pages: Pages) -> Iterator[bytes]:
    """A Parquet file with one row group per page; ExportError without pyarrow."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ModuleNotFoundError:
        raise ExportError("Parquet needs pyarrow: pip install 'warpwatch[parquet]', or choose another format") from None
    kinds = {
        "int": pyarrow.int64(),
        "float": pyarrow.float64(),
        "datetime": pyarrow.timestamp("us", tz="UTC"),
        "list[float]": pyarrow.list_(pyarrow.float32()),
    }
    columns = [(field.name, kinds.get(str(field.type), pyarrow.string())) for field in fields(ExportedPoint)]
    schema = pyarrow.schema(columns, metadata={"warpwatch_export": str(VERSION)})
    sink = _Sink()
    with pyarrow.parquet.ParquetWriter(sink, schema, compression="zstd") as writer:
        for page in pages:
            rows = {name: [getattr(point, name) for point in page] for name, _ in columns}
            writer.write_table(pyarrow.table(rows, schema=schema))
            yield sink.take()
    yield sink.take()


def write_nvbench(pages: Pages) -> Iterator[bytes]:
    """The JSON of nvbench: a benchmark per operator and variant, a state per case, with the medians.

    The benchmarks of a program get their names and axes back, so that importing the file under its name gives the same
    cases and times. nvbench's files are of one commit; which one is a hidden summary of each state.
    """
    version = {"json": {"major": 1, "minor": 0, "patch": 0, "string": "1.0.0"}}
    yield json.dumps({"meta": {"version": version}})[:-1].encode() + b', "benchmarks": ['
    separator = ""
    devices: dict[str, int] = {}
    points = ((*_names(point), point) for page in pages for point in page)
    for name, group in groupby(points, key=lambda item: item[0]):
        yield (separator + json.dumps({"name": name, "axes": []})[:-1] + ', "states": [').encode()
        inner = ""
        for _, axes, point in group:
            ordinal = devices.setdefault(point.device, len(devices))
            yield (inner + json.dumps(_state(point, axes, ordinal))).encode()
            inner = ","
        yield b"]}"
        separator = ","
    listed = [{"id": ordinal, "name": key} for key, ordinal in devices.items()]
    yield b'], "devices": ' + json.dumps(listed).encode() + b"}\n"


WRITERS: Mapping[str, tuple[Callable[[Pages], Iterator[bytes]], str, str]] = {
    "csv": (write_csv, "text/csv; charset=utf-8", "csv"),
    "json": (write_json, "application/json", "json"),
    "parquet": (write_parquet, "application/vnd.apache.parquet", "parquet"),
    "nvbench": (write_nvbench, "application/json", "nvbench.json"),
}
"""By name of the format: its writer, its media type and the end of a file's name."""
HAS_PARQUET = find_spec("pyarrow") is not None
"""Whether Parquet can be written: pyarrow is an extra."""


def csv_cell(value: object) -> object:
    """A value as a cell. A commit's subject must not run as a formula when the file is opened in a spreadsheet."""
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, dict | list):
        return json.dumps(value)
    return f"'{value}" if isinstance(value, str) and value.startswith(_FORMULA) else value


def _names(point: ExportedPoint) -> tuple[str, dict[str, str]]:
    """The benchmark and the axes of a point: of a program those that its case is made from."""
    if point.variant != VARIANT:
        return f"{point.operator}.{point.variant}", {"case": point.case}
    name, *parts = point.case.split(",")
    axes = dict(part.partition("=")[::2] for part in parts)
    is_whole = name and ",".join([name, *(f"{axis}={value}" for axis, value in axes.items())]) == point.case
    return (name, axes) if is_whole and all(axes) else (point.case, {})


def _state(point: ExportedPoint, axes: Mapping[str, str], device: int) -> dict[str, Any]:
    values = {
        "nv/cold/sample_size": ("int64", str(point.count)),
        "nv/cold/time/gpu/mean": ("float64", repr(point.median_ns / 1e9)),
        "nv/cold/time/gpu/stdev/relative": ("float64", repr(point.noise / 1.349)),
        f"{EXPORT_TAG}low": ("float64", repr(point.low_ns / 1e9)),
        f"{EXPORT_TAG}high": ("float64", repr(point.high_ns / 1e9)),
    }
    texts = ("commit", "metric", "environment", "card")
    values |= {f"{EXPORT_TAG}{name}": ("string", str(getattr(point, name) or "")) for name in texts}
    hidden = {"hide": "Of Warpwatch."}
    return {
        "name": " ".join([f"Device={device}", *(f"{name}={value}" for name, value in axes.items())]),
        "device": device,
        "axis_values": [
            {"name": name, "type": "int64" if value.isdecimal() else "string", "value": value}
            for name, value in axes.items()
        ],
        "summaries": [
            {"tag": tag, "name": tag, "data": [{"name": "value", "type": kind, "value": value}]}
            | (hidden if tag.startswith(EXPORT_TAG) else {})
            for tag, (kind, value) in values.items()
        ],
        "is_skipped": False,
    }


def _csv(rows: list[list[Any]]) -> bytes:
    file = io.StringIO()
    csv.writer(file).writerows(rows)
    return file.getvalue().encode()


class _Sink(io.RawIOBase):
    """A file that is read away while it is written."""

    def __init__(self) -> None:
        super().__init__()
        self._pieces: list[bytes] = []
        self._length = 0

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        piece = bytes(data)
        self._pieces.append(piece)
        self._length += len(piece)
        return len(piece)

    def tell(self) -> int:
        return self._length

    def take(self) -> bytes:
        """Removes and returns the bytes that were written since the last call."""
        pieces, self._pieces = self._pieces, []
        return b"".join(pieces)
