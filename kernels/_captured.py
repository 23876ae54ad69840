"""A variant's calls captured in a CUDA graph; shared by the variants `cuda_graph`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


class CapturedCall:
    """`function` in a CUDA graph, on the tensors that it was captured with."""

    def __init__(self, function: Callable[..., Any], **inputs: Any) -> None:
        """Calls `function` once on a stream of its own, since its first call may allocate, and captures the second."""
        warm_up = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        warm_up.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(warm_up):
            function(**inputs)
        torch.cuda.current_stream().wait_stream(warm_up)
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph):
            self._outputs = function(**inputs)

    def __call__(self) -> Any:
        """Copies of the graph's output, a tensor or a tuple of tensors, which the next replay overwrites."""
        self._graph.replay()
        if isinstance(self._outputs, tuple):
            return tuple(output.clone() for output in self._outputs)
        return self._outputs.clone()
