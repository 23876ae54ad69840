"""`warpwatch tokenizer`: trains on files, encodes and decodes with what it saved, and names what is wrong."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from warpwatch.cli.tokenizer import read_strings

from .conftest import ROOT


def tokenizer(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, "-m", "warpwatch", "tokenizer", *arguments]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)


def test_what_is_encoded_is_decoded(tmp_path: Path) -> None:
    (tmp_path / "corpus").mkdir()
    (tmp_path / "corpus" / "b.txt").write_text("LLMK\nMKVLAAMKVL\n")
    (tmp_path / "corpus" / "a.fasta").write_text(">one\nMKVL\nAAMK\n>two\n\nVLMKVL\n")
    done = tokenizer(tmp_path, "train", "corpus", "--merges", "3", "--threads", "1")
    assert done.returncode == 0, done.stderr
    assert "28 symbols in 4 strings, 5 different" in done.stdout
    done = tokenizer(tmp_path, "encode", "tokenizer.json", "corpus", "--output", "tokens.txt")
    assert done.returncode == 0, done.stderr
    # A, K, L, M, V; then MK, VL and MKVL.
    assert (tmp_path / "tokens.txt").read_text().splitlines() == ["7 0 0 5", "6 7", "2 2 5", "7 0 0 7"]
    done = tokenizer(tmp_path, "decode", "tokenizer.json", "tokens.txt")
    assert done.stdout.splitlines() == ["MKVLAAMK", "VLMKVL", "LLMK", "MKVLAAMKVL"]
    (tmp_path / "tokens.txt").write_text("7 0\n8\n")
    done = tokenizer(tmp_path, "decode", "tokenizer.json", "tokens.txt")
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
