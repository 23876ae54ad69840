"""`warpwatch tokenizer`: trains on files, encodes and decodes with what it saved, and names what is wrong."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
import typer

from tests import libraries
from warpwatch.cli.tokenizer import read_strings

from .forked import ForkedCommands

Tokenizer = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def tokenizer(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tokenizer]:
    """Runs `warpwatch tokenizer` in tmp_path."""
    modules = ("warpwatch.cli", "warpwatch.cli.tokenizer", "torch")
    # The library of the other tests is there already.
    variables = {"CUDA_VISIBLE_DEVICES": "", "WARPWATCH_HOME": str(libraries.build_cache().parent)}
    with libraries.quick_flags():
        commands = ForkedCommands(tmp_path_factory.mktemp("commands"), *modules, **variables)
    yield partial(commands.run, tmp_path, "tokenizer")
    commands.close()


def test_what_is_encoded_is_decoded(tokenizer: Tokenizer, tmp_path: Path) -> None:
    (tmp_path / "corpus").mkdir()
    (tmp_path / "corpus" / "b.txt").write_text("LLMK\nMKVLAAMKVL\n")
    (tmp_path / "corpus" / "a.fasta").write_text(">one\nMKVL\nAAMK\n>two\n\nVLMKVL\n")
    done = tokenizer("train", "corpus", "--merges", "3", "--threads", "1")
    assert done.returncode == 0, done.stderr
    assert "28 symbols in 4 strings, 5 different" in done.stdout
    done = tokenizer("encode", "tokenizer.json", "corpus", "--output", "tokens.txt")
    assert done.returncode == 0, done.stderr
    # A, K, L, M, V; then MK, VL and MKVL.
    assert (tmp_path / "tokens.txt").read_text().splitlines() == ["7 0 0 5", "6 7", "2 2 5", "7 0 0 7"]
    done = tokenizer("decode", "tokenizer.json", "tokens.txt")
    assert done.stdout.splitlines() == ["MKVLAAMK", "VLMKVL", "LLMK", "MKVLAAMKVL"]
    (tmp_path / "tokens.txt").write_text("7 0\n8\n")
    done = tokenizer("decode", "tokenizer.json", "tokens.txt")
    assert done.returncode == 2
    assert "tokens.txt, line 2: '8' is no token" in done.stderr


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("missing.txt", None, "no such file or folder"),
        ("latin.txt", b"caf\xe9\n", "byte 3 is not ASCII"),
    ],
)
def test_a_file_that_is_no_corpus_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, content: bytes | None, message: str
) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(typer.Exit) as caught:
        list(read_strings([tmp_path / name]))
    assert caught.value.exit_code == 2
    error = capsys.readouterr().err
    assert name in error
    assert message in error


def test_a_folder_is_read_in_the_order_of_its_names(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "z.FA").write_text("AB\n>x\nCD\nEF")
    (tmp_path / "a.txt").write_text("first\r\n\nsecond")
    assert list(read_strings([tmp_path])) == ["first", "second", "AB", "CDEF"]
