"""Functions that `warpwatch init` knows by name: their reference, inputs and cases can be written whole."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass

_ROWS = ("rows", "columns")


@dataclass(frozen=True, slots=True)
class KnownFunction:
    """A function that torch has. formula: an expression of torch; {0}, {1} … are its parameters. inputs: the expression
    that makes each parameter. sizes: names of the sizes of a case. flops: an expression. tensors: how many tensors of
    the shape of the first parameter are read or written."""

    formula: str
    inputs: tuple[str, ...]
    sizes: tuple[str, ...] = _ROWS
    flops: str = 'case["rows"] * case["columns"]'
    bytes: str = 'case["rows"] * case["columns"]'
    tensors: int = 2


_GRID = 'make.normal(case["rows"], case["columns"])'
_ROW = 'make.normal(case["columns"])'
_UNARY = ["relu", "sigmoid", "tanh", "exp", "abs", "sin", "cos", "neg", "square"]
_BINARY = {"add": "{0} + {1}", "sub": "{0} - {1}", "mul": "{0} * {1}", "maximum": "torch.maximum({0}, {1})"}
_NORM = "torch.nn.functional.{}({{0}}, {{0}}.shape[-1:], {})"
_LAYER_NORM = _NORM.format("layer_norm", "{1}, {2}, {3}")
_RMS_NORM = _NORM.format("rms_norm", "{1}, {2}")
_SILU_MUL = KnownFunction("torch.nn.functional.silu({0}) * {1}", (_GRID, _GRID), tensors=3)
_GELU_MUL = KnownFunction('torch.nn.functional.gelu({0}, approximate="tanh") * {1}', (_GRID, _GRID), tensors=3)
_PRODUCT = KnownFunction(
    "{0} @ {1}",
    ('make.normal(case["m"], case["k"])', 'make.normal(case["k"], case["n"])'),
    ("m", "n", "k"),
    '2 * case["m"] * case["n"] * case["k"]',
    'case["m"] * case["k"] + case["k"] * case["n"] + case["m"] * case["n"]',
    1,
)
_KNOWN: dict[str, tuple[KnownFunction, ...]] = {
    **{name: (KnownFunction(f"torch.{name}({{0}})", (_GRID,)),) for name in _UNARY},
    **{name: (KnownFunction(formula, (_GRID, _GRID), tensors=3),) for name, formula in _BINARY.items()},
    "silu": (KnownFunction("torch.nn.functional.silu({0})", (_GRID,)),),
    "gelu": (KnownFunction("torch.nn.functional.gelu({0})", (_GRID,)),),
    "relu_squared": (KnownFunction("torch.relu({0}) ** 2", (_GRID,)),),
    "softmax": (
        KnownFunction("torch.softmax({0}, -1)", (_GRID,)),
        KnownFunction("torch.softmax({0}, {1})", (_GRID, "-1")),
    ),
    "log_softmax": (
        KnownFunction("torch.log_softmax({0}, -1)", (_GRID,)),
        KnownFunction("torch.log_softmax({0}, {1})", (_GRID, "-1")),
    ),
    "layer_norm": (
        KnownFunction(_LAYER_NORM, (_GRID, _ROW, _ROW, "1e-5")),
        KnownFunction(_LAYER_NORM.replace("{3}", "1e-5"), (_GRID, _ROW, _ROW)),
    ),
    "rms_norm": (
        KnownFunction(_RMS_NORM, (_GRID, _ROW, "1e-6")),
        KnownFunction(_RMS_NORM.replace("{2}", "1e-6"), (_GRID, _ROW)),
    ),
    **dict.fromkeys(("silu_mul", "silu_and_mul", "swiglu"), (_SILU_MUL,)),
    **dict.fromkeys(("gelu_mul", "geglu"), (_GELU_MUL,)),
    **dict.fromkeys(("matmul", "mm"), (_PRODUCT,)),
    "cross_entropy": (
        KnownFunction(
            "torch.nn.functional.cross_entropy({0}, {1})",
            (_GRID, 'make.integers(0, case["columns"], case["rows"])'),
            tensors=1,
        ),
    ),
}
_DECORATION = {"forward", "fwd", "function", "triton", "cuda", "cpu", "kernel", "op", "fast", "fused", "torch", "impl"}
_SPELLINGS = {"layernorm": "layer_norm", "rmsnorm": "rms_norm"}


def known_function(name: str, package: str, parameters: tuple[str, ...]) -> KnownFunction | None:
    """The function of torch that an operator of this name and these required parameters computes, as its name says."""
    own = {word for word in re.split(r"[_\W]+", package.lower()) if word} | _DECORATION
    text = "_".join(word for word in name.lower().split("_") if word and word not in own)
    for spelling, usual in _SPELLINGS.items():
        text = text.replace(spelling, usual)
    forms = _KNOWN.get(text, ())
    return next((form for form in forms if len(form.inputs) == len(parameters)), None)


def copied_body(node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef, resolved: set[str]) -> str | None:
    """The body of a function that is made of torch and its own parameters alone; None for any other function.

    resolved: the dotted names that the function uses, as its module resolves them.
    """
    if not isinstance(node, ast.FunctionDef) or node.args.vararg or node.args.kwarg:
        return None
    arguments = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
    defaults = [*node.args.defaults, *filter(None, node.args.kw_defaults)]
    if not all(isinstance(default, ast.Constant) for default in defaults):
        return None
    local = {argument.arg for argument in arguments}
    local |= {part.id for part in ast.walk(node) if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store)}
    body = [part for part in node.body if not (isinstance(part, ast.Expr) and isinstance(part.value, ast.Constant))]
    forbidden = (ast.Import, ast.ImportFrom, ast.Global, ast.Nonlocal, ast.FunctionDef, ast.ClassDef, ast.Lambda)
    if not body or any(isinstance(part, forbidden) for statement in body for part in ast.walk(statement)):
        return None
    used = {part.id for statement in body for part in ast.walk(statement) if isinstance(part, ast.Name)}
    foreign = used - local - {"torch", "len", "range", "min", "max", "sum", "float", "int", "bool", "None"}
    # A call of torch.ops would be the operator itself.
    if foreign or any(name.startswith(("torch.ops", "torch.classes")) for name in resolved):
        return None
    return "\n".join(ast.unparse(part) for part in body)
