"""The form in which the samples of a point are stored."""

from __future__ import annotations

import struct
import sys
import zlib
from array import array


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
