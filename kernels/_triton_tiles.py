"""The order of the tiles of a product in Triton, shared by operators of coded matrices."""

from __future__ import annotations

try:
    import triton
    import triton.language as tl
except ImportError:
    pass
else:

    @triton.jit  # type: ignore[untyped-decorator]
    def grouped_tile(m, n, block_m: tl.constexpr, block_n: tl.constexpr, group: tl.constexpr):  # type: ignore[no-untyped-def]
        """(rows, columns) of this program's tile of an m × n result. Programs that run together share the columns of a
        group of rows of tiles, which stay in the L2."""
        rows, columns = tl.cdiv(m, block_m), tl.cdiv(n, block_n)
        tile = tl.program_id(0)
        first = tile // (group * columns) * group
        tall = min(rows - first, group)
        i = (first + tile % (group * columns) % tall).to(tl.int64) * block_m + tl.arange(0, block_m)
        j = (tile % (group * columns) // tall).to(tl.int64) * block_n + tl.arange(0, block_n)
        return i, j
