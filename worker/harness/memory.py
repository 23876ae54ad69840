"""The memory of a child that a template has forked, which both share until one of them writes to it."""

from __future__ import annotations

import ctypes
import os
import re
from functools import cache
from pathlib import Path

from warpwatch.contract.activities import Activity

from .spent import STOPWATCH

MADV_POPULATE_WRITE = 23


@cache
@STOPWATCH.measure(Activity.START)
def copy_shared() -> None:
    """Takes pages of its own, in the order of their addresses, for all that this process shares with its template. Only
    the first call does: what a process has written since is its own.

    Else it would copy each where it first writes to it: within what it measures, and scattered over the memory, which
    makes calls with cold caches slower on virtual machines. Kernels before 5.14 refuse, and then it does so. This takes
    as long as all else at the start of a child, so a child that measures no times does without.
    """
    if not os.access("/proc/self/pagemap", os.R_OK):
        return
    libc, page = ctypes.CDLL(None), os.sysconf("SC_PAGE_SIZE")
    maps = Path("/proc/self/maps").read_text().splitlines()
    with Path("/proc/self/pagemap").open("rb", buffering=0) as pagemap:
        for span, rights in (line.split(maxsplit=2)[:2] for line in maps):
            if not (rights.startswith("rw") and rights.endswith("p")):
                continue
            begin, end = (int(address, 16) for address in span.split("-"))
            pagemap.seek(begin // page * 8)
            # The highest bit of an entry says that the page is there.
            for run in re.finditer(rb"[\x80-\xff]+", pagemap.read((end - begin) // page * 8)[7::8]):
                address, size = begin + run.start() * page, len(run[0]) * page
                libc.madvise(ctypes.c_void_p(address), ctypes.c_size_t(size), MADV_POPULATE_WRITE)
