"""Times of einops on NumPy arrays: small ones, where parsing and caching show, and one where copying does."""

import numpy
import pytest
from einops import rearrange, reduce, repeat

SMALL, LARGE = (2, 3, 4, 5), (8, 16, 64, 64)


@pytest.mark.parametrize("shape", [SMALL, LARGE], ids=["small", "large"])
def test_rearrange(benchmark, shape):
    x = numpy.zeros(shape, numpy.float32)
    assert benchmark(rearrange, x, "b c h w -> b (h w) c").shape == (shape[0], shape[2] * shape[3], shape[1])


@pytest.mark.parametrize("shape", [SMALL, LARGE], ids=["small", "large"])
def test_reduce(benchmark, shape):
    x = numpy.ones(shape, numpy.float32)
    assert benchmark(reduce, x, "b c h w -> b c", "mean").shape == shape[:2]


def test_repeat(benchmark):
    x = numpy.zeros(SMALL[2:], numpy.float32)
    assert benchmark(repeat, x, "h w -> (h 2) w c", c=3).shape == (8, 5, 3)


def test_new_pattern(benchmark):
    """A pattern that no cache holds: its axes get new names in every call."""
    x, count = numpy.zeros(SMALL, numpy.float32), iter(range(10**9))

    def call():
        a = f"a{next(count)}"
        return rearrange(x, f"{a} b c d -> ({a} b) c d")

    assert benchmark(call).shape == (6, 4, 5)
