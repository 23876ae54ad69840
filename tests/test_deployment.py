"""The compose file and the Dockerfiles name only commands, folders, extras and settings that exist."""

from __future__ import annotations

import os
import re
import shutil
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


@pytest.mark.skipif(shutil.which("docker-compose") is None, reason="Docker Compose is not installed")
def test_compose_accepts_the_file() -> None:
    """`config` checks the file against the schema of Compose and needs no Docker."""
    words = ["docker-compose", "--file", str(ROOT / "docker-compose.yml"), "--profile", "cpu", "config", "--quiet"]
    secrets = {"POSTGRES_PASSWORD": "a", "WARPWATCH_TOKEN": "b"}
    subprocess.run(words, check=True, env={"PATH": os.environ["PATH"], "HOME": "/nowhere", **secrets})


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
    # Variables of OpenTelemetry are read by its SDK.
    ours = [setting for setting in BUILT[name]["environment"] if not setting.startswith("OTEL_")]
    assert [setting for setting in ours if f'"{setting}"' not in sources] == []


@pytest.mark.parametrize("dockerfile", DOCKERFILES)
def test_copied_paths_and_extras_exist(dockerfile: str) -> None:
    text = (ROOT / dockerfile).read_text()
    for line in re.findall(r"^COPY (?!--from)(.+)$", text, re.MULTILINE):
        assert [source for source in line.split()[:-1] if not (ROOT / source).exists()] == []
    known = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    (extras,) = re.findall(r"\.whl\)\[([a-z,]+)\]", text)
    assert set(extras.split(",")) <= set(known)
    assert "telemetry" in extras, "docker-compose.yml lets every container send traces"


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


LONG_LIVED = [name for name in SERVICES if name != "migrate"]
WORKERS = [name for name in SERVICES if name.startswith("worker")]


@pytest.mark.parametrize("name", SERVICES)
def test_no_container_has_more_rights_than_it_needs(name: str) -> None:
    service = SERVICES[name]
    assert not {"cap_add", "privileged", "network_mode", "pid", "ipc", "userns_mode", "devices"} & set(service)
    assert "no-new-privileges:true" in service["security_opt"]
    sockets = [volume for volume in service.get("volumes", []) if volume.startswith(("/", "."))]
    assert sockets == [], "no folder of the host is inside"


@pytest.mark.parametrize("name", BUILT)
def test_our_containers_write_to_volumes_and_memory_alone(name: str) -> None:
    service = BUILT[name]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert [mount.partition(":")[0] for mount in service["tmpfs"]] == ["/tmp"]
    assert all("size=" in mount for mount in service["tmpfs"])


@pytest.mark.parametrize("name", WORKERS)
def test_workers_may_make_namespaces(name: str) -> None:
    """Docker's filters forbid unshare and a fresh /proc, which isolation `full` needs, to an ordinary user."""
    assert {"seccomp=unconfined", "apparmor=unconfined", "systempaths=unconfined"} <= set(
        SERVICES[name]["security_opt"]
    )
    assert [mount for mount in SERVICES[name]["tmpfs"] if ":exec," not in mount] == [], "compilers run what they wrote"


@pytest.mark.parametrize("name", SERVICES)
def test_every_container_has_limits(name: str) -> None:
    assert SERVICES[name]["mem_limit"]
    assert 0 < SERVICES[name]["pids_limit"] <= 8192


@pytest.mark.parametrize("name", ["database", "server"])
def test_what_others_wait_for_has_a_health_check(name: str) -> None:
    check = SERVICES[name]["healthcheck"]
    assert check["test"][0] in ("CMD", "CMD-SHELL")
    assert {"interval", "timeout", "retries"} <= set(check)


@pytest.mark.parametrize("name", LONG_LIVED)
def test_what_dies_is_started_again(name: str) -> None:
    assert SERVICES[name]["restart"] == "unless-stopped"


def test_no_secret_has_a_default() -> None:
    text = (ROOT / "docker-compose.yml").read_text()
    for secret in ("POSTGRES_PASSWORD", "WARPWATCH_TOKEN", "WARPWATCH_WORKER_KEY"):
        uses = re.findall(rf"\$\{{{secret}([^}}]*)\}}", text)
        assert uses
        assert [use for use in uses if not use.startswith(":?")] == [], "required, without a default"


def test_secrets_are_made_once_and_for_their_owner_alone(tmp_path: Path) -> None:
    command = ["make", "--file", str(ROOT / "Makefile"), ".env"]
    for _ in range(2):
        subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)
    file = tmp_path / ".env"
    first = file.read_text()
    secrets = r"POSTGRES_PASSWORD=[0-9a-f]{48}\nWARPWATCH_TOKEN=[0-9a-f]{48}\nWARPWATCH_WORKER_KEY=wwk_[0-9a-f]{64}\n"
    assert re.fullmatch(secrets, first)
    assert file.stat().st_mode & 0o077 == 0
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)
    assert file.read_text() == first
    for ignored in (".gitignore", ".dockerignore"):
        assert ".env" in (ROOT / ignored).read_text().splitlines()


def test_only_migrations_and_server_reach_the_database() -> None:
    assert COMPOSE["networks"]["data"]["internal"] is True
    assert SERVICES["database"]["networks"] == ["data"]
    assert {name for name in SERVICES if "data" in SERVICES[name]["networks"]} == {"database", "migrate", "server"}
    for name in WORKERS:
        assert "WARPWATCH_DATABASE_URL" not in SERVICES[name]["environment"]
    assert "ports" not in SERVICES["database"]
    assert [port for port in SERVICES["server"]["ports"] if not port.startswith("127.0.0.1:")] == []
