"""y = a * a, element by element: the smallest kernel with a gradient, dy/da = 2a."""

from __future__ import annotations

import atexit
import functools
import hashlib
import importlib.util
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from warpwatch.operator import Case, Cost, DeviceKind, Maker, Operator, both_directions, case
from warpwatch.peers import compile_unsupported, triton_unsupported

from ._compiled import compiled
from ._gradients import once_differentiable

TILES, VECTORS = range(2)
"""Launch shapes of the native operators, numbered as in csrc/square/square.h."""


def inputs(case: Case, make: Maker) -> dict[str, Any]:
    return {"a": make.normal(*case["size"])}


def reference(a: Tensor) -> Tensor:
    return a * a


def cost(case: Case) -> Cost:
    """Forward reads a and writes y; backward reads a and the incoming gradient and writes da = 2 * g * a."""
    rows, columns = case["size"]
    n = rows * columns
    if case.direction == "fwd":
        return Cost(n, 2 * n * case.element_bytes)
    return Cost(2 * n, 3 * n * case.element_bytes)


def register_native() -> None:
    """Shapes for torch.compile, and the gradient, for the torch operators that the library defines."""

    @torch.library.register_fake("warpwatch::square")  # type: ignore[untyped-decorator]
    def fake(a: Tensor, launch: int = TILES) -> Tensor:
        return a.new_empty(a.shape)

    @torch.library.register_fake("warpwatch::square_backward")  # type: ignore[untyped-decorator]
    def fake_backward(gradient: Tensor, a: Tensor, launch: int = TILES) -> Tensor:
        return a.new_empty(a.shape)

    def remember(ctx: Any, inputs: tuple[Tensor, int], output: Tensor) -> None:
        a, ctx.launch = inputs
        ctx.save_for_backward(a)

    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        (a,) = ctx.saved_tensors
        return torch.ops.warpwatch.square_backward(gradient, a, ctx.launch), None

    torch.library.register_autograd("warpwatch::square", backward, setup_context=remember)


QUICK = both_directions(case("f32", size=(512, 512)), case("f32", size=(333, 257)), case("f64", size=(256, 256)))
FULL = (
    *QUICK,
    *both_directions(
        *(case("f32", size=(side, side)) for side in (1000, 2048, 4096, 10000)),
        case("f32", size=(1023, 4097)),
        case("f64", size=(4096, 4096)),
    ),
)
EDGE = (
    *both_directions(case("f32", size=(1, 1)), case("f32", size=(15, 17))),
    case("f32", size=(0, 7)),
    case("f32", size=(1, 4097)),
)

operator = Operator(
    "square",
    "y = a * a, element by element.",
    inputs=inputs,
    reference=reference,
    cost=cost,
    cases={"quick": QUICK, "full": FULL, "edge": EDGE},
    gradients=("a",),
    native=register_native,
)


@operator.variant("v1", idea="a ** 2: the general power, which torch turns into a product")
def v1(a: Tensor) -> Tensor:
    return a**2


@operator.variant("v2", idea="torch.square")
def v2(a: Tensor) -> Tensor:
    return torch.square(a)


@operator.variant("mul", idea="a * a: the same product, whose gradient torch computes as two products and a sum")
def mul(a: Tensor) -> Tensor:
    return a * a


@operator.variant(
    "v3",
    idea="C++ loop over torch's threads on the CPU; 16x16 blocks, one element per thread, on CUDA",
    outcome="one element per thread keeps too few bytes in flight",
    native=True,
)
def v3(a: Tensor) -> Tensor:
    return _native(a, TILES)


@operator.variant(
    "v4",
    idea="16 bytes per access, a fixed grid that strides",
    outcome="memory bandwidth is the limit",
    native=True,
    devices=("cuda",),
)
def v4(a: Tensor) -> Tensor:
    return _native(a, VECTORS)


INLINE_HEADERS = """
#include <ATen/Dispatch.h>
#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty_like.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/utils/pybind.h>
"""
"""What the sources use alone: all of torch's headers take half a minute to compile."""
INLINE_KERNEL = r"""
#include <cstdint>
#include <cuda_runtime.h>

template <class T>
__global__ void inline_product(T factor, const T* a, const T* b, T* y, int64_t n) {
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i < n) y[i] = factor * a[i] * b[i];
}

template <class T>
void launch_product(T factor, const T* a, const T* b, T* y, int64_t n, cudaStream_t stream) {
  inline_product<<<(n + 255) / 256, 256, 0, stream>>>(factor, a, b, y, n);
}
template void launch_product(float, const float*, const float*, float*, int64_t, cudaStream_t);
template void launch_product(double, const double*, const double*, double*, int64_t, cudaStream_t);
"""
INLINE_LAUNCH = (
    INLINE_HEADERS
    + r"""
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

template <class T>
void launch_product(T factor, const T* a, const T* b, T* y, int64_t n, cudaStream_t stream);

at::Tensor product(double factor, const at::Tensor& a_given, const at::Tensor& b_given) {
  const c10::cuda::CUDAGuard guard(a_given.device());
  const at::Tensor a = a_given.contiguous(), b = b_given.contiguous();
  at::Tensor y = at::empty_like(a);
  if (a.numel() == 0) return y;
  AT_DISPATCH_FLOATING_TYPES(a.scalar_type(), "product", [&] {
    launch_product(static_cast<scalar_t>(factor), a.const_data_ptr<scalar_t>(), b.const_data_ptr<scalar_t>(),
                   y.data_ptr<scalar_t>(), a.numel(), c10::cuda::getCurrentCUDAStream());
  });
  C10_CUDA_KERNEL_LAUNCH_CHECK();
  return y;
}
"""
)


INLINE_LOOP = (
    INLINE_HEADERS
    + r"""
at::Tensor product(double factor, const at::Tensor& a_given, const at::Tensor& b_given) {
  const at::Tensor a = a_given.contiguous(), b = b_given.contiguous();
  at::Tensor y = at::empty_like(a);
  AT_DISPATCH_FLOATING_TYPES(a.scalar_type(), "product", [&] {
    const scalar_t *left = a.const_data_ptr<scalar_t>(), *right = b.const_data_ptr<scalar_t>();
    scalar_t* out = y.mutable_data_ptr<scalar_t>();
    const scalar_t by = static_cast<scalar_t>(factor);
    at::parallel_for(0, a.numel(), 16384, [=](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) out[i] = by * left[i] * right[i];
    });
  });
  return y;
}
"""
)


def inline_unsupported(case: Case, device: DeviceKind) -> str | None:
    """Why torch cannot compile C++ or CUDA here."""
    cuda = [os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), "/usr/local/cuda"]
    if device == "cpu" and not shutil.which(os.environ.get("CXX", "c++")):
        return "load_inline needs a C++ compiler: install g++, or set CXX"
    if device == "cuda" and not (
        shutil.which("nvcc") or any(folder and Path(folder, "bin", "nvcc").exists() for folder in cuda)
    ):
        return "load_inline needs nvcc: install a CUDA toolkit and put nvcc on PATH, or set CUDA_HOME"
    return (
        None
        if importlib.util.find_spec("ninja") or shutil.which("ninja")
        else "load_inline needs ninja: pip install ninja"
    )


def compile_inline(a: Tensor) -> dict[str, Any]:
    return {"product": _inline(a.device.type)}


@operator.variant(
    "load_inline",
    idea=(
        "C++ or CUDA source inside the Python file, compiled by torch.utils.cpp_extension.load_inline when it is "
        "prepared"
    ),
    unsupported=inline_unsupported,
    prepare=compile_inline,
)
def load_inline(a: Tensor, product: Callable[[float, Tensor, Tensor], Tensor]) -> Tensor:
    y: Tensor = InlineSquare.apply(a, product)  # type: ignore[no-untyped-call]
    return y


class InlineSquare(torch.autograd.Function):
    """The inline kernel and its gradient: both are a constant times two operands."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, product: Callable[[float, Tensor, Tensor], Tensor]) -> Tensor:
        ctx.save_for_backward(a)
        ctx.product = product
        return product(1.0, a, a)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (a,) = ctx.saved_tensors
        return ctx.product(2.0, gradients[0], a), None


@functools.cache
def _inline(device: str) -> Callable[[float, Tensor, Tensor], Tensor]:
    """Compiled once for all processes with the same extensions, as those that measure one commit have. torch would
    compile anew wherever the folder of these has another name, as it has for each process without namespaces."""
    from torch.utils import cpp_extension

    name = f"warpwatch_square_{device}"
    sources = [INLINE_LOOP] if device == "cpu" else [INLINE_LAUNCH, INLINE_KERNEL]
    options: dict[str, Any] = {"cuda_sources": sources[1:], "functions": ["product"], "no_implicit_headers": True}
    if device == "cpu":
        options |= {"extra_cflags": ["-O3", "-fopenmp"], "with_cuda": False}
    built_for = [torch.__version__, sys.version, device if device == "cpu" else str(torch.cuda.get_device_capability())]
    digest = hashlib.sha256("\0".join([*built_for, *sources]).encode()).hexdigest()
    extensions = os.environ.get("TORCH_EXTENSIONS_DIR")
    kept = Path(extensions, f"{name}-{digest}.so") if extensions else None
    if kept is not None and kept.exists():
        module = _load_extension(name, kept)
    else:
        folder = tempfile.mkdtemp(prefix="load_inline")
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        with _ninja_on_path():
            module = cpp_extension.load_inline(name, sources[0], build_directory=folder, **options)  # type: ignore[no-untyped-call]
        if kept is not None:
            kept.parent.mkdir(parents=True, exist_ok=True)
            # A copy that was cut short must not be found.
            partial = shutil.copyfile(module.__file__, kept.with_suffix(f".{os.getpid()}"))
            partial.replace(kept)
    product: Callable[[float, Tensor, Tensor], Tensor] = module.product
    return product


def _load_extension(name: str, path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@contextmanager
def _ninja_on_path() -> Iterator[None]:
    """torch runs `ninja` from PATH, which lacks a virtual environment that is not activated."""
    before = os.environ["PATH"]
    if importlib.util.find_spec("ninja"):
        import ninja

        os.environ["PATH"] = os.pathsep.join([ninja.BIN_DIR, before])
    try:
        yield
    finally:
        os.environ["PATH"] = before


@operator.variant("compile", idea="torch.compile of the reference", unsupported=compile_unsupported)
def compiled_square(a: Tensor) -> Tensor:
    return _compiled()(a)


@operator.variant(
    "triton",
    idea="one program per 1024 elements",
    outcome="memory bandwidth is the limit",
    unsupported=triton_unsupported,
)
def triton_square(a: Tensor) -> Tensor:
    y: Tensor = TritonSquare.apply(a)  # type: ignore[no-untyped-call]
    return y


@functools.cache
def _compiled() -> Callable[..., Tensor]:
    return compiled(reference)


def _native(a: Tensor, launch: int) -> Tensor:
    y: Tensor = torch.ops.warpwatch.square(a, launch)
    return y


try:
    import triton
    import triton.language as tl
except ImportError:
    pass
else:

    @triton.jit  # type: ignore[untyped-decorator]
    def product_kernel(factor, a, b, y, n, block: tl.constexpr):  # type: ignore[no-untyped-def]
        i = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
        inside = i < n
        tl.store(y + i, factor * tl.load(a + i, inside) * tl.load(b + i, inside), inside)


class TritonSquare(torch.autograd.Function):
    """The Triton kernel and its gradient: both are a constant times two operands."""

    @staticmethod
    def forward(ctx: Any, a: Tensor) -> Tensor:
        ctx.save_for_backward(a)
        return _triton_product(1.0, a, a)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        (a,) = ctx.saved_tensors
        return _triton_product(2.0, gradients[0], a)


def _triton_product(factor: float, a: Tensor, b: Tensor) -> Tensor:
    a, b = a.contiguous(), b.contiguous()
    y = torch.empty_like(a)
    product_kernel[(triton.cdiv(y.numel(), 1024),)](factor, a, b, y, y.numel(), 1024)
    return y
