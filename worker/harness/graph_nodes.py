"""Asks the CUDA driver what a capture on the current stream has recorded so far.

torch does not offer this. Where the driver cannot be asked the answer is None, and nothing is concluded from it.
"""

from __future__ import annotations

import ctypes
from functools import cache

import torch

_ACTIVE = 1
"""CU_STREAM_CAPTURE_STATUS_ACTIVE."""
_KERNEL, _COPY, _FILL, _GRAPH = 0, 1, 2, 4
"""Values of CUgraphNodeType; the last is a graph within the graph."""


@cache
def _driver() -> ctypes.CDLL | None:
    try:
        return ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None


class CapturedGraph:
    """The graph that is being captured on the current stream when this is made, for as long as the capture goes on.

    A capture has one graph, and to ask which takes longer than to count its nodes. So that is asked once.
    """

    def __init__(self) -> None:
        self._handle = _captured_handle()
        self._count = ctypes.c_size_t()

    def count_nodes(self) -> int | None:
        driver = _driver()
        if self._handle is None or driver is None:
            return None
        return None if driver.cuGraphGetNodes(self._handle, None, ctypes.byref(self._count)) else self._count.value

    def count_work(self) -> int | None:
        """The kernels, copies and fills among the nodes; None also where a node stands for a graph of its own."""
        count, driver = self.count_nodes(), _driver()
        if count is None or driver is None:
            return None
        nodes, room = (ctypes.c_void_p * max(count, 1))(), ctypes.c_size_t(count)
        if count and driver.cuGraphGetNodes(self._handle, nodes, ctypes.byref(room)) != 0:
            return None
        work, kind = 0, ctypes.c_int()
        for node in nodes[:count]:
            if driver.cuGraphNodeGetType(ctypes.c_void_p(node), ctypes.byref(kind)) != 0 or kind.value == _GRAPH:
                return None
            work += kind.value in (_KERNEL, _COPY, _FILL)
        return work


def _captured_handle() -> ctypes.c_void_p | None:
    driver = _driver()
    # The symbol of CUDA 11.3; newer drivers keep it for programs that were built with it.
    ask = getattr(driver, "cuStreamGetCaptureInfo_v2", None)
    if ask is None:
        return None
    status, number, graph = ctypes.c_int(), ctypes.c_uint64(), ctypes.c_void_p()
    dependencies, count = ctypes.c_void_p(), ctypes.c_size_t()
    stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
    references = (ctypes.byref(value) for value in (status, number, graph, dependencies, count))
    if ask(stream, *references) != 0 or status.value != _ACTIVE or not graph.value:
        return None
    return graph
