"""The wheel, installed in an empty environment, is the whole product, and puts one name there."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import time
import urllib.request
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import libraries
from tests.package.conftest import ROOT, Installed
from tests.server.test_serve import wait_until_healthy
from tests.test_loading import example
from warpwatch import __version__
from warpwatch.db import embedded

PLAIN_BYTES = 2_900_000
PLAIN_PACKAGES = 16
"""More than these make the base install slow."""
NOT_IMPORTABLE = ("db", "server", "worker", "web", "kernels", "csrc", "tests", "bench")
IDENTITY = ("-c", "user.name=Tester", "-c", "user.email=tester@example.org")


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A user's repository with one operator and two commits."""
    folder = tmp_path / "kernels-of-mine"
    shutil.copytree(ROOT / "examples" / "softsign", folder)
    subprocess.run(["git", "init", "--quiet", folder], check=True)
    for subject in ("Add softsign", "Explain softsign"):
        (folder / "README.md").write_text(subject)
        subprocess.run(["git", "add", "."], cwd=folder, check=True)
        subprocess.run(["git", *IDENTITY, "commit", "--quiet", "--message", subject], cwd=folder, check=True)
    return folder


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "home"
    yield folder
    embedded.stop(folder)
    shutil.rmtree(embedded.data_folder(folder), ignore_errors=True)


def test_the_wheel_is_small_and_holds_the_product_alone(wheels: Path) -> None:
    (wheel,) = wheels.glob("warpwatch-*.whl")
    print(f"wheel: {wheel.stat().st_size / 1e6:.2f} MB")
    assert wheel.stat().st_size < PLAIN_BYTES
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.split("/")[0] for name in names} == {"warpwatch", wheel.name.rsplit("-", 3)[0] + ".dist-info"}
    assert [name for name in names if name.endswith((".pyc", ".wwb", "Dockerfile")) or "/tests/" in name] == []
    files = {name.removeprefix("warpwatch/") for name in names}
    assert "py.typed" in files
    for folder in ("db", "server", "worker", "web"):
        assert {str(path.relative_to(ROOT)) for path in product_files(ROOT / folder)} <= files
    for folder in ("kernels", "csrc"):
        assert {f"bundled/{path.relative_to(ROOT)}" for path in product_files(ROOT / folder)} <= files


def product_files(folder: Path) -> list[Path]:
    skipped = ("__pycache__", "Dockerfile")
    return [path for path in folder.rglob("*") if path.is_file() and not set(skipped) & set(path.parts)]


def test_the_plain_install_is_quick_and_is_the_sdk_and_the_command(plain: Installed, tmp_path: Path) -> None:
    print(f"pip install warpwatch: {plain.seconds:.2f} s")
    assert len(list(plain.site_packages.glob("*.dist-info"))) <= PLAIN_PACKAGES
    assert plain.run("--version", cwd=tmp_path).stdout == f"{__version__}\n"
    for command in ("run", "submit", "status"):
        assert plain.run(command, "--help", cwd=tmp_path).returncode == 0
    # No server answers there: the command itself works.
    refused = plain.run("status", "1", cwd=tmp_path, WARPWATCH_URL="http://127.0.0.1:9")
    assert (refused.returncode, "Traceback" in refused.stderr) == (2, False), refused.stderr
    missing = plain.run("serve", cwd=tmp_path)
    assert "pip install 'warpwatch[measure,server,embedded]'" in missing.stderr
    assert "Traceback" not in missing.stderr
    typed = "from warpwatch import Operator, case; print(case(n=3)['n'])"
    done = subprocess.run([plain.python, "-c", typed], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.stdout == "3\n", done.stderr


@pytest.mark.parametrize("extent", ["plain", "full"])
def test_nothing_else_is_importable(extent: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    installed: Installed = request.getfixturevalue(extent)
    question = f"from importlib.util import find_spec; print([n for n in {NOT_IMPORTABLE} if find_spec(n)])"
    done = subprocess.run([installed.python, "-c", question], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.stdout == "[]\n", done.stdout + done.stderr


def test_a_server_answers_with_its_pages_and_files(full: Installed, home: Path) -> None:
    done = full.run("migrate", cwd=home.parent, WARPWATCH_HOME=str(home))
    assert done.returncode == 0, done.stdout + done.stderr
    assert_pages_answer(full, home, home.parent)


@pytest.mark.nightly
@pytest.mark.timeout(600)
def test_up_measures_a_repository_and_pages_answer(full: Installed, repository: Path, home: Path) -> None:
    print(f"pip install warpwatch[measure,server,embedded]: {full.seconds:.1f} s")
    began = time.monotonic()
    variables = {"WARPWATCH_HOME": str(home), "WARPWATCH_PORT": str(free_port())}
    done = full.run("up", "--once", "--commits", "1", cwd=repository, **variables)
    print(f"warpwatch up --once --commits 1: {time.monotonic() - began:.0f} s")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "repository example-h100" in done.stdout
    assert "repository example-h200" in done.stdout
    assert "softsign" in assert_pages_answer(full, home, repository, "?repository=kernels-of-mine")


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
    return port


def assert_pages_answer(full: Installed, home: Path, folder: Path, query: str = "") -> str:
    """Runs a server until the front page and every file and page that it names have answered; the front page."""
    port = free_port()
    variables = {"WARPWATCH_HOME": str(home), "WARPWATCH_PORT": str(port)}
    server = subprocess.Popen(
        [full.folder / "bin" / "warpwatch", "serve"], cwd=folder, env=full.environment(**variables)
    )
    try:
        wait_until_healthy(port)
        address = f"http://127.0.0.1:{port}"
        front = read(f"{address}/overview{query}")
        links = {link.replace("&amp;", "&") for link in re.findall(r'(?:href|src)="(/[^"#]*)"', front)}
        assert any("plotly" in link or "static" in link for link in links)
        for link in sorted(links):
            read(address + link)
        print(f"pages and files that answer 200: {len(links)}")
        server.send_signal(signal.SIGTERM)
        assert server.wait(60) == 0
    finally:
        server.kill()
    assert not embedded.is_running(home)
    return front


def read(url: str) -> str:
    with urllib.request.urlopen(url, timeout=30) as response:
        assert response.status == 200, url
        body: bytes = response.read()
        return body.decode(errors="replace")


@pytest.mark.nightly
def test_programs_and_the_command_build_and_run_the_operators_that_ship_with_it(
    full: Installed, tmp_path: Path
) -> None:
    """Outside any repository both work on the operators and native sources in the wheel, with one library."""
    with libraries.quick_flags():
        home = {"WARPWATCH_HOME": str(tmp_path / "home"), "CXXFLAGS": os.environ["CXXFLAGS"]}
    program, compiled, _ = example().partition("# torch.compile")
    assert "backward" in program
    assert compiled
    done = python(full, program, tmp_path, **home)
    assert done.returncode == 0, done.stderr
    assert [path.name for path in (tmp_path / "home").iterdir()] == ["builds"], "it needs no database"
    command = ("kron", "--device", "cpu", "--variants", "v1,v3", "16", "8", "8", "check")
    done = full.run(*command, cwd=tmp_path, **home)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    assert [path.name for path in tmp_path.iterdir()] == ["home"], "the current folder stays as it is"
    # The same tokenizer that a page makes of the same strings: tests/server/test_tokenizer.py.
    corpus = tmp_path / "corpus.txt"
    corpus.write_text("MKVLAAMKVL\nVLMKVL\n")
    for words in (("train", corpus, "--merges", "2"), ("encode", "tokenizer.json", corpus, "--output", "tokens")):
        done = full.run("tokenizer", *map(str, words), cwd=tmp_path, **home)
        assert done.returncode == 0, done.stderr
    done = full.run("tokenizer", "decode", "tokenizer.json", "tokens", cwd=tmp_path, **home)
    assert done.stdout == corpus.read_text(), done.stderr


@pytest.mark.nightly
def test_programs_compile_the_operators_that_ship_with_it(full: Installed, tmp_path: Path) -> None:
    """The whole example of the page, which tests/test_loading.py runs in this checkout."""
    home = {"WARPWATCH_HOME": str(tmp_path / "home")}
    began = time.monotonic()
    done = python(full, example(), tmp_path, **home)
    print(f"the example of docs/using-kernels.md, with the first build: {time.monotonic() - began:.0f} s")
    assert done.returncode == 0, done.stderr


def test_loading_without_torch_is_an_error_of_its_own(plain: Installed, tmp_path: Path) -> None:
    program = """
import warpwatch
from warpwatch.loading import UnavailableError
try:
    warpwatch.load("kron")
except UnavailableError as error:
    print(error)
"""
    done = python(plain, program, tmp_path)
    assert "warpwatch[measure]" in done.stdout, done.stderr


def python(installed: Installed, program: str, folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [installed.python, "-c", program],
        cwd=folder,
        env=installed.environment(**variables),
        capture_output=True,
        text=True,
        check=False,
    )
