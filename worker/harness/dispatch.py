"""The base of all modes in which the harness sees each call of a torch operator."""

from __future__ import annotations

from torch.utils._python_dispatch import TorchDispatchMode


class DispatchMode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A mode that `torch.compile` knows nothing of."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Keeps torch from importing torch._dynamo, which takes seconds, at the first call."""
        return False
