"""The operators that the seeded service measures."""

from __future__ import annotations

from dataclasses import dataclass

from warpwatch.contract.catalogue import CaseEntry, Catalogue, OperatorEntry, VariantEntry


@dataclass(frozen=True)
class Op:
    """One operator: summary, cases as (key, FLOP, bytes, nanoseconds of v1 on the GPU), variants as (name, idea,
    outcome, factor of v1)."""

    name: str
    summary: str
    cases: tuple[tuple[str, int, int, float], ...]
    variants: tuple[tuple[str, str, str, float], ...]


OPERATORS = (
    Op(
        "kron",
        "Factorized linear layer: a product with W_K ⊗ … ⊗ W_1 that never forms the big matrix.",
        (
            ("batch=32,factors=128x128,f32,fwd", 268_435_456, 4_325_376, 24_800.0),
            ("batch=32,factors=128x128,f32,bwd", 536_870_912, 8_650_752, 58_300.0),
            ("batch=16,factors=32x32,f32,fwd", 2_097_152, 139_264, 9_100.0),
            ("batch=1024,factors=64x64,f32,fwd", 1_073_741_824, 33_587_200, 80_600.0),
            ("batch=7,factors=5x11,f64,fwd", 12_320, 7_328, 7_400.0),
        ),
        (
            ("v1", "one movedim and one matmul per factor", "the baseline", 1.0),
            ("v2", "one plain GEMM per factor with the transposes folded in", "no copies between factors", 0.72),
            ("v3", "both factors fused in shared memory", "one launch, no trip to memory between factors", 0.41),
            ("cublas", "one strided batched GEMM per factor", "", 0.83),
        ),
    ),
    Op(
        "square",
        "Element-wise square.",
        (("n=2048x2048,f32,fwd", 4_194_304, 33_554_432, 13_400.0), ("n=512x512,f32,fwd", 262_144, 2_097_152, 2_500.0)),
        (
            ("v1", "a * a", "", 1.0),
            ("v2", "torch.square", "the same kernel", 1.01),
            ("v3", "four elements per thread", "", 0.97),
            ("triton", "one block per 1024 elements", "", 1.06),
        ),
    ),
    Op(
        "vector_add",
        "Sum of two vectors.",
        (
            ("n=65536,f32,fwd", 65_536, 786_432, 2_300.0),
            ("n=16777216,f32,fwd", 16_777_216, 201_326_592, 71_000.0),
            ("n=513,i32,fwd", 513, 6_156, 2_050.0),
        ),
        (
            ("v1", "a + b", "", 1.0),
            ("v2", "torch.add into a given output", "", 0.98),
            ("v3", "grid-stride loop", "", 0.94),
        ),
    ),
)


def catalogue() -> Catalogue:
    return Catalogue(1, [_entry(op) for op in OPERATORS])


def _entry(op: Op) -> OperatorEntry:
    cases = [
        CaseEntry(
            key,
            sizes={"n": number},
            precision=key.split(",")[-2],
            direction=key.split(",")[-1],
            layout="contiguous",
            suites=["quick", "full"] if number < 3 else ["full"],
            flops=flops,
            bytes=size,
        )
        for number, (key, flops, size, _) in enumerate(op.cases)
    ]
    variants = [
        VariantEntry(
            name, idea, outcome, ["cuda"] if name in ("cublas", "triton") else ["cpu", "cuda"], native=name == "v3"
        )
        for name, idea, outcome, _ in op.variants
    ]
    return OperatorEntry(op.name, op.summary, variants, cases)
