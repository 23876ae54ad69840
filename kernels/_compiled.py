"""torch.compile, as the variants `compile` use it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def compiled(function: Callable[..., Any], fullgraph: bool = True) -> Callable[..., Any]:
    """`function`, compiled anew for every shape: after a few shapes torch.compile would otherwise run the plain code
    and call it compiled.

    Call this when the variant is first called, as the compiler takes longer to import than torch itself.
    """
    import torch._dynamo

    torch._dynamo.config.recompile_limit = 1000
    return torch.compile(function, fullgraph=fullgraph, dynamic=False)
