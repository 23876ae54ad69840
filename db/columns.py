"""Stored forms of columns that models, writes and read queries share: specifications and samples."""

from __future__ import annotations

import struct
import sys
import zlib
from array import array
from typing import Any

from sqlalchemy import Dialect, TypeDecorator
from sqlalchemy.dialects.postgresql import JSONB

from warpwatch.contract.spec import JobSpec


class StoredSpec(TypeDecorator[JobSpec]):
    """A JSONB column that reads and writes JobSpec."""

    impl = JSONB
    cache_ok = True

    # SQLAlchemy defines the parameters of both methods, so `dialect` stays although it is not used.
    def process_bind_param(self, value: JobSpec | None, dialect: Dialect) -> dict[str, Any] | None:  # noqa: ARG002
        return None if value is None else value.to_stored()

    def process_result_value(self, value: dict[str, Any] | None, dialect: Dialect) -> JobSpec | None:  # noqa: ARG002
        return None if value is None else JobSpec.from_stored(value)


def pack_samples(samples_ns: list[float]) -> bytes:
    """Samples as they are stored: float32, little endian, zlib."""
    values = array("f", samples_ns)
    if sys.byteorder == "big":
        values.byteswap()
    return zlib.compress(values.tobytes())


def unpack_samples(data: bytes) -> list[float]:
    """Samples, in nanoseconds, from what is stored."""
    raw = zlib.decompress(data)
    return list(struct.unpack(f"<{len(raw) // 4}f", raw))
