"""spmm: every variant against the oracle, the torch operators that the library registers, and the traps of sparse
products."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from kernels import spmm as module
from warpwatch.contract.words import Status
from warpwatch.operator import Case, Operator
from warpwatch.worker.harness.problem import CaseProblem

from .conftest import DEVICES, ROOT, check_variant, runnable, sized

CASES = (*module.QUICK, *module.EDGE)
SMALL = sized("f32", "bwd", size=(70, 130), n=36, sparsity=80)


@pytest.fixture(params=DEVICES)
def matrices(request: pytest.FixtureRequest, operator: Operator) -> dict[str, Any]:
    """Inputs in float64 with an incoming gradient `g`, and A as a dense matrix."""
    case = sized("f64", "bwd", size=(33, 70), n=6, sparsity=80)
    data = CaseProblem(operator, operator.variants["v3"], case, torch.device(request.param)).data(3)
    dense = module.densify(data.inputs["crow"], data.inputs["col"], data.inputs["values"].detach(), 70)
    return {**data.inputs, "g": data.incoming[0], "a": dense}


@pytest.mark.parametrize(("name", "case", "device"), runnable(module.operator, CASES))
def test_every_variant_is_right(operator: Operator, name: str, case: Case, device: str) -> None:
    reply = check_variant(operator, name, case, device)
    assert reply.status is Status.OK, reply.message


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.key)
def test_a_pattern_is_ordered_and_has_the_entries_that_its_case_says(operator: Operator, case: Case) -> None:
    for seed in (1, 2):
        data = CaseProblem(operator, operator.variants["v1"], case, torch.device("cpu")).data(seed)
        crow, col = data.inputs["crow"], data.inputs["col"]
        (m, k), rows = case["size"], module.rows_of(data.inputs["crow"], data.inputs["col"])
        assert (crow[0], crow[-1], crow.numel(), col.numel()) == (0, module.entries(case), m + 1, module.entries(case))
        places = rows * k + col
        assert bool((places.diff() > 0).all()), "entries in order, no two in one place"
        assert col.numel() == 0 or bool(((col >= 0) & (col < k)).all())


def test_rows_differ_in_length(operator: Operator) -> None:
    data = CaseProblem(operator, operator.variants["v1"], module.QUICK[0], torch.device("cpu")).data(1)
    length = data.inputs["crow"].diff()
    assert int(length.max()) > 2 * int(length.min())


@pytest.mark.parametrize("version", [module.v3, lambda **inputs: module.v4(**inputs, **module.inspect(**inputs))])
def test_the_gradients_are_those_of_the_function(matrices: dict[str, Any], version: Any) -> None:
    crow, col = matrices["crow"], matrices["col"]
    run = lambda values, b: version(crow=crow, col=col, values=values, b=b)  # noqa: E731
    assert torch.autograd.gradcheck(run, (matrices["values"], matrices["b"]), nondet_tol=1e-12)


def test_the_torch_operators_keep_torchs_rules(matrices: dict[str, Any]) -> None:
    crow, col, values, b, g = (matrices[name] for name in ("crow", "col", "values", "b", "g"))
    ops, k = torch.ops.warpwatch, b.shape[0]
    starts = ops.spmm_inspect(crow, col, k)
    torch.library.opcheck(ops.spmm.default, (crow, col, values, b))
    values, b = values.detach(), b.detach()
    tests = ("test_schema", "test_faketensor")
    for op, args in (
        (ops.spmm_transposed, (crow, col, values, g, k)),
        (ops.spmm_sampled, (crow, col, g, b)),
        (ops.spmm_inspect, (crow, col, k)),
        (ops.spmm_tiled, (crow, col, starts, values, b)),
        (ops.spmm_tiled_sampled, (crow, col, starts, g, b)),
    ):
        torch.library.opcheck(op.default, args, test_utils=tests)


def test_views_are_multiplied_by_their_elements(matrices: dict[str, Any]) -> None:
    crow, col, values, b, a = (matrices[name] for name in ("crow", "col", "values", "b", "a"))
    twice = values.detach().repeat_interleave(2)[::2]
    wide = b.detach().t().contiguous().t()
    for view in (wide, torch.cat([wide, wide], 1)[:, 1:5], wide.new_ones(1, 1).expand(70, 5)):
        for y in (
            module.v3(crow, col, twice, view),
            torch.ops.warpwatch.spmm_tiled(crow, col, _starts(matrices), twice, view),
        ):
            torch.testing.assert_close(y, a @ view)


def _starts(matrices: dict[str, Any]) -> torch.Tensor:
    starts: torch.Tensor = torch.ops.warpwatch.spmm_inspect(matrices["crow"], matrices["col"], matrices["b"].shape[0])
    return starts


def test_a_zero_that_is_no_entry_meets_no_number(matrices: dict[str, Any]) -> None:
    """NaN and infinity in a row of B reach the rows of A that have an entry there, and no others."""
    crow, col, values, b, a = (matrices[name] for name in ("crow", "col", "values", "b", "a"))
    wild = b.detach().clone()
    wild[7, 2], wild[9, 3] = float("nan"), float("inf")
    expected = torch.stack([wild.new_zeros(33), wild.new_zeros(33)])
    for j, row in ((2, 7), (3, 9)):
        expected[j - 2] = (a[:, row] != 0).double()
    for y in (
        module.v3(crow, col, values.detach(), wild),
        torch.ops.warpwatch.spmm_tiled(crow, col, _starts(matrices), values, wild),
    ):
        assert torch.equal((~y[:, 2:4].isfinite()).double().t(), expected)
        assert y[:, [0, 1, 4, 5]].isfinite().all()


def test_no_columns_give_gradients_of_zero(matrices: dict[str, Any]) -> None:
    crow, col, b, g = (matrices[name].detach() for name in ("crow", "col", "b", "g"))
    zeros = b.new_zeros(col.numel())
    assert torch.equal(torch.ops.warpwatch.spmm_sampled(crow, col, g[:, :0], b[:, :0]), zeros)
    assert torch.equal(torch.ops.warpwatch.spmm_tiled_sampled(crow, col, _starts(matrices), g[:, :0], b[:, :0]), zeros)


@pytest.mark.parametrize("bad", ["int64 indices", "short values", "two dtypes", "another pattern's tiles"])
def test_operands_that_do_not_fit_are_refused(matrices: dict[str, Any], bad: str) -> None:
    crow, col, values, b = (matrices[name].detach() for name in ("crow", "col", "values", "b"))
    starts = _starts(matrices)
    if bad == "int64 indices":
        crow = crow.long()
    elif bad == "short values":
        values = values[1:]
    elif bad == "two dtypes":
        values = values.float()
    else:
        starts = starts[1:]
    with pytest.raises(RuntimeError, match=r"must|belong"):
        torch.ops.warpwatch.spmm_tiled(crow, col, starts, values, b)


# ---- traps ----


@pytest.mark.parametrize(("name", "case", "device"), runnable(module.operator, [SMALL]))
def test_the_incoming_gradient_is_dense(operator: Operator, name: str, case: Case, device: str) -> None:
    """A gradient whose zeros, or whose strides, are not A's: taken as sparse, or by its pattern, it gives other
    numbers."""
    variant = operator.variants[name]
    for incoming in ("ones", "a single column"):
        problem = CaseProblem(operator, variant, case, torch.device(device))
        data = problem.data(5)
        inputs = data.inputs
        y = variant.function(**inputs, **problem.prepared(data))
        g = torch.ones(1, device=device).expand(y.shape) if incoming == "ones" else torch.zeros_like(y)
        if incoming != "ones":
            g[:, 3] = torch.arange(70, device=device)
        of_values, of_b = torch.autograd.grad(y, (inputs["values"], inputs["b"]), g)
        a = module.densify(inputs["crow"], inputs["col"], inputs["values"].detach(), 130)
        torch.testing.assert_close(of_b, a.t() @ g)
        rows, cols = module.rows_of(inputs["crow"], inputs["col"]), inputs["col"].long()
        torch.testing.assert_close(of_values, (g @ inputs["b"].detach().t())[rows, cols])


class Called(TorchDispatchMode):
    """The names of all torch operators called inside."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.add(func._schema.name.split("::")[1])
        return func(*args, **(kwargs or {}))


CONVERSIONS = re.compile(
    r"nonzero|to_sparse|to_dense|index_put|sort|bincount|repeat_interleave|inspect|_plan$|cumsum|searchsorted"
)


@pytest.mark.parametrize("direction", ["fwd", "bwd"])
@pytest.mark.parametrize(("name", "case", "device"), runnable(module.operator, [SMALL]))
def test_nothing_is_converted_inside_the_timed_call(
    operator: Operator, name: str, case: Case, device: str, direction: Any
) -> None:
    case = sized("f32", direction, **dict(case.sizes))
    problem = CaseProblem(operator, operator.variants[name], case, torch.device(device))
    with problem.modes():
        data = problem.data(5)
        call = problem.call(data)
        with Called() as called:
            call()
    # The gradient of v1's dense matrix is gathered at the pattern, which is part of what a dense product costs.
    assert called.names
    assert not [name for name in called.names if CONVERSIONS.search(name)]


def test_conversions_are_noticed(operator: Operator) -> None:
    """The test above would see them: making A dense, or looking for its entries, inside a call."""
    data = CaseProblem(operator, operator.variants["v1"], SMALL, torch.device("cpu")).data(5)
    with Called() as called, torch.no_grad():
        module.reference(**data.inputs)
        module.prepare_dense(**data.inputs)["a"].to_sparse_csr()
    assert len([name for name in called.names if CONVERSIONS.search(name)]) >= 3


def test_native_code_takes_no_memory_of_its_own() -> None:
    """A buffer that a call gets beside torch is one that it must free, also when it fails: there is none."""
    for source in sorted((ROOT / "csrc" / "spmm").glob("*")):
        assert not re.search(
            r"cuda(Malloc|Free|HostAlloc)|\b(malloc|calloc|new)\s*[(\[]", source.read_text(encoding="utf-8")
        ), source.name


@pytest.mark.parametrize(
    ("name", "case", "device"), [p for p in runnable(module.operator, [SMALL]) if p.values[2] == "cuda"]
)
def test_calls_leave_no_memory_behind(operator: Operator, name: str, case: Case, device: str) -> None:
    problem = CaseProblem(operator, operator.variants[name], case, torch.device(device))

    def free_after(calls: int) -> int:
        for _ in range(calls):
            problem.run(problem.data(5))
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        return torch.cuda.mem_get_info()[0]

    free_after(3)
    before, plans = free_after(3), torch.ops.warpwatch.spmm_cusparse_plans()
    assert free_after(200) >= before - 2**20
    assert torch.ops.warpwatch.spmm_cusparse_plans() <= plans


def test_plans_of_the_same_shapes_are_equal(operator: Operator, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that the harness keeps a captured graph and moves the buffers' contents; forgotten as soon as nobody holds
    one."""
    forgotten: list[int] = []
    monkeypatch.setattr(torch.ops.warpwatch, "spmm_cusparse_forget", forgotten.append, raising=False)
    one, same, other = module.SparsePlan(1, (5, 7)), module.SparsePlan(2, (5, 7)), module.SparsePlan(3, (5, 8))
    assert one == same
    assert one != other
    del one
    assert forgotten == [1]


def test_costs() -> None:
    case = sized("f32", "fwd", size=(100, 200), n=30, sparsity=90)
    assert module.entries(case) == 2000
    assert module.cost(case).flops == 2 * 2000 * 30
    assert module.cost(case).bytes == 8 * 2000 + 4 * 101 + 4 * 30 * (200 + 100)
    assert module.cost(sized("f32", "bwd", size=(100, 200), n=30, sparsity=90)).flops == 4 * 2000 * 30
