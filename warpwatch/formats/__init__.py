"""Readers of results that other benchmark programs write, and of the histories that other services keep.

The standard library only. A file may come from anywhere, so every reader bounds what it takes and ends in
ForeignResults, or in a FormatError that says what is wrong by a FormatFault and what to do about it.
"""

from __future__ import annotations

from warpwatch.formats.findings import VARIANT, WHOLE, case_entry, list_findings, operator_entry
from warpwatch.formats.model import FILE_LIMIT, SAMPLE_LIMIT, ForeignBenchmark, ForeignResults, FormatError, FormatFault
from warpwatch.formats.nvbench import EXPORT_TAG
from warpwatch.formats.reading import DEVICE_KINDS, FORMATS, PROGRAM_FORMATS, read_history, read_results

__all__ = [
    "DEVICE_KINDS",
    "EXPORT_TAG",
    "FILE_LIMIT",
    "FORMATS",
    "PROGRAM_FORMATS",
    "SAMPLE_LIMIT",
    "VARIANT",
    "WHOLE",
    "ForeignBenchmark",
    "ForeignResults",
    "FormatError",
    "FormatFault",
    "case_entry",
    "list_findings",
    "operator_entry",
    "read_history",
    "read_results",
]
