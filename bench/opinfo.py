"""Checks torch's own operators, which are right, and counts those that the checker accuses: it must be none.

python bench/opinfo.py [--device cuda:0] [--precisions f32,bf16] [--only NAME,…] [--honesty] [--seconds 600] [--skip 0]

Operators and sample inputs come from torch's test database (OpInfo). The reference is the operator itself in float64,
and the variants are the operator in the case's precision and, where torch has one, its second implementation in
Python (`torch._refs`). Each goes through the real check, forward and backward; with `--honesty` also through the
checks before a bench. The depth of sums is not declared, which gives the narrowest tolerance.

Prints each accusation with its reason, then what was left out and why. Exits with 1 after an accusation. An operator
that stops the device counts as accused; another process goes on after it.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import random
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, NoReturn

import numpy
import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_unflatten

sys.path.insert(0, str(Path(__file__).parents[1]))

from warpwatch.contract.words import Status
from warpwatch.operator import Case, Cost, DeviceKind, Operator, Variant, case
from warpwatch.worker.harness.checks.anticheat import expect_honest
from warpwatch.worker.harness.checks.check import check
from warpwatch.worker.harness.checks.probes import ProbeHistory
from warpwatch.worker.harness.failures import Refusal, WrongResultError, status_of
from warpwatch.worker.harness.guards.integrity import TamperGuard, watch
from warpwatch.worker.harness.problem import DTYPES, CaseProblem, bits

SAMPLES = 3
"""Sample inputs of one operator: the first, the middle and the last."""
SEEDS = (1, 2, 3)
RESUME = "--resume"

UNDEFINED = {
    "empty": "uninitialised memory",
    "as_strided": "the result depends on memory beside the input",
    "to_sparse": "sparse result",
    "nn_functional_max_unpool": "samples whose number and shape vary with the seed",
    "torch_ops_aten__flash_attention": "it takes no float64, so there is no oracle",
    "torch_ops_aten__efficient_attention": "it takes no float64, so there is no oracle",
}
"""Operators whose results are not a function of their inputs' numbers, by the beginning of their names."""

DECLARED = {
    "nn_functional_conv": "a convolution may multiply the zeros of its padding",
    "corrcoef": "a rounding error decides at the border of its clip",
    "nanquantile": "it stops a GPU where a NaN is among the quantiles",
    "quantile": "it stops a GPU where a NaN is among the quantiles",
    "nn_functional_binary_cross_entropy": "it stops a GPU where a probability is none",
    "nn_functional_pdist": "a norm of order 0 counts a NaN as a difference in torch's second implementation",
}
"""Why special values may come out elsewhere, as a definition would declare it; by the beginning of names."""
WRONG_IN_TORCH = {
    ("matrix_exp", "bf16"): "torch returns NaN for finite numbers",
    ("matrix_exp", "f16"): "torch returns NaN for finite numbers",
    ("nn_functional_soft_margin_loss", "f16"): "an exponential overflows f16 inside",
    ("inner", "bf16"): "torch sums strided products in bf16, with errors of 7 %",
    ("histc", "bf16"): "torch chooses bins by arithmetic in bf16",
    ("nn_functional_nll_loss", "bf16"): "torch's second implementation sums in bf16",
    ("histc", "f16"): "torch chooses bins by arithmetic in f16",
}
"""Operators that torch itself computes wrong or by other rules in a precision."""


class LeftOutError(Exception):
    """An operator or sample that is no function of dense real tensors; the message is the reason."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One sample of an operator: the leaves of its arguments, the tree that they belong to, which are differentiated,
    and what makes the result unique."""

    leaves: list[Any]
    tree: Any
    differentiated: tuple[int, ...]
    finish: Callable[[Any], Any]


@dataclass(slots=True)
class Tally:
    """What was checked, accused and left out. visited: operators of torch's list that need no other visit."""

    visited: int = 0
    seconds: float = 0.0
    operators: list[str] = field(default_factory=list)
    cases: int = 0
    accusations: list[str] = field(default_factory=list)
    left_out: dict[str, list[str]] = field(default_factory=dict)

    def leave_out(self, name: str, reason: str) -> None:
        self.left_out.setdefault(reason, []).append(name)


def draw(info: Any, index: int, precision: str, device: str, seed: int, gradients: bool) -> Sample:
    """Sample `index` of the operator, with numbers from `seed`."""
    torch.manual_seed(seed)
    random.seed(seed)
    numpy.random.seed(seed % 2**32)
    with torch.enable_grad():
        samples = all_samples(info, precision, device, gradients)
        sample = next(islice(samples, index, None))
    leaves, tree = tree_flatten((sample.input, sample.args, sample.kwargs))
    differentiated = tuple(i for i, leaf in enumerate(leaves) if isinstance(leaf, Tensor) and leaf.requires_grad)
    leaves = [leaf.detach() if isinstance(leaf, Tensor) else leaf for leaf in leaves]
    return Sample(leaves, tree, differentiated, sample.output_process_fn_grad)


def all_samples(info: Any, precision: str, device: str, gradients: bool) -> Iterator[Any]:
    # `info.sample_inputs` does the same, and reads the stack for every call, which takes 0.1 s.
    samples: Iterator[Any] = info.sample_inputs_func(info, device, DTYPES[precision], gradients)
    return iter(samples)


def count_samples(info: Any, precision: str, device: str, gradients: bool) -> int:
    torch.manual_seed(0)
    return sum(1 for _ in all_samples(info, precision, device, gradients))


def flat_outputs(value: Any) -> tuple[Tensor, ...]:
    return tuple(leaf for leaf in tree_flatten(value)[0] if isinstance(leaf, Tensor))


def make_operator(info: Any, index: int, chosen: Case, device: str, second: Any | None) -> Operator:
    """The operator of one sample: the reference and every variant call torch with the arguments of the drawn sample."""
    gradients = chosen.direction == "bwd"
    first = draw(info, index, chosen.precision, device, 0, gradients)

    def inputs(given: Case, _make: Any) -> dict[str, Any]:
        # The harness seeds torch before it asks for inputs, and the sample draws from that seed.
        leaves = draw(info, index, given.precision, device, torch.initial_seed(), gradients).leaves
        tensors = {f"x{i}": leaf for i, leaf in enumerate(leaves) if isinstance(leaf, Tensor)}
        return tensors | {"plain": [None if isinstance(leaf, Tensor) else leaf for leaf in leaves]}

    def calling(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(plain: list[Any], **tensors: Tensor) -> tuple[Tensor, ...]:
            leaves = [tensors.get(f"x{i}", leaf) for i, leaf in enumerate(plain)]
            x, args, kwargs = tree_unflatten(leaves, first.tree)
            returned = flat_outputs(first.finish(function(x, *args, **kwargs)))
            return tuple(y for y in returned if not gradients or y.dtype.is_floating_point)

        return call

    operator = Operator(
        info.formatted_name,
        "An operator of torch.",
        inputs=inputs,
        reference=calling(info.op),
        cost=lambda given: Cost(1, 1),
        cases={"quick": (chosen,)},
        gradients=tuple(f"x{i}" for i in first.differentiated),
    )
    declared = next((why for name, why in DECLARED.items() if info.formatted_name.startswith(name)), "")
    operator.variants["torch"] = Variant("torch", calling(info.op), "torch's own", no_special_values=declared)
    # torch promises gradients of its own operators only.
    if second is not None and not gradients:
        operator.variants["refs"] = Variant(
            "refs", calling(second.op), "torch's implementation in Python", no_special_values=declared
        )
    return operator


def expect_function(info: Any, operator: Operator, chosen: Case, device: torch.device) -> None:
    """Raises LeftOutError unless the operator is a function of dense real tensors with tensors as results."""
    if "wrapper_set_seed" in getattr(getattr(info.op, "__code__", None), "co_names", ()):
        raise LeftOutError("random results")
    if (operator.name, chosen.precision) in WRONG_IN_TORCH:
        raise LeftOutError(WRONG_IN_TORCH[operator.name, chosen.precision])
    for beginning, reason in UNDEFINED.items():
        if operator.name.startswith(beginning):
            raise LeftOutError(reason)
    problem = CaseProblem(operator, operator.variants["torch"], chosen, device)
    shapes = []
    for seed in SEEDS:
        data = problem._inputs(seed)
        if any(isinstance(leaf, torch.dtype) for leaf in data["plain"]):
            raise LeftOutError("a sample that names a dtype, so float64 is no oracle")
        tensors = [leaf for leaf in data.values() if isinstance(leaf, Tensor)]
        if any(t.layout is not torch.strided for t in tensors):
            raise LeftOutError("sparse inputs")
        if any(t.device.type != device.type for t in tensors):
            raise LeftOutError("an input on another device")
        if any(t.is_complex() for t in tensors):
            raise LeftOutError("complex inputs")
        if len({t.dtype for t in tensors if t.is_floating_point()}) > 1:
            raise LeftOutError("inputs of two precisions")
        before = [t.clone() for t in tensors]
        first, second = (operator.reference(**data) for _ in range(2))
        _expect_plain_results(first, device)
        if any(not torch.equal(bits(a), bits(b)) for a, b in zip(before, tensors, strict=True)):
            raise LeftOutError("changes its input by contract")
        if any(not torch.equal(bits(a), bits(b)) for a, b in zip(first, second, strict=True)):
            raise LeftOutError("random results")
        shapes.append([y.shape for y in first])
    if any(other != shapes[0] for other in shapes):
        raise LeftOutError("the shape of the result depends on the numbers")


def _expect_plain_results(outputs: tuple[Tensor, ...], device: torch.device) -> None:
    if not outputs:
        raise LeftOutError("no tensor as result")
    if any(y.is_complex() for y in outputs):
        raise LeftOutError("complex results")
    if any(y.layout is not torch.strided for y in outputs):
        raise LeftOutError("sparse result")
    if any(y.device.type != device.type for y in outputs):
        raise LeftOutError("a result on another device")


def accuse(operator: Operator, variant: str, chosen: Case, device: torch.device, honesty: bool) -> str:
    """Why the harness accuses the variant; "" where it does not. Refusal where it cannot be measured."""
    problem = CaseProblem(operator, operator.variants[variant], chosen, device)
    problem.refuse_unsupported()
    opchecked = ProbeHistory()
    try:
        with watch(GUARD):
            reply = check(problem, SEEDS[0], opchecked, lambda done, total, text: None)
        if reply.status is not Status.OK:
            return f"{reply.fault or reply.status}: {reply.message}"
        if honesty:
            with watch(GUARD), problem.modes():
                expect_honest(problem, SEEDS[0])
    except WrongResultError as error:
        return f"{error.fault}: {error}"
    return ""


def run_operator(info: Any, second: Any | None, arguments: argparse.Namespace, tally: Tally) -> None:
    """Checks the chosen samples of one operator in every precision and direction."""
    kind: DeviceKind = "cuda" if arguments.device.startswith("cuda") else "cpu"
    for precision in arguments.precisions.split(","):
        if DTYPES[precision] not in info.supported_dtypes(kind):
            continue
        for direction in ("fwd", "bwd"):
            gradients = direction == "bwd"
            if gradients and not (info.supports_autograd and DTYPES[precision] in info.supported_backward_dtypes(kind)):
                continue
            count = count_samples(info, precision, arguments.device, gradients)
            for index in sorted({0, count // 2, count - 1})[:SAMPLES] if count else ():
                chosen = case(precision, direction, sample=index)
                run_sample(info, second, index, chosen, arguments, tally)


def run_sample(
    info: Any, second: Any | None, index: int, chosen: Case, arguments: argparse.Namespace, tally: Tally
) -> None:
    """Checks every variant of one sample, and files accusations and reasons for leaving it out."""
    device, name = torch.device(arguments.device), f"{info.formatted_name} {chosen.key}"
    try:
        operator = make_operator(info, index, chosen, arguments.device, second)
        if chosen.direction == "bwd" and not operator.gradients:
            raise LeftOutError("no differentiable input")
        expect_function(info, operator, chosen, device)
    except LeftOutError as left_out:
        tally.leave_out(name, str(left_out))
        return
    except Exception as error:  # noqa: BLE001 - samples that torch itself refuses raise anything.
        tally.leave_out(name, f"{type(error).__name__} from torch or its samples")
        return
    for variant in operator.variants:
        try:
            reason = accuse(operator, variant, chosen, device, arguments.honesty)
        except Refusal as refusal:
            tally.leave_out(f"{name} {variant}", str(refusal.status))
            continue
        except Exception as error:  # noqa: BLE001 - a failure of the variant is a status of its own.
            if variant != "torch":
                tally.leave_out(f"{name} {variant}", f"{variant} raises {type(error).__name__}: {str(error)[:80]}")
                continue
            reason = f"{status_of(error)}: {type(error).__name__}: {error}"
        if info.formatted_name not in tally.operators:
            tally.operators.append(info.formatted_name)
        tally.cases += 1
        if reason:
            tally.accusations.append(f"{name} {variant}: {reason}")
            print(tally.accusations[-1][:600], flush=True)
            if "AcceleratorError" in reason:
                # Nothing else works on this device in this process.
                continue_elsewhere(tally)


def continue_elsewhere(tally: Tally) -> NoReturn:
    """Starts this program anew, after the operators that were visited and the one that is."""
    with tempfile.NamedTemporaryFile("w", suffix=".json", delete=False) as file:
        json.dump(asdict(tally) | {"visited": tally.visited + 1, "seconds": tally.seconds + time.monotonic()}, file)
    words = sys.argv[: sys.argv.index(RESUME)] if RESUME in sys.argv else sys.argv
    os.execv(sys.executable, [sys.executable, *words, RESUME, file.name])


def second_implementations(module: Any) -> dict[str, Any]:
    """torch's implementations in Python by the name of the operator that they implement."""
    return {ref.torch_opinfo.formatted_name: ref for ref in module.python_ref_db if hasattr(ref, "torch_opinfo")}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else "")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--precisions", default="f32,bf16", help="of f64, f32, bf16, f16; separated by commas")
    parser.add_argument("--only", default="", help="names of operators; all by default")
    parser.add_argument("--honesty", action="store_true", help="also run the checks before a bench")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="visit no more operators after so long")
    parser.add_argument("--skip", type=int, default=0, help="operators of torch's list to begin after")
    parser.add_argument(RESUME, type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    module = importlib.import_module("torch.testing._internal.common_methods_invocations")
    seconds, only = second_implementations(module), set(filter(None, arguments.only.split(",")))
    tally = Tally(**json.loads(arguments.resume.read_text())) if arguments.resume else Tally(visited=arguments.skip)
    tally.seconds -= time.monotonic()
    # torch's tests forbid to set the flags of cuDNN, which every check sets.
    with torch.backends.__allow_nonbracketed_mutation():
        for info in module.op_db[tally.visited :]:
            if tally.seconds + time.monotonic() > arguments.seconds:
                break
            if not only or info.formatted_name in only:
                run_operator(info, seconds.get(info.formatted_name), arguments, tally)
            tally.visited += 1
    for reason, names in sorted(tally.left_out.items(), key=lambda item: -len(item[1])):
        operators = list(dict.fromkeys(name.split()[0] for name in names))
        print(f"left out, {reason}: {len(names)} cases of {', '.join(operators[:12])}{', …' * (len(operators) > 12)}")
    print(
        f"{arguments.device}, torch {torch.__version__}: {len(tally.operators)} operators, {tally.cases} cases, "
        f"{len(tally.accusations)} accusations, {tally.seconds + time.monotonic():.0f} s"
    )
    return int(bool(tally.accusations))


GUARD = TamperGuard()

if __name__ == "__main__":
    sys.exit(main())
