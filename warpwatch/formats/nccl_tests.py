"""Reads the table that a program of nccl-tests prints, such as all_reduce_perf.

Each size gives two benchmarks, out of place and in place. The name of the collective is not in the table: the operator
says it. Lines of NCCL's own log among those of the table are passed over.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from warpwatch.contract.words import Status
from warpwatch.formats.model import ForeignBenchmark, ForeignResults, invalid, number, read_rows, timed

_TAG = re.compile(r"^\[\d+,\d+\]<\w+>:")
"""What mpirun writes before each line, if told so."""
_RANK = re.compile(r"#? *Rank +\d+ .* on +(\S+) +device +\S+ +\[[^\]]*\] +(\S.*)")
_PLACES = ("out-of-place", "in-place")
_END = "# Avg bus bandwidth"


class _Time(NamedTuple):
    """A time of the table as it is written, in microseconds, and how many elements were wrong, "" where not checked."""

    name: str
    size: int
    time: str
    wrong: str


def read(values: dict[str, Any], _: dict[str, bytes]) -> ForeignResults:
    columns: list[str] = []
    ranks: list[tuple[str, str]] = []
    left_out: list[str] = []
    groups: dict[str, list[_Time]] = {}
    has_ended = False
    for line in (_TAG.sub("", line).strip() for line in values["lines"]):
        words = line.split()
        has_ended |= line.startswith(_END)
        if rank := _RANK.match(line):
            ranks.append((rank[1], rank[2].strip()))
        elif line.startswith("#") and "size" in words and "time" in words:
            columns = words[1:]
        elif columns and words and words[0].isdecimal() and len(words[0]) < 20:
            if len(words) != len(columns):
                left_out.append(f"{line[:60]}: expected {len(columns)} columns")
                continue
            for time in _times(columns, words):
                groups.setdefault(time.name, []).append(time)
    if not columns:
        raise invalid("it has no table of times, so nccl-tests did not print it")
    if not has_ended:
        left_out.append(f"it ends without {_END[2:]!r}: the program did not end by itself")
    benchmarks = read_rows(groups.items(), lambda row: row[0], lambda name, row: _benchmark(name, row[1]), left_out)
    models = sorted({model for _, model in ranks})
    facts = {"ranks": len(ranks), "hosts": len({host for host, _ in ranks})} if ranks else {}
    return ForeignResults("nccl-tests", "cuda", " and ".join(models), facts, benchmarks, left_out)


def _times(columns: list[str], words: list[str]) -> list[_Time]:
    """The times of one row, which is out of place and in place."""
    cells = dict(zip(columns, words, strict=True))
    about = [cells[key] for key in ("type", "redop") if cells.get(key, "none") != "none"]
    if cells.get("root", "-1") != "-1":
        about.append(f"root={cells['root']}")
    name = ",".join([*about, f"size={cells['size']}"])
    at = [index for index, column in enumerate(columns) if column == "time"]
    ends = [*at[1:], len(columns)]
    checks = [dict(zip(columns[start:end], words[start:end], strict=True)) for start, end in zip(at, ends, strict=True)]
    return [
        _Time(f"{name}/{place}", int(words[0]), check["time"], check.get("#wrong", ""))
        for place, check in zip(_PLACES, checks, strict=False)
    ]


def _benchmark(name: str, times: list[_Time]) -> ForeignBenchmark:
    sizes = {"size": times[0].size}
    wrong = sum(int(time.wrong) for time in times if time.wrong.isdecimal() and len(time.wrong) < 20)
    if wrong:
        return ForeignBenchmark(name, Status.WRONG, f"{wrong} elements are wrong", sizes=sizes)
    return timed(name, [_microseconds(name, time.time) * 1e3 for time in times], sizes)


def _microseconds(name: str, text: str) -> float:
    try:
        return number(float(text), f"{name}: time")
    except ValueError:
        raise invalid(f"{name}: time: expected a number, got {text[:20]!r}") from None
