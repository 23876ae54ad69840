"""Follows docs/adding-a-kernel.md to the letter: writes its files, runs its commands, expects what it promises."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = Path(__file__).parent.parent / "docs" / "adding-a-kernel.md"
FILE = re.compile(r"<!-- file: (\S+) -->\n```\w+\n(.*?)```", re.DOTALL)
RUN = re.compile(r"<!-- run -->\n```console\n(.*?)```", re.DOTALL)


@pytest.mark.timeout(240)
def test_the_page_works(tmp_path: Path) -> None:
    text = PAGE.read_text()
    files = dict(FILE.findall(text))
    assert {"warpwatch.toml", "kernels/softsign.py", "csrc/softsign/softsign.cpp"} == set(files)
    for name, content in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    identity = {
        f"GIT_{role}_{key}": value
        for role in ("AUTHOR", "COMMITTER")
        for key, value in (("NAME", "Tester"), ("EMAIL", "tester@example.org"))
    }
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {
        **os.environ,
        **identity,
        "PATH": path,
        "WARPWATCH_HOME": str(tmp_path / ".warpwatch"),
        "COLUMNS": "200",
    }
    subprocess.run(["git", "init", "--quiet"], cwd=tmp_path, check=True)
    output = ""
    for command in RUN.findall(text)[0].strip().splitlines():
        done = subprocess.run(
            ["sh", "-c", command], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )
        output += done.stdout + done.stderr
        assert done.returncode == 0, output
    for variant in ("v1", "v2", "v3"):
        assert re.search(rf"{variant}\b.*n=65536,f32,bwd.*\bok\b", output), output
    assert (tmp_path / "softsign.wwb").stat().st_size > 0
