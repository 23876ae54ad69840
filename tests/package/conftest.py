"""The wheels of this checkout, and empty environments to install them in."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import time
import venv
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
UV = Path(sys.executable).parent / "uv"
LINKS = [part for folder in os.environ.get("PIP_FIND_LINKS", "").split() for part in ("--find-links", folder)]


@dataclass(frozen=True, slots=True)
class Installed:
    """An environment outside the checkout with Warpwatch in it.

    seconds: how long the installation took, downloads not counted.
    """

    folder: Path
    seconds: float

    @property
    def python(self) -> Path:
        return self.folder / "bin" / "python"

    @property
    def site_packages(self) -> Path:
        (folder,) = (self.folder / "lib").glob("python*/site-packages")
        return folder

    def run(self, *arguments: str, cwd: Path, **variables: str) -> subprocess.CompletedProcess[str]:
        """Runs `warpwatch` as its users do."""
        return subprocess.run(
            [self.folder / "bin" / "warpwatch", *arguments],
            cwd=cwd,
            env=self.environment(**variables),
            capture_output=True,
            text=True,
            check=False,
        )

    def environment(self, **variables: str) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV"))}
        path = f"{self.folder / 'bin'}{os.pathsep}{os.environ['PATH']}"
        return kept | {"PATH": path, "COLUMNS": "200"} | variables


@pytest.fixture(scope="session")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with both wheels, built from what git knows, as a release builds them."""
    source, target = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheels")
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    for name in filter(None, listed.stdout.split("\0")):
        if (ROOT / name).exists():
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, source / name, follow_symlinks=False)
    for project in (source, source / "packaging" / "example"):
        subprocess.run([UV, "build", "--quiet", "--wheel", "--out-dir", target, project], check=True)
    return target


def install(wheels: Path, folder: Path, extras: str) -> Installed:
    """An empty environment in `folder` with the wheel and `extras`, such as "[server]"; "" for the base install."""
    venv.create(folder, symlinks=True)
    (wheel,) = wheels.glob("warpwatch-*.whl")
    target = f"warpwatch{extras} @ {wheel.as_uri()}"
    python = folder / "bin" / "python"
    command: list[str | Path] = [UV, "pip", "install", "--quiet", "--python", python, "--find-links", wheels, *LINKS]
    command += ["--constraint", ROOT / "constraints.txt"]
    # The first run downloads, so that the second measures the installation alone.
    subprocess.run([*command, "--dry-run", target], check=True)
    began = time.monotonic()
    subprocess.run([*command, target], check=True)
    installed = Installed(folder, time.monotonic() - began)
    if extras:
        lend_byte_code(installed)
    return installed


def lend_byte_code(installed: Installed) -> None:
    """Gives packages the byte code that those of this environment have: children cannot write their own, and each would
    compile all of torch for itself. Python reads it where the source has the same time and size."""
    here = Path(sysconfig.get_path("purelib"))
    for cache in here.rglob("__pycache__"):
        package = installed.site_packages / cache.parent.relative_to(here)
        if package.is_dir() and not (package / "__pycache__").exists():
            shutil.copytree(cache, package / "__pycache__", copy_function=os.link)


@pytest.fixture(scope="session")
def plain(wheels: Path, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """`pip install warpwatch`."""
    return install(wheels, tmp_path_factory.mktemp("plain"), "")


@pytest.fixture(scope="session")
def full(wheels: Path, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """`pip install 'warpwatch[measure,server,embedded]'`."""
    return install(wheels, tmp_path_factory.mktemp("full"), "[measure,server,embedded]")
