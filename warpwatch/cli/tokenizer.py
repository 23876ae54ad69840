"""`warpwatch tokenizer …`: trains a byte-pair tokenizer on files, and encodes and decodes with it."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterable, Iterator
from itertools import pairwise
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any, TextIO

import typer

from warpwatch.byte_pairs import BytePairs, from_json, to_json
from warpwatch.cli.app import app

if TYPE_CHECKING:
    from torch import Tensor

tokenizer_app = typer.Typer(no_args_is_help=True, help="Byte-pair tokenizers, trained by the operator bpe_train.")
app.add_typer(tokenizer_app, name="tokenizer")
FASTA = {".fa", ".faa", ".fas", ".fasta"}
CORPUS = "Files or folders of ASCII text with a string per line; of FASTA files, a string per sequence."


@tokenizer_app.command("train")
def train_tokenizer(
    corpus: list[Path] = typer.Argument(..., help=CORPUS),
    output: Path = typer.Option(Path("tokenizer.json"), help="Where to save it, in the format of `tokenizers`."),
    merges: int = typer.Option(1000, min=0, max=60000, help="How many pairs of tokens to merge."),
    threads: int = typer.Option(0, min=0, help="CPU threads; 0 takes all."),
) -> None:
    """Train a tokenizer and save it."""
    _operator_module()
    import torch

    symbols, offsets = _tensors(list(read_strings(corpus)))
    began = perf_counter()
    pairs = torch.ops.warpwatch.bpe_train(symbols, offsets, merges, threads)
    seconds = perf_counter() - began
    alphabet = bytes(torch.unique(symbols).tolist()).decode("ascii")
    made = int((pairs[:, 0] >= 0).sum())
    output.write_text(to_json(alphabet, pairs[:made].tolist()), encoding="utf-8")
    typer.echo(f"{symbols.numel()} symbols in {offsets.numel() - 1} strings, {len(alphabet)} different")
    typer.echo(f"{made} merges in {seconds:.2f} s, {symbols.numel() / seconds / 1e6:.1f} MB/s")
    typer.echo(f"{output}: {len(alphabet) + made} tokens")


@tokenizer_app.command("encode")
def encode_strings(
    tokenizer: Path = typer.Argument(..., help="A file that `train` or `tokenizers` saved."),
    corpus: list[Path] = typer.Argument(..., help=CORPUS),
    output: Path | None = typer.Option(None, help="Default: standard output."),
) -> None:
    """Write the numbers of the tokens of every string, a line per string."""
    pairs = _load(tokenizer)
    symbols, offsets = _tensors(list(read_strings(corpus)))
    try:
        tokens, ends = _operator_module().encode(symbols, offsets, pairs)
    except ValueError as error:
        raise _fail(f"{tokenizer}: {error}") from None
    numbers = tokens.tolist()
    _write((" ".join(map(str, numbers[begin:end])) for begin, end in pairwise(ends.tolist())), output)


@tokenizer_app.command("decode")
def decode_tokens(
    tokenizer: Path = typer.Argument(..., help="A file that `train` or `tokenizers` saved."),
    encoded: Path = typer.Argument(..., help="A file that `encode` wrote."),
    output: Path | None = typer.Option(None, help="Default: standard output."),
) -> None:
    """Write the strings of encoded lines."""
    pairs = _load(tokenizer)
    texts = {str(number): text for text, number in pairs.numbers.items()}
    _write(_decoded(encoded, texts), output)


def _decoded(encoded: Path, texts: dict[str, str]) -> Iterator[str]:
    for number, line in enumerate(_lines(encoded), 1):
        words = line.split()
        bad = next((word for word in words if word not in texts), None)
        if bad is not None:
            raise _fail(f"{encoded}, line {number}: {bad[:40]!r} is no token of this tokenizer")
        yield "".join(texts[word] for word in words)


def read_strings(paths: Iterable[Path]) -> Iterator[str]:
    """The strings of all files, those of a folder by name. Exits 2 for what is no ASCII text or does not exist."""
    for path in paths:
        if not path.exists():
            raise _fail(f"{path}: no such file or folder")
        files = sorted(file for file in path.rglob("*") if file.is_file()) if path.is_dir() else [path]
        for file in files:
            lines = _lines(file)
            yield from _sequences(lines) if file.suffix.lower() in FASTA else (line for line in lines if line)


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="ascii").splitlines()
    except UnicodeDecodeError as error:
        raise _fail(f"{path}: byte {error.start} is not ASCII; a symbol is one byte here") from None
    except OSError as error:
        raise _fail(f"{path}: {error.strerror}") from None


def _sequences(lines: Iterable[str]) -> Iterator[str]:
    """The sequences of a FASTA file: what stands between two lines that begin with >."""
    parts: list[str] = []
    for line in (*lines, ">"):
        if line.startswith(">"):
            if parts:
                yield "".join(parts)
            parts = []
        elif line.strip():
            parts.append(line.strip())


def _tensors(strings: list[str]) -> tuple[Tensor, Tensor]:
    """(symbols, where each string begins and ends)."""
    import torch

    if not strings:
        raise _fail("the corpus holds no text")
    symbols = torch.frombuffer(bytearray("".join(strings).encode("ascii")), dtype=torch.uint8)
    return symbols, torch.tensor([0, *map(len, strings)]).cumsum(0)


def _operator_module() -> Any:
    """The operator file of bpe_train, with its library loaded for the CPU."""
    import importlib

    from warpwatch.loading import LoadError, load_operator

    # torch warns where NumPy is not installed, which nothing here needs.
    warnings.filterwarnings("ignore", "Failed to initialize NumPy")
    try:
        loaded = load_operator("bpe_train", "cpu")
    except LoadError as error:
        raise _fail(str(error)) from None
    return importlib.import_module(loaded.reference.__module__)


def _load(path: Path) -> BytePairs:
    try:
        return from_json(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise _fail(f"{path}: {error.strerror}") from None
    except ValueError as error:
        raise _fail(f"{path}: this is no byte-pair tokenizer ({error})") from None


def _write(lines: Iterable[str], output: Path | None) -> None:
    def write(file: TextIO) -> None:
        file.writelines(f"{line}\n" for line in lines)

    if output is None:
        write(sys.stdout)
    else:
        with output.open("w", encoding="utf-8") as file:
            write(file)


def _fail(message: str) -> typer.Exit:
    typer.echo(message, err=True)
    return typer.Exit(2)
