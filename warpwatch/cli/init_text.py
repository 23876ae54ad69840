"""The text of what `warpwatch init` writes: warpwatch.toml, and one file per operator."""

from __future__ import annotations

import json
import shlex
import textwrap
from dataclasses import dataclass
from string import Template

from warpwatch.cli.init_files import OperatorSketch, ProgramSketch
from warpwatch.project import FILE_NAME

_WIDTH = 120
_OPERATOR = Template(
    '''\
$head

Each gap() is something that the source does not say; write it in place of the gap.
"""

$imports


def inputs(case, make):
    # A tensor such as $example is made by make.normal(case["n"]).
    return gap("return the arguments of the reference by name, in a dict")


$reference
    return gap("compute the same in plain torch calls, written for clarity")


def cost(case):
    return gap("return Cost(flops=…, bytes=…) of the case, in its direction")


operator = Operator(
    $name,
    $summary,
    inputs=inputs,
    reference=reference,
    cost=cost,
    # With gradients=("$example",), cases in direction bwd are measured, too: see both_directions.
    cases={"quick": (gap("declare cases here, such as case(n=4096): their sizes are yours to name"),)},
)


@operator.variant($variant, idea="the package's own", devices=$devices)
$measured
$call
'''
)


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


def operator_text(sketch: OperatorSketch) -> str:
    """The text of an operator file; whatever the source does not say is a gap."""
    given = sketch.parameters or ("**inputs",)
    head = f'"""{sketch.name}: {sketch.kind}, in {sketch.file}, line {sketch.line}.'
    imports = [*sketch.imports, ""] if sketch.imports else []
    return _OPERATOR.substitute(
        head=textwrap.fill(head, _WIDTH, break_long_words=False),
        imports="\n".join([*imports, "from warpwatch import Operator, gap"]),
        example=sketch.parameters[0] if sketch.parameters else "x",
        reference=_definition("reference", given),
        name=_quoted(sketch.name),
        summary=_quoted(f"{sketch.kind}."),
        variant=_quoted(sketch.package or "package"),
        devices='("cuda",)' if sketch.is_cuda else '("cpu", "cuda")',
        measured=_definition("measured", given),
        call=_wrapped("return " + (sketch.call or 'gap("import the code, call it here")')),
    )


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


def _list(texts: tuple[str, ...]) -> str:
    line = f"[{', '.join(map(_quoted, texts))}]"
    return line if len(line) <= _WIDTH - 10 else "\n".join(["[", *(f"    {_quoted(text)}," for text in texts), "]"])
