"""`warpwatch kron`: check, bench or profile the factorized linear layer of this checkout, without a server."""

from __future__ import annotations

import argparse
import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import typer

from warpwatch.cli.app import app, exit_on

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


MODES = ("check", "bench", "profile")
USAGE = """warpwatch kron [--dtype {f,d}] [--device {cpu,cuda}] batch_size factor [factor ...] {check,bench,profile}
       warpwatch kron {check,bench,profile} [--dtype {f,d}] [--device {cpu,cuda}] batch_size factor [factor ...]
       check and bench also take [--variants NAME,NAME...], bench [--threads N]
       profile also takes [--implementation NAME] [--wait N] [--warmup N] [--active N] [--output FOLDER]"""


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True}, add_help_option=False)
def kron(context: typer.Context) -> None:
    """Check, bench or profile two stacked factorized linear layers, without a server (`warpwatch kron --help`)."""
    command = parse(context.args)
    # torch warns where NumPy is not installed, which nothing here needs.
    warnings.filterwarnings("ignore", "Failed to initialize NumPy")
    from warpwatch.cli import kron_layer

    with exit_on(kron_layer.KronError):
        layer = kron_layer.Layer(command)
        passed = {"check": kron_layer.check, "bench": kron_layer.bench, "profile": kron_layer.profile}[command.mode](
            layer
        )
    raise typer.Exit(0 if passed else 1)


def parse(arguments: Sequence[str]) -> KronCommand:
    """Parses the command line, with the mode first or last; prints the usage and exits 2 on an error."""
    parser = argparse.ArgumentParser(
        prog="warpwatch kron", usage=USAGE, description="Two stacked factorized linear layers."
    )
    parser.add_argument(
        "words", nargs="*", metavar="batch_size factor... mode", help=f"sizes, and one of {', '.join(MODES)}"
    )
    parser.add_argument("--dtype", choices=("f", "d"), default="f", help="float or double; default: f")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="", help="default: cuda where there is a GPU")
    parser.add_argument(
        "--variants", default="", metavar="NAMES", help="such as v1,v2,v3; default: all that can run here"
    )
    parser.add_argument("--threads", type=int, default=1, metavar="N", help="CPU threads of a bench; default: 1")
    parser.add_argument("--implementation", metavar="NAME", help="the variant to profile; default: v1")
    for name, default in (("wait", 1), ("warmup", 1), ("active", 2)):
        parser.add_argument(
            f"--{name}", type=int, default=default, metavar="N", help=f"steps of the profile; default: {default}"
        )
    parser.add_argument("--output", default="", metavar="FOLDER", help="where a profile writes its traces")
    given = parser.parse_intermixed_args(list(arguments))
    modes = [word for word in given.words if word in MODES]
    sizes = [word for word in given.words if word not in MODES]
    if len(modes) != 1:
        parser.error(f"name one of {', '.join(MODES)}")
    if bad := next((word for word in sizes if not word.isascii() or not word.isdigit() or int(word) < 1), None):
        parser.error(f"{bad!r} is not a size: batch_size and factors are whole numbers from 1")
    if len(sizes) < 2:
        parser.error("batch_size and at least one factor are needed")
    if min(given.wait, given.warmup) < 0 or given.active < 1:
        parser.error("--wait and --warmup must be 0 or more, --active 1 or more")
    if given.threads < 1:
        parser.error("--threads must be 1 or more")
    if given.implementation and modes[0] != "profile":
        # Scripts of the stand-alone tool pass it to every mode.
        typer.echo(f"--implementation is ignored: {modes[0]} takes --variants", err=True)
    variants = tuple(dict.fromkeys(name for name in given.variants.split(",") if name))
    batch, *factors = map(int, sizes)
    steps = (given.wait, given.warmup, given.active)
    chosen = (variants, given.threads, given.implementation or "v1")
    return KronCommand(modes[0], given.dtype, given.device, batch, tuple(factors), *chosen, *steps, given.output)
