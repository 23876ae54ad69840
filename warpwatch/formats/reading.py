"""Reads a file of results in a format by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from warpwatch.formats import google_benchmark, nvbench, plain, pytest_benchmark
from warpwatch.formats.model import ForeignResults, FormatError, FormatFault, expect_usable, parse_json

_READERS: dict[str, Callable[[dict[str, Any], dict[str, bytes]], ForeignResults]] = {
    "plain": plain.read,
    "nvbench": nvbench.read,
    "google-benchmark": google_benchmark.read,
    "pytest-benchmark": pytest_benchmark.read,
}
FORMATS = tuple(_READERS)
DEVICE_KINDS: Mapping[str, str] = {name: "cuda" if name == "nvbench" else "cpu" for name in FORMATS}
"""The kind of device that a format measures, where the file does not say."""
SIDECARS_LIMIT = 256 * 2**20
"""Bytes of all files of samples of one JSON."""
Fetch = Callable[[str], bytes | None]
"""Reads a file of samples by its path relative to the JSON; None where there is none."""


def read_results(name: str, data: bytes, fetch: Fetch = lambda _: None) -> ForeignResults:
    """The results in `data`, a file of the format `name`; FormatError where nothing of it can be read.

    What precedes the JSON, such as a program's greeting, is left out.

    fetch: finds the files of samples that nvbench writes beside its JSON.
    """
    reader = _READERS.get(name)
    if reader is None:
        raise FormatError(FormatFault.UNKNOWN_FORMAT, f"there is no format {name!r}", f"use {', '.join(FORMATS)}")
    values = parse_json(data)
    sidecars: dict[str, bytes] = {}
    for path in nvbench.sidecar_names(values) if name == "nvbench" else ():
        content = fetch(path)
        if content is not None:
            sidecars[path] = content
        if sum(map(len, sidecars.values())) > SIDECARS_LIMIT:
            message = f"its files of samples have more than {SIDECARS_LIMIT >> 20} MiB together"
            raise FormatError(FormatFault.TOO_LARGE, message, "measure fewer benchmarks per file")
    return expect_usable(reader(values, sidecars))
