"""The precision that the program asks of products."""

from __future__ import annotations

import torch


# torch.compile cannot trace the call; it compiles anew where the precision changes.
@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def allows_tf32() -> bool:
    """Whether products of floats may round to tf32, by torch.set_float32_matmul_precision."""
    precision: str = torch.get_float32_matmul_precision()
    return precision != "highest"
