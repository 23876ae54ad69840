"""Maps exceptions of kernel code to statuses, and decides whether the process can go on."""

from __future__ import annotations

import gc
import traceback
from dataclasses import dataclass, field

import torch

from warpwatch.contract.words import Fault, Status

MESSAGE_LIMIT = 8000
"""Characters of a message. A longer traceback loses its beginning, because its end says more."""

_MEMORY_WORDS = (
    "std::bad_alloc",
    "DefaultCPUAllocator: can't allocate memory",
    "DefaultCPUAllocator: not enough memory",
    "out of memory",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUDNN_STATUS_ALLOC_FAILED",
)
_NAMELESS = "torch_call_dispatcher("
"""The text in the error of a call that failed in torch's stable C++ interface. Only the error stream has the cause."""


class Refusal(Exception):  # noqa: N818 - it carries a status, which is a result and not an error
    """A variant cannot be measured as requested; the message says why, and `status` is its result."""

    def __init__(self, status: Status, message: str) -> None:
        super().__init__(message)
        self.status = status


class WrongResultError(Exception):
    """A variant computed a wrong result, or cheated; subjects name what the fault is about, such as a tensor."""

    def __init__(self, message: str, fault: Fault, *subjects: str) -> None:
        super().__init__(message)
        self.fault = fault
        self.subjects = list(subjects)


class BadDefinitionError(Exception):
    """The file of an operator is at fault, and no variant of it; the message names the line and the remedy."""


@dataclass(frozen=True, slots=True)
class Failure:
    """A failed request. poisoned: the CUDA context is lost, so every later call of this process would fail as well."""

    status: Status
    message: str
    poisoned: bool = False
    fault: Fault | None = None
    subjects: list[str] = field(default_factory=list)


def describe(error: BaseException, device: torch.device) -> Failure:
    """The status and message of `error`. Frees the tensors that its traceback holds."""
    if isinstance(error, (Refusal, WrongResultError, BadDefinitionError)):
        message = str(error)
    else:
        text = "".join(traceback.format_exception(error)).rstrip()
        message = text if len(text) <= MESSAGE_LIMIT else f"…{text[-MESSAGE_LIMIT:]}"
    status = status_of(error)
    if isinstance(error, Refusal):
        return Failure(status, message)
    # Frames of the traceback hold the tensors that filled the memory, and the next variant would run out of it too.
    traceback.clear_frames(error.__traceback__)
    error.__traceback__ = None
    gc.collect()
    if not device_works(device):
        # Pages and tables show the first line alone.
        words = [(str(error).splitlines() or [type(error).__name__])[0].rstrip(".") + "."]
        words += [*getattr(error, "__notes__", []), "The CUDA context is lost, so this process ends."]
        return Failure(Status.CRASHED, "\n".join((" ".join(words), message)), poisoned=True)
    if device.type == "cuda":
        torch.cuda.empty_cache()
    if isinstance(error, WrongResultError):
        return Failure(status, message, fault=error.fault, subjects=error.subjects)
    if isinstance(error, BadDefinitionError):
        return Failure(status, message, fault=Fault.BAD_DEFINITION)
    return Failure(status, message)


def status_of(error: BaseException) -> Status:
    """The status of an exception of kernel code."""
    if isinstance(error, Refusal):
        return error.status
    if isinstance(error, WrongResultError):
        return Status.WRONG
    if isinstance(error, BadDefinitionError):
        return Status.BUILD_FAILED
    if isinstance(error, (MemoryError, torch.OutOfMemoryError)):
        return Status.OUT_OF_MEMORY
    if isinstance(error, RuntimeError) and any(words in str(error) for words in _MEMORY_WORDS):
        return Status.OUT_OF_MEMORY
    if isinstance(error, RuntimeError) and _NAMELESS in str(error) and _allocator_refused():
        return Status.OUT_OF_MEMORY
    return Status.CRASHED


_refused = 0


def _allocator_refused() -> bool:
    """Whether torch's allocator for the GPU has refused memory since it was asked last."""
    global _refused
    before, _refused = _refused, int(torch.cuda.memory_stats().get("num_ooms", 0))
    return _refused > before


def device_works(device: torch.device) -> bool:
    """Whether the CUDA context still works; after an illegal access every call fails. Always true on a CPU."""
    if device.type != "cuda":
        return True
    try:
        torch.cuda.synchronize(device)
    except RuntimeError:
        return False
    return True
