"""Any list of rows as CSV, for spreadsheets."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable
from dataclasses import fields
from typing import Any

from fastapi.responses import Response

from warpwatch.server.figures.exports import csv_cell
from warpwatch.server.http.downloads import content_disposition

CSV_ANSWER: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "The same rows as CSV, with a header.",
        "content": {"text/csv": {"schema": {"type": "string"}}},
    }
}
"""OpenAPI description of an endpoint that returns CSV."""


def csv_response(kind: type[Any], rows: Iterable[Any], name: str) -> Response:
    """`rows`, dataclasses of type `kind`, as a file called `name`.csv with one column per field."""
    columns = [field.name for field in fields(kind)]
    file = io.StringIO()
    writer = csv.writer(file)
    writer.writerow(columns)
    writer.writerows([csv_cell(getattr(row, column)) for column in columns] for row in rows)
    headers = content_disposition(f"{name}.csv")
    return Response(file.getvalue(), media_type="text/csv; charset=utf-8", headers=headers)
