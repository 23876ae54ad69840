"""The compose file and the Dockerfiles name only commands, folders, extras and settings that exist."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parent.parent
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
SERVICES: dict[str, Any] = COMPOSE["services"]
BUILT = {name: service for name, service in SERVICES.items() if "build" in service}
DOCKERFILES = sorted({service["build"]["dockerfile"] for service in BUILT.values()})


def test_all_parts_are_there() -> None:
    assert {"database", "migrate", "server", "worker-gpu"} <= set(SERVICES)


@pytest.mark.parametrize("name", BUILT)
def test_commands_exist(name: str) -> None:
    command = BUILT[name]["command"]
    options = [part for part in command[2:] if part.startswith("--")]
    done = subprocess.run(
        [sys.executable, "-m", *command[:2], "--help"],
        capture_output=True,
        text=True,
        check=False,
        env={"COLUMNS": "200", "PATH": ""},
    )
    assert done.returncode == 0, done.stderr
    assert [option for option in options if option not in done.stdout] == []


@pytest.mark.parametrize("name", SERVICES)
def test_dependencies_and_volumes_exist(name: str) -> None:
    assert set(SERVICES[name].get("depends_on", {})) <= set(SERVICES)
    named = {volume.split(":")[0] for volume in SERVICES[name].get("volumes", [])}
    assert named <= set(COMPOSE["volumes"])


@pytest.mark.parametrize("name", BUILT)
def test_settings_are_ones_that_are_read(name: str) -> None:
    sources = "".join(path.read_text() for folder in ("warpwatch", "server") for path in (ROOT / folder).rglob("*.py"))
    assert [setting for setting in BUILT[name]["environment"] if f'"{setting}"' not in sources] == []


@pytest.mark.parametrize("dockerfile", DOCKERFILES)
def test_copied_paths_and_extras_exist(dockerfile: str) -> None:
    text = (ROOT / dockerfile).read_text()
    for line in re.findall(r"^COPY (?!--from)(.+)$", text, re.MULTILINE):
        assert [source for source in line.split()[:-1] if not (ROOT / source).exists()] == []
    known = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    (extras,) = re.findall(r"\.whl\)\[([a-z,]+)\]", text)
    assert set(extras.split(",")) <= set(known)


@pytest.mark.parametrize("dockerfile", DOCKERFILES)
def test_images_hold_the_wheel_and_run_as_a_normal_user(dockerfile: str) -> None:
    text = (ROOT / dockerfile).read_text()
    assert "--editable" not in text
    *_, user = re.findall(r"^USER (\w+)$", text, re.MULTILINE)
    assert user != "root"
    # A volume of that name takes the owner of the folder, so the folder must be the user's.
    assert f"--home-dir /var/lib/warpwatch --create-home {user}" in text


def test_what_the_wheel_is_made_of_reaches_docker() -> None:
    ignored = {line.removeprefix("**/") for line in (ROOT / ".dockerignore").read_text().splitlines()}
    assert not ignored & {"warpwatch", "db", "server", "worker", "web", "kernels", "csrc", "README.md", "LICENSE"}


def test_server_image_has_no_torch() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    needs = " ".join(extras["server"] + extras["database"])
    assert "torch" not in needs
    assert "measure" not in (ROOT / "server" / "Dockerfile").read_text()
