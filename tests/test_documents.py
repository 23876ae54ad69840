"""The documents hold to their limits, their links lead somewhere, and the glossary knows every word of a type name."""

from __future__ import annotations

import ast
import re
import shlex
from collections import defaultdict
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer.main

from warpwatch import __version__
from warpwatch.cli.app import app
from warpwatch.cli.kron import parse as parse_kron
from warpwatch.contract.words import ChangeDirection, Status, Verdict

ROOT = Path(__file__).parent.parent
GLOSSARY = ROOT / "docs" / "glossary.md"
GENERATED = ROOT / "docs" / "reference"
PRODUCT = ("warpwatch", "worker", "db", "server", "kernels")
NOT_PRODUCT = {"versions", "adversaries"}
COLUMNS, PARAGRAPH_LINES, LINES = 120, 5, 200
VERSION_LINES = 120
"""Lines of the changelog for one version, so that a user reads them in three minutes."""
LINES_OF = {
    "bench/h200.md": 300,
    "docs/glossary.md": 260,
    "README.md": 150,
    "docs/measurement.md": 120,
    "docs/security.md": 240,
}
GENERAL_WORDS = "## General words in type names"


def documents() -> list[Path]:
    """README, docs and bench; pages that `make references` writes are tested beside their generator."""
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "bench").rglob("*.md")]
    return sorted(page for page in pages if GENERATED not in page.parents)


def name_of(document: Path) -> str:
    return str(document.relative_to(ROOT))


def prose_blocks(text: str) -> list[tuple[int, list[str]]]:
    """Paragraphs and list items with the number of their first line; without headings, tables and code blocks."""
    blocks: list[tuple[int, list[str]]] = []
    block: list[str] = []
    in_code = False
    for number, line in enumerate([*text.splitlines(), ""], start=1):
        fence = line.lstrip().startswith("```")
        in_code = in_code != fence
        is_prose = bool(line.strip()) and not (in_code or fence or line.startswith(("|", "#", "<!--")))
        starts_item = re.match(r"\s*([-*]|\d+\.)\s", line) is not None
        if block and (not is_prose or starts_item):
            blocks.append((number - len(block), block))
            block = []
        if is_prose:
            block.append(line)
    return blocks


@pytest.mark.parametrize("document", [*documents(), ROOT / "CHANGELOG.md"], ids=name_of)
def test_lines_wrap(document: Path) -> None:
    """A table row cannot wrap; every other line can."""
    lines = enumerate(document.read_text(encoding="utf-8").splitlines(), start=1)
    wide = [number for number, line in lines if len(line) > COLUMNS and not line.startswith("|")]
    assert wide == [], f"wrap these lines at {COLUMNS} columns"


@pytest.mark.parametrize("document", documents(), ids=name_of)
def test_paragraphs_stay_short(document: Path) -> None:
    blocks = prose_blocks(document.read_text(encoding="utf-8"))
    long = [f"{name_of(document)}:{number}" for number, lines in blocks if len(lines) > PARAGRAPH_LINES]
    assert long == [], f"turn paragraphs of more than {PARAGRAPH_LINES} lines into a list or a table"


def heading_anchors(document: Path) -> set[str]:
    """The anchors that code hosts give to the headings of a page."""
    headings = re.findall(r"^#+ (.+)$", document.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("document", documents(), ids=name_of)
def test_links_lead_to_files_and_headings(document: Path) -> None:
    text = re.sub(r"```.*?```", "", document.read_text(encoding="utf-8"), flags=re.DOTALL)
    broken = []
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        path, _, anchor = target.partition("#")
        file = (document.parent / path).resolve() if path else document
        if "://" in target or GENERATED in file.parents:
            continue
        if not file.exists() or (anchor and anchor not in heading_anchors(file)):
            broken.append(target)
    assert broken == []


def console_commands(text: str) -> list[str]:
    """Every `warpwatch …` line of the console blocks."""
    blocks = re.findall(r"```console\n(.*?)```", text, re.DOTALL)
    lines = "\n".join(blocks).replace("\\\n", " ").splitlines()
    return [match[1] for line in lines if (match := re.match(r"(?:nsys .* )?(warpwatch .*)", line))]


def page_commands(text: str) -> list[str]:
    """Every command that a template's macros print, with 1 for the values that it fills in."""
    strings = re.findall(r'"(warpwatch [a-z][^"]*(?:" ~ [^~"]+ ~ "[^"]*)*)"', text)
    commands = [re.sub(r'" ~ [^~"]+ ~ "', "1", string) for string in strings]
    return [f"{command}1" if command.endswith(" ") else command for command in commands]


def parse_command(words: list[str], *, whole: bool) -> None:
    """Raises what is wrong with the words of a command line. whole: required parameters are there, and values fit."""
    command: Any = typer.main.get_command(app)
    while hasattr(command, "commands"):
        assert words, "a command line names no command"
        assert words[0] in command.commands, words
        command = command.commands[words[0]]
        words = words[1:]
        if not whole and not words:
            return
    if command.name == "kron":
        parse_kron(words)
    elif whole:
        command.make_context(command.name, list(words))
    else:
        options = {option for parameter in command.params for option in parameter.opts + parameter.secondary_opts}
        assert [word for word in words if word.startswith("--") and word.partition("=")[0] not in options] == []


@pytest.mark.parametrize("document", documents(), ids=name_of)
def test_commands_and_options_exist(document: Path) -> None:
    text = document.read_text(encoding="utf-8")
    for line in console_commands(text):
        parse_command(shlex.split(line, comments=True)[1:], whole=True)
    for words in re.findall(r"(?<!`)`warpwatch ([a-z][^`]*)`", text):
        parse_command([*filter(None, re.split(r"\s|…|\||\[|\]", words))], whole=False)


def test_commands_that_pages_print_are_commands() -> None:
    count = 0
    for template in sorted((ROOT / "web" / "templates").rglob("*.html")):
        text = template.read_text(encoding="utf-8")
        for line in page_commands(text):
            parse_command(shlex.split(line)[1:], whole=True)
            count += 1
        for words in re.findall(r">warpwatch ([a-z][^<{]*)<", text):
            parse_command(words.split(), whole=False)
    assert count > 20


def test_every_decision_is_listed() -> None:
    folder = ROOT / "docs" / "decisions"
    listed = (folder / "README.md").read_text(encoding="utf-8")
    pages = sorted(page.name for page in folder.glob("*.md") if page.name != "README.md")
    assert [name for name in pages if f"]({name})" not in listed] == []
    for name in pages:
        text = (folder / name).read_text(encoding="utf-8")
        assert re.findall(r"^## (.+)$", text, re.MULTILINE) == ["Context", "Options", "Choice", "Evidence"], name


@pytest.mark.parametrize("document", documents(), ids=name_of)
def test_documents_stay_short(document: Path) -> None:
    limit = LINES_OF.get(name_of(document), LINES)
    assert len(document.read_text(encoding="utf-8").splitlines()) <= limit


def test_the_tests_that_documents_name_exist() -> None:
    named = [name for page in documents() for name in re.findall(r"`(tests/[\w/]+\.py::\w+)`", page.read_text())]
    assert named
    for name in named:
        path, _, function = name.partition("::")
        assert f"def {function}(" in (ROOT / path).read_text(encoding="utf-8"), name


def test_the_guide_to_measurement_explains_every_closed_list() -> None:
    text = (ROOT / "docs" / "measurement.md").read_text(encoding="utf-8")
    words = [f"`{status}`" for status in Status] + [*Verdict, *ChangeDirection]
    assert [word for word in words if word not in text] == []


def test_the_architecture_names_every_room() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    rooms = [path.parent.name for path in (ROOT / "server").glob("*/__init__.py")]
    assert rooms
    assert [room for room in rooms if f"`{room}/`" not in text] == []


@cache
def public_classes() -> dict[str, list[str]]:
    """Name of every public class of the product's modules, and the files that define it."""
    files = defaultdict(list)
    for folder in PRODUCT:
        for path in sorted((ROOT / folder).rglob("*.py")):
            if NOT_PRODUCT & set(path.parts):
                continue
            for node in ast.parse(path.read_text(encoding="utf-8")).body:
                if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                    files[node.name].append(str(path.relative_to(ROOT)))
    return files


def split_words(class_name: str) -> list[str]:
    """Words of a name in CamelCase: `CpuHotTimer` gives cpu, hot, timer."""
    return [word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z][a-z]+|[a-z]+", class_name)]


def singular(word: str) -> str:
    """The word without a plural ending; both sides of the comparison go through it, so `series` may become `sery`."""
    if word.endswith("ies") and len(word) > 4:
        return word[:-3] + "y"
    return word[:-1] if word.endswith("s") and not word.endswith("ss") else word


def glossary_words() -> set[str]:
    """Words of the glossary's first column, and of its list of general words."""
    text = GLOSSARY.read_text(encoding="utf-8")
    tables, _, general = text.partition(GENERAL_WORDS)
    terms = re.findall(r"^\| ([^|]+) \|", tables, re.MULTILINE)
    general = re.sub(r"\*\*.*?\*\*", "", general.partition("- **")[2])
    return {singular(word) for word in re.findall(r"[a-z]+", " ".join([*terms, general]).lower())}


def test_the_glossary_has_every_word_of_a_type_name() -> None:
    words = glossary_words()
    missing: dict[str, list[str]] = defaultdict(list)
    for name, files in public_classes().items():
        for word in split_words(name):
            if singular(word) not in words:
                missing[word].append(f"{name} in {files[0]}")
    assert not missing, (
        "docs/glossary.md lacks words of type names. Define each in a row of a table if it is a term of Warpwatch, or "
        "add it to “General words in type names” if it means what every programmer expects:\n"
        + "\n".join(f"  {word} ({', '.join(names)})" for word, names in sorted(missing.items()))
    )


def test_no_two_public_classes_share_a_name() -> None:
    shared = {name: files for name, files in public_classes().items() if len(files) > 1}
    assert not shared, "rename all but one of each, so that one name means one thing:\n" + "\n".join(
        f"  {name}: {', '.join(files)}" for name, files in sorted(shared.items())
    )


def test_the_changelog_has_a_short_section_for_the_version() -> None:
    sections = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8").split("\n## ")[1:]
    lines = {section.split("\n", 1)[0]: section.count("\n") + 1 for section in sections}
    assert __version__ in lines
    assert max(lines.values()) <= VERSION_LINES


def test_documents_name_the_number_of_operators() -> None:
    files = [path for path in (ROOT / "kernels").glob("*.py") if "Operator(" in path.read_text(encoding="utf-8")]
    readme, operations = ((ROOT / name).read_text(encoding="utf-8") for name in ("README.md", "docs/operations.md"))
    assert f"`kernels/` holds {len(files)} operators" in readme
    assert f"A commit with all {len(files)} operators" in operations
