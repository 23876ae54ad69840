"""Any list of rows as CSV, for spreadsheets."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable
from dataclasses import fields
from datetime import datetime
from typing import Any

from fastapi.responses import Response

CSV_ANSWER: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "The same rows as CSV, with a header.",
        "content": {"text/csv": {"schema": {"type": "string"}}},
    }
}
"""OpenAPI description of an endpoint that returns CSV."""
_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def csv_response(kind: type[Any], rows: Iterable[Any], name: str) -> Response:
    """`rows`, dataclasses of type `kind`, as a file called `name`.csv with one column per field."""
    columns = [field.name for field in fields(kind)]
    file = io.StringIO()
    writer = csv.writer(file)
    writer.writerow(columns)
    writer.writerows([_cell(getattr(row, column)) for column in columns] for row in rows)
    headers = {"Content-Disposition": f'attachment; filename="{name}.csv"'}
    return Response(file.getvalue(), media_type="text/csv; charset=utf-8", headers=headers)


def _cell(value: object) -> object:
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, dict | list):
        return json.dumps(value)
    # A commit's subject must not run as a formula when the file is opened in a spreadsheet.
    return f"'{value}" if isinstance(value, str) and value.startswith(_FORMULA) else value
