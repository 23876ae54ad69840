"""The text of what `warpwatch init` writes: warpwatch.toml, and one file per operator."""

from __future__ import annotations

import json
import re
import shlex
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from string import Template
from typing import Any

from warpwatch.cli.init_files import CallSketch, OperatorSketch, ProgramSketch
from warpwatch.cli.init_known import KnownFunction
from warpwatch.project import FILE_NAME

_WIDTH = 120
_SOURCES_NOTE = (
    "# The files that each operator names by its imports: its sources, in place of the whole package. Add what is",
    "# loaded in another way. An operator without a line has all sources.",
)
_OPERATOR = Template(
    '''\
$head
"""

$imports


def inputs(case, make):
$inputs


$reference


def cost(case):
$cost


operator = Operator(
    $name,
    $summary,
    inputs=inputs,
    reference=reference,
    cost=cost,
    cases={"quick": ($cases)},
)


@operator.variant($variant, idea="the package's own", devices=$devices)
$measured
$call
'''
)
_TESTED = Template(
    '''\
$head
"""

$imports


${helpers}def inputs(case, make):
$inputs


def reference($parameters):
$reference


def cost(case):
$cost


operator = Operator(
    $name,
    $summary,
    inputs=inputs,
    reference=reference,
    cost=cost,
    gradients=$gradients,
    cases={
        "quick": $quick,
$serving    },
)


@operator.variant($variant, idea="the package's own", devices=$devices)
def measured($parameters):
$call
'''
)
_COPIED = """\
    # A copy of the function as it is today, with which later commits are compared. To see whether the function is right
    # today, write the formula in other words."""
_KNOWN = """\
    # The name of the operator says this; compare it with the operator's documents."""
_SQUARES = """\
    # These are tensors by their types, names or use, and numbers by their types. The source does not say of which shape
    # and value."""


@dataclass(frozen=True, slots=True)
class DefinitionSketch:
    """All that is written. operators: those in files, in the folder of that name. path, packages, sources, build and
    inputs: the keys of `[measured]`. has_csrc: whether the repository has a folder csrc, the default
    of `native`."""

    folder: str
    operators: tuple[OperatorSketch, ...] = ()
    programs: tuple[ProgramSketch, ...] = ()
    path: str = "."
    packages: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()
    build: str | None = None
    inputs: tuple[str, ...] = ()
    has_csrc: bool = False

    def texts(self) -> dict[str, str]:
        """The text of every file, by its path."""
        files = {f"{self.folder}/{sketch.name}.py": operator_text(sketch) for sketch in self.operators}
        return {FILE_NAME: self.project_text(), **files}

    def left_to_fill(self) -> Iterator[tuple[str, str]]:
        """Every file with gaps, and its gaps with their lines."""
        reasons = {f"{self.folder}/{sketch.name}.py": sketch.untested for sketch in self.operators}
        for name, text in self.texts().items():
            gaps, part = [], ""
            for number, line in enumerate(text.splitlines(), start=1):
                if match := re.match(r"(?:def |\s+)?(inputs|reference|cost|cases|measured|build)\b ?[(={]", line):
                    part = "call" if match[1] == "measured" else match[1]
                if 'gap("' in line or "; exit 1" in line:
                    gaps.append(f"{part} (line {number})")
            if gaps:
                reason = f"; {reasons[name]}" if reasons.get(name) else ""
                yield name, ", ".join(gaps) + reason

    @property
    def guessed(self) -> list[str]:
        """The operators whose reference follows from their name alone."""
        return [sketch.name for sketch in self.operators if is_guessed(sketch)]

    def project_text(self) -> str:
        """The text of warpwatch.toml."""
        lines = ["contract = 1", f"operators = {_quoted(self.folder)}"]
        if self.has_csrc:
            lines.append("# The folder csrc holds sources of the packages; operators have no native code of their own.")
            lines.append(f"native = {_quoted(f'{self.folder}/csrc')}")
        if self.operators:
            lines += ["", "[measured]"]
            lines += [f"path = {_quoted(self.path)}"] if self.path != "." else []
            lines += [f"packages = {_list(self.packages)}"]
            lines += [f"sources = {_list(self.sources)}"] if self.sources else []
            lines += [f"build = {_quoted(self.build)}"] if self.build is not None else []
            lines += [f"inputs = {_list(self.inputs)}"] if self.inputs else []
            narrow = [sketch for sketch in self.operators if sketch.sources]
            if narrow:
                lines += ["", "[measured.operators]", *_SOURCES_NOTE]
                lines += [f"{sketch.name} = {_list(sketch.sources, len(sketch.name))}" for sketch in narrow]
        for program in self.programs:
            lines += ["", "[[program]]", f"name = {_quoted(program.name)}  # {program.file}:{program.line}"]
            if program.build == "":
                number = "\n".join(lines).count("\n") + 2
                gap = f"{FILE_NAME}, line {number}: write how {program.file} is compiled into $WARPWATCH_BUILD"
                lines.append(f"build = {_quoted(f'echo {shlex.quote(gap)} >&2; exit 1')}")
            elif program.build is not None:
                lines.append(f"build = {_quoted(program.build)}")
            lines += [f"command = {_quoted(program.command)}", f"format = {_quoted(program.format)}"]
            lines.append("# Name in `sources` the files and folders that it is made of, else every commit is a change.")
        return "\n".join([*lines, ""])


def is_guessed(sketch: OperatorSketch) -> bool:
    """Whether the reference follows from the name; a copy of the function itself is surer."""
    has_copy = sketch.copied is not None and set(sketch.parameters) == set(sketch.tensors)
    return sketch.known is not None and sketch.call is not None and not has_copy and sketch.tested is None


def _tested_text(sketch: OperatorSketch, tested: CallSketch) -> str:
    """The text of an operator file whose parts follow a test of the package."""
    head = f'"""{sketch.name}: {sketch.kind}, in {sketch.file}, line {sketch.line}. Inputs and reference follow '
    head += f"{tested.file}, line {tested.line}."
    called = (sketch.call or "").partition("(")[0]
    call = tested.call.replace("CALLED", called)
    elements = tested.elements
    cost = [f"elements = {elements}"] if elements else []
    cost += ["# A lower bound: one operation an element of the inputs, each read once."] if elements else []
    sizes = {name for name in tested.cases[0] if re.search(rf"\b{name}\b", elements)}
    cost = [*(f"{name} = case[{_quoted(name)}]" for name in tested.cases[0] if name in sizes), *cost]
    cost.append(
        "return Cost(flops=elements, bytes=case.element_bytes * elements)"
        if elements
        else 'return gap("return Cost(flops=…, bytes=…) of the case, in its direction")'
    )
    parts = {
        "inputs": _indented(tested.lines),
        "reference": _indented(tested.reference),
        "cost": _indented(cost),
        "call": _indented([call if call.startswith("results = ") else f"return {call}"]),
    }
    quick, serving = _cases(tested.cases, "f32"), _cases(tested.serving, "bf16")
    sdk = ["Cost", "Operator", *(["both_directions"] if tested.gradients else []), "case"]
    sdk += [] if elements else ["gap"]
    needed = ["import math"] if "math." in elements else []
    needed += ["import torch"] if re.search(r"\btorch\.", "\n".join([*parts.values(), *tested.helpers])) else []
    imports = [*dict.fromkeys([*needed, *tested.imports, *sketch.imports]), ""]
    return _TESTED.substitute(
        head=textwrap.fill(head, _WIDTH, break_long_words=False),
        imports="\n".join([*imports, f"from warpwatch import {', '.join(sdk)}"]),
        helpers="".join(f"{helper}\n\n\n" for helper in tested.helpers),
        parameters=", ".join(tested.parameters),
        name=_quoted(sketch.name),
        summary=_quoted(f"{sketch.kind}."),
        gradients=repr(tested.gradients).replace("'", '"'),
        quick=f"both_directions{quick}" if tested.gradients else quick,
        serving=f'        "serving": {serving},\n' if tested.serving else "",
        variant=_quoted(sketch.package or "package"),
        devices='("cuda",)' if sketch.is_cuda else '("cpu", "cuda")',
        **parts,
    )


def _indented(statements: Iterable[str]) -> str:
    return textwrap.indent("\n".join(statements), "    ")


def _cases(rows: Sequence[Mapping[str, Any]], precision: str) -> str:
    cases = [f"case({', '.join([_quoted(precision), *(f'{k}={v!r}' for k, v in row.items())])})" for row in rows]
    return f"({', '.join(cases)}{',' if len(cases) == 1 else ''})"


def operator_text(sketch: OperatorSketch) -> str:
    """The text of an operator file; whatever the source does not say is a gap."""
    if sketch.tested is not None and sketch.call is not None and sketch.copied is None:
        return _tested_text(sketch, sketch.tested)
    given = sketch.parameters or ("**inputs",)
    head = f'"""{sketch.name}: {sketch.kind}, in {sketch.file}, line {sketch.line}.'
    values = _values(sketch)
    body = {
        "inputs": values["inputs"],
        "reference": "\n".join(values["reference"]),
        "cost": values["cost"],
        "cases": values["cases"],
        "measured": _definition("measured", given),
        "call": _wrapped("return " + (sketch.call or 'gap("import the code, call it here")')),
    }
    text = "\n".join(body.values())
    names = sorted(name for name in ("Cost", "case", "gap") if f"{name}(" in text.replace("cost(case)", ""))
    needed = ("import torch",) if re.search(r"\btorch\.", text) else ()
    imports = [*dict.fromkeys((*needed, *sketch.imports))]
    imports += [""] if imports else []
    sdk = sorted(["Operator", *names], key=lambda name: (name.islower(), name))
    return _OPERATOR.substitute(
        head=textwrap.fill(head, _WIDTH, break_long_words=False),
        imports="\n".join([*imports, f"from warpwatch import {', '.join(sdk)}"]),
        name=_quoted(sketch.name),
        summary=_quoted(f"{sketch.kind}."),
        variant=_quoted(sketch.package or "package"),
        devices='("cuda",)' if sketch.is_cuda else '("cpu", "cuda")',
        **body,
    )


def _values(sketch: OperatorSketch) -> dict[str, Any]:
    """The parts of an operator file that the source may say: inputs, reference, cost and cases."""
    given = sketch.parameters or ("**inputs",)
    if is_guessed(sketch) and sketch.known is not None:
        return _known_values(sketch, sketch.known)
    reference = [
        _definition("reference", given),
        '    return gap("compute the same in plain torch calls, for clarity")',
    ]
    values = dict.fromkeys(sketch.tensors, 'make.normal(case["n"], case["n"])') | dict(sketch.values)
    if not sketch.tensors or values.keys() != set(sketch.parameters) or sketch.call is None:
        return {
            "inputs": '    return gap("return the arguments of the reference by name, in a dict")',
            "reference": reference,
            "cost": '    return gap("return Cost(flops=…, bytes=…) of the case, in its direction")',
            "cases": 'gap("declare cases here, such as case(n=4096): their sizes are yours to name"),',
        }
    if sketch.copied is not None:
        parameters, body = sketch.copied
        reference = [f"def reference({parameters}):", _COPIED, textwrap.indent(body, "    ")]
    made = ", ".join(f"{_quoted(name)}: {values[name]}" for name in sketch.parameters)
    tensors = len(sketch.tensors) + 1
    return {
        "inputs": f"{_SQUARES}\n{_dictionary(made)}",
        "reference": reference,
        "cost": _cost('case["n"] ** 2', f'{tensors} * case.element_bytes * case["n"] ** 2'),
        "cases": "case(n=64), case(n=512)",
    }


def _known_values(sketch: OperatorSketch, known: KnownFunction) -> dict[str, Any]:
    made = ", ".join(f"{_quoted(name)}: {value}" for name, value in zip(sketch.parameters, known.inputs, strict=True))
    formula = known.formula.format(*sketch.parameters)
    quick, larger = ("64", "100", "512"), ("256", "1024", "256")
    sizes = [
        f"case({', '.join(f'{name}={size}' for name, size in zip(known.sizes, values, strict=False))})"
        for values in (quick, larger)
    ]
    times = f"{known.tensors} * " if known.tensors > 1 else ""
    return {
        "inputs": _dictionary(made),
        "reference": [_definition("reference", sketch.parameters), _KNOWN, f"    return {formula}"],
        "cost": _cost(known.flops, f"{times}case.element_bytes * ({known.bytes})"),
        "cases": ", ".join(sizes),
    }


def _dictionary(items: str) -> str:
    line = f"    return {{{items}}}"
    if len(line) <= _WIDTH:
        return line
    parts = re.split(r", (?=\")", items)
    return "\n".join(["    return {", *(f"        {part}," for part in parts), "    }"])


def _cost(flops: str, moved: str) -> str:
    call = f"    return Cost(flops={flops}, bytes={moved})"
    if len(call) > _WIDTH:
        call = f"    return Cost(\n        flops={flops},\n        bytes={moved},\n    )"
    return f"""\
    # A lower bound: one operation an element where nothing else is known, each tensor read or written once.
{call}"""


def _definition(name: str, parameters: tuple[str, ...]) -> str:
    line = f"def {name}({', '.join(parameters)}):"
    return line if len(line) <= _WIDTH else "\n".join([f"def {name}(", *(f"    {word}," for word in parameters), "):"])


def _wrapped(call: str) -> str:
    line = f"    {call}"
    if len(line) <= _WIDTH:
        return line
    start, _, rest = line.partition("(")
    return "\n".join([f"{start}(", *(f"        {word}," for word in rest[:-1].split(", ")), "    )"])


def _quoted(text: str) -> str:
    # A text of JSON is one of TOML and of Python, too.
    return json.dumps(text, ensure_ascii=False)


def _list(texts: tuple[str, ...], key: int = 7) -> str:
    line = f"[{', '.join(map(_quoted, texts))}]"
    return (
        line if len(line) <= _WIDTH - 3 - key else "\n".join(["[", *(f"    {_quoted(text)}," for text in texts), "]"])
    )
