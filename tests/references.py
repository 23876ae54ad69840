"""Writes docs/reference from the code: `python -m tests.references`, or `make references`."""

from __future__ import annotations

import dataclasses
import inspect
import re
import textwrap
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent.parent / "docs" / "reference"
NOTE = "<!-- Written by `make references`; change the code, not this file. -->\n"


def references() -> dict[str, str]:
    """The text of every file of docs/reference, by its path there."""
    return {"settings.md": settings(), "operators.md": operators()} | command_line() | rest()


def command_line() -> dict[str, str]:
    """The commands, and a file for each that has others below it."""
    import typer.main

    from warpwatch.cli.app import app

    command: Any = typer.main.get_command(app)
    groups = {name: child for name, child in command.commands.items() if hasattr(child, "commands")}
    index = [f"- [warpwatch {name}]({name}.md): {_cell(child.help or '')}" for name, child in groups.items()]
    pages: dict[str, str] = {}
    for name, group in groups.items():
        pages[f"cli/{name}.md"] = _commands_page(f"warpwatch {name}", _commands(f"warpwatch {name}", group))
    every = _commands("warpwatch", command)
    alone = [(name, child) for name, child in every if not groups.keys() & set(name.split()[1:2])]
    return pages | {"cli/README.md": _commands_page("Command line", alone, "\n".join([*index, ""]))}


def _commands_page(title: str, commands: Iterable[tuple[str, Any]], introduction: str = "") -> str:
    parts = [f"# {title}\n\n{NOTE}", *([introduction] if introduction else [])]
    for name, command in commands:
        parts += [f"## {name}\n", _paragraphs(command.help or ""), ""]
        rows = [_parameter(parameter) for parameter in command.params if not parameter.hidden]
        if rows:
            parts += ["| parameter | default | meaning |", "|---|---|---|", *rows, ""]
    return "\n".join(parts).rstrip("\n") + "\n"


def _commands(name: str, command: Any) -> Iterator[tuple[str, Any]]:
    yield name, command
    for word, child in getattr(command, "commands", {}).items():
        yield from _commands(f"{name} {word}", child)


def _parameter(parameter: Any) -> str:
    names = ", ".join(f"`{option}`" for option in [*parameter.opts, *parameter.secondary_opts])
    if not parameter.opts[0].startswith("-"):
        names = f"`{parameter.opts[0].upper()}`"
    default = parameter.default
    if parameter.required:
        shown = "required"
    elif default is None or default is False or default in ("", [], ()) or callable(default):
        shown = ""
    else:
        shown = f"`{str(default).lower() if default is True else default}`"
    meaning = parameter.help or ""
    if parameter.envvar:
        meaning += f" Also read from `{parameter.envvar}`."
    return f"| {names} | {shown} | {_cell(meaning)} |"


def settings() -> str:
    from warpwatch.settings import VARIABLES

    rows = [f"| `{row.name}` | {row.default} | {row.meaning} |" for row in VARIABLES]
    head = ["# Settings", "", NOTE, "Environment variables. An empty one counts as unset.", ""]
    return "\n".join([*head, "| variable | default | meaning |", "|---|---|---|", *rows]) + "\n"


def operators() -> str:
    """The names that operator files import from `warpwatch`, and the keys of warpwatch.toml."""
    from warpwatch import operator, project
    from warpwatch.contract.case import DIRECTIONS, PRECISIONS, Case
    from warpwatch.contract.number_formats import FORMATS

    parts = [f"# Operator files and warpwatch.toml\n\n{NOTE}"]
    parts.append(
        "An operator file imports these names from `warpwatch`.\n"
        "[adding-a-kernel.md](../adding-a-kernel.md) writes one step by step.\n"
    )
    parts += ["## Functions\n", "| function | meaning |", "|---|---|"]
    for function in (operator.case, operator.both_directions, operator.gap):
        parts.append(f"| `{function.__name__}{_signature(function)}` | {_cell(inspect.getdoc(function) or '')} |")
    parts.append(f"\nPrecisions: {', '.join(f'`{name}`' for name in PRECISIONS)}.")
    parts.append(f"Directions: {', '.join(f'`{name}`' for name in DIRECTIONS)}.\n")
    parts.append(
        "A case names the number format of each matrix of eight bits or fewer, such as `a=e4m3-row,b=e4m3-row,bf16`;\n"
        "the precision is that of the results. Where inputs are mixed, each has a name: `w=i4g128,x=bf16`.\n"
    )
    parts += ["| number format | meaning |", "|---|---|"]
    for names, meaning in FORMATS.items():
        parts.append(f"| {', '.join(f'`{name}`' for name in names.split(', '))} | {_cell(meaning)} |")
    parts += [
        "",
        "## The arguments of `inputs(case, make)`\n",
        "`make` makes the tensors of one case: seeded, on the device under test.\n",
        "| expression | meaning |",
        "|---|---|",
    ]
    for method in (operator.Maker.normal, operator.Maker.integers, operator.Maker.codes, operator.Maker.quantizable):
        parts.append(f"| `make.{method.__name__}{_signature(method)}` | {_cell(inspect.getdoc(method) or '')} |")
    parts.append(f"| `case[name]` | {_cell(inspect.getdoc(Case.__getitem__) or '')} |")
    parts.append(f"| `case.number_format(name)` | {_cell(inspect.getdoc(Case.number_format) or '')} |")
    parts.append("| `case.precision`, `case.direction`, `case.layout` | As the case declares them. |")
    parts.append("| `case.element_bytes` | Bytes of an element in the case's precision. |")
    parts.append(f"\n## `Cost(flops, bytes)`\n\n{' '.join((inspect.getdoc(operator.Cost) or '').split())}\n")
    parts += _class_table(operator.Operator, "`@operator.variant(name, idea=…, …)` takes the fields of Variant.")
    parts += _class_table(operator.Variant)
    parts += _class_table(operator.QuantizedOutput)
    parts += ["## warpwatch.toml\n", "| key | meaning |", "|---|---|"]
    fields = _labelled(project.Project)
    renamed = {"image": "container.image"}
    for name in ("contract", "operators", "native", "interpreter", "image"):
        parts.append(f"| `{renamed.get(name, name)}` | {_cell(fields[name])} |")
    measured = _labelled(project.MeasuredCode)
    for name in (field.name for field in dataclasses.fields(project.MeasuredCode)):
        meaning = measured[name].replace("EVERY", f'`"{project.EVERY}"`')
        parts.append(f"| `measured.{'operators' if name == 'by_operator' else name}` | {_cell(meaning)} |")
    parts.append("\n`[[program]]` is described in [foreign-programs.md](../foreign-programs.md).")
    return "\n".join(parts) + "\n"


def _signature(function: Any) -> str:
    """Parameters with their defaults, without types."""
    parameters = [
        parameter.replace(annotation=inspect.Parameter.empty)
        for parameter in inspect.signature(function).parameters.values()
        if parameter.name != "self"
    ]
    return str(inspect.Signature(parameters))


def _class_table(kind: Any, introduction: str = "") -> list[str]:
    """The fields of a class of operator.py, with the meanings that its docstring gives behind an arrow."""
    text = inspect.getdoc(kind) or ""
    meanings = {
        match[1]: (f"{match[1]}{match[2] or ''}", match[3][0].upper() + match[3][1:])
        for match in re.finditer(r"^(\w+)(\([^)]*\))? -> ((?:.|\n(?=    ))+)", text, re.MULTILINE)
    }
    rows = []
    for field in dataclasses.fields(kind):
        called, meaning = meanings[field.name]
        default = "required" if field.default is dataclasses.MISSING else f"`{field.default!r}`"
        if (
            callable(field.default)
            or field.default in ("", (), None)
            or field.default_factory is not dataclasses.MISSING
        ):
            default = ""
        rows.append(f"| `{called}` | {default} | {_cell(meaning)} |")
    return [
        f"## {kind.__name__}\n",
        *([f"{introduction}\n"] if introduction else []),
        "| field | default | meaning |",
        "|---|---|---|",
        *rows,
        "",
    ]


def _labelled(kind: Any) -> dict[str, str]:
    """The meanings that the docstring of a class gives as `name: meaning.`"""
    names = "|".join(field.name for field in dataclasses.fields(kind))
    text = " ".join((inspect.getdoc(kind) or "").split())
    parts = re.split(rf"(?:^|(?<=[.] ))({names}): ", text)
    return {
        name: f"{meaning[0].upper()}{meaning[1:]}".strip()
        for name, meaning in zip(parts[1::2], parts[2::2], strict=True)
    }


def rest() -> dict[str, str]:
    """Every operation of the OpenAPI schema, in a file per tag."""
    from warpwatch.db.database import Database
    from warpwatch.server.app import create_app
    from warpwatch.settings import Settings

    database = Database("postgresql://nobody@127.0.0.1:1/none")
    try:
        schema = create_app(Settings(home=Path("/nonexistent")), database, judge=False).openapi()
    finally:
        database.close()
    pages: dict[str, list[str]] = {}
    note = "Errors are RFC 9457 problem JSON. `/api/v1/docs` shows the same, with schemas.\n"
    index = [f"# REST API\n\n{NOTE}", note, "| operation | page |", "|---|---|"]
    # What workers ask comes last, though the server looks for it first.
    for path, operations in sorted(schema["paths"].items(), key=lambda item: "/worker/" in item[0]):
        for method, operation in operations.items():
            (tag,) = operation["tags"]
            index.append(f"| `{method.upper()} {path}` | [{tag}]({tag}.md) |")
            pages.setdefault(tag, [f"# REST API: {tag}\n\n{NOTE}"]).extend(_operation(schema, path, method, operation))
    return {"rest/README.md": "\n".join(index) + "\n"} | {
        f"rest/{tag}.md": "\n".join(parts).rstrip("\n") + "\n" for tag, parts in pages.items()
    }


def _operation(schema: dict[str, Any], path: str, method: str, operation: dict[str, Any]) -> list[str]:
    parts = [f"## {method.upper()} {path}\n", _paragraphs(operation.get("description", "")), ""]
    rows = [*_query(schema, operation), *_body(schema, operation)]
    if rows:
        parts += ["| parameter | in | type | meaning |", "|---|---|---|---|", *rows, ""]
    return [*parts, _answers(operation)]


def _query(schema: dict[str, Any], operation: dict[str, Any]) -> Iterator[str]:
    for parameter in operation.get("parameters", []):
        name = f"`{parameter['name']}`{' (required)' if parameter.get('required') else ''}"
        meaning = parameter.get("description") or parameter["schema"].get("description", "")
        yield f"| {name} | {parameter['in']} | {_type(schema, parameter['schema'])} | {_cell(meaning)} |"


def _body(schema: dict[str, Any], operation: dict[str, Any]) -> Iterator[str]:
    for media, content in operation.get("requestBody", {}).get("content", {}).items():
        body = _resolve(schema, content.get("schema", {}))
        if not body.get("properties"):
            yield f"| body | {media} | {_type(schema, body)} | {_cell(body.get('description', ''))} |"
        for name, field in body.get("properties", {}).items():
            required = " (required)" if name in body.get("required", []) else ""
            meaning = field.get("description", "")
            yield f"| `{name}`{required} | body | {_type(schema, field)} | {_cell(meaning)} |"


def _answers(operation: dict[str, Any]) -> str:
    answers = [f"{status} {answer['description']}" for status, answer in sorted(operation["responses"].items())]
    return textwrap.fill(f"Answers: {'; '.join(answers)}.", 120) + "\n"


def _resolve(schema: dict[str, Any], part: dict[str, Any]) -> dict[str, Any]:
    if "$ref" in part:
        resolved: dict[str, Any] = schema["components"]["schemas"][part["$ref"].rsplit("/", 1)[1]]
        return resolved
    return part


def _type(schema: dict[str, Any], part: dict[str, Any]) -> str:
    part = _resolve(schema, part)
    if "anyOf" in part:
        return " or ".join(dict.fromkeys(_type(schema, choice) for choice in part["anyOf"]))
    if "enum" in part:
        return ", ".join(f"`{value}`" for value in part["enum"])
    if part.get("type") == "array":
        return f"array of {_type(schema, part.get('items', {}))}"
    return str(part.get("const", part.get("type", "any")))


def _paragraphs(text: str) -> str:
    """Help texts are wrapped for a terminal; their indented lines are tables."""
    return re.sub(r"\n{3,}", "\n\n", text.replace("\b", "").strip())


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


if __name__ == "__main__":
    for name, text in references().items():
        (FOLDER / name).parent.mkdir(parents=True, exist_ok=True)
        (FOLDER / name).write_text(text, encoding="utf-8")
