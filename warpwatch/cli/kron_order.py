"""The parsed command line of `warpwatch kron`."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from warpwatch.operator import Case, Direction


@dataclass(frozen=True, slots=True)
class KronCommand:
    """The parsed command line. factors are in command-line order: the first belongs to the fastest axis of x.

    Empty variants stand for all that can run, an empty output for the user's own folder of traces.
    """

    mode: str
    dtype: str
    device: str
    batch: int
    factors: tuple[int, ...]
    variants: tuple[str, ...]
    threads: int
    implementation: str
    wait: int
    warmup: int
    active: int
    output: str

    @property
    def state_size(self) -> int:
        return math.prod(self.factors)

    @property
    def multiply_adds(self) -> int:
        """Of one layer, forward."""
        return self.batch * self.state_size * sum(self.factors)

    @property
    def intensity(self) -> float:
        """Multiply-adds of one layer per element read or written: the figure that this command has always called AI."""
        return self.multiply_adds / (2 * self.batch * self.state_size + sum(factor**2 for factor in self.factors))

    @property
    def label(self) -> str:
        return f"{' x '.join(map(str, (self.batch, *self.factors)))} ({self.multiply_adds:.3e})"

    def case(self, direction: Direction) -> Case:
        from warpwatch.operator import case

        return case("f32" if self.dtype == "f" else "f64", direction, batch=self.batch, factors=self.factors)
