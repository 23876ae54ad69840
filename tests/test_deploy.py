"""The files in deploy/ are what their schedulers accept, and name only commands, options and addresses that exist."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import typer.main
import yaml

from tests.apps import create_app
from tests.waiting import wait_until
from warpwatch.cli.app import app as commands
from warpwatch.db.database import Database
from warpwatch.settings import VARIABLES, Settings

DEPLOY = Path(__file__).parent.parent / "deploy"
KUBERNETES = "1.33"
SERVER = sorted(path for path in (DEPLOY / "kubernetes" / "server").glob("*.yaml") if path.stem != "kustomization")
SBATCH = DEPLOY / "slurm" / "workers.sbatch"
STOP_SECONDS = 20
"""How long a worker takes at most to hand its job back; see docs/operations.md."""


def read(path: Path) -> dict[str, Any]:
    content: dict[str, Any] = yaml.safe_load(path.read_text())
    return content


SCALED_JOB = read(DEPLOY / "kubernetes" / "workers" / "scaled-job.yaml")
SKYPILOT = read(DEPLOY / "skypilot" / "worker.yaml")


def pod(workload: dict[str, Any]) -> dict[str, Any]:
    inner: dict[str, Any] = workload["template"]["spec"]
    return inner


def containers() -> list[tuple[str, dict[str, Any]]]:
    deployment = pod(read(DEPLOY / "kubernetes" / "server" / "deployment.yaml")["spec"])
    of_server = [*deployment["initContainers"], *deployment["containers"]]
    of_worker = pod(SCALED_JOB["spec"]["jobTargetRef"])["containers"]
    return [(container["name"], container) for container in [*of_server, *of_worker]]


def words_of_commands() -> dict[str, list[str]]:
    """Every `warpwatch …` that a file starts, without the program's name."""
    found = {name: [*container["command"], *container.get("args", [])][1:] for name, container in containers()}
    for name, text in (("slurm", SBATCH.read_text()), ("skypilot", SKYPILOT["run"])):
        (line,) = [line for line in text.splitlines() if line.startswith("exec ")]
        found[name] = shlex.split(line)[2:]
    return found


@pytest.mark.parametrize("path", SERVER, ids=lambda path: path.stem)
def test_kubernetes_accepts_the_server(path: Path) -> None:
    kubernetes_validate.validate(read(path), KUBERNETES, strict=True)


def test_kubernetes_accepts_the_jobs_that_are_scaled() -> None:
    job = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "x"},
        "spec": SCALED_JOB["spec"]["jobTargetRef"],
    }
    kubernetes_validate.validate(job, KUBERNETES, strict=True)
    job["spec"] = {**job["spec"], "backofLimit": 0}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(job, KUBERNETES, strict=True)


@pytest.mark.parametrize("folder", ["server", "workers"])
def test_kustomizations_name_files_and_images_that_are_there(folder: str) -> None:
    root = DEPLOY / "kubernetes" / folder
    kustomization = read(root / "kustomization.yaml")
    assert sorted(kustomization["resources"]) == sorted(
        path.name for path in root.glob("*.yaml") if path.stem != "kustomization"
    )
    images = set(re.findall(r"image: (\S+)", "".join(path.read_text() for path in root.glob("*.yaml"))))
    assert {image["name"] for image in kustomization["images"]} == images


def test_what_scales_workers_is_an_answer_of_the_server(tmp_path: Path) -> None:
    # Nothing connects to it.
    database = Database("postgresql://127.0.0.1:1/none")
    description = create_app(Settings(home=tmp_path), database, judge=False).openapi()
    (trigger,) = SCALED_JOB["spec"]["triggers"]
    assert trigger["type"] == "metrics-api"
    asked = trigger["metadata"]
    path, _, query = asked["url"].removeprefix("https://bench.example").partition("?")
    operation = description["paths"][path]["get"]
    assert query.partition("=")[0] in [parameter["name"] for parameter in operation["parameters"]]
    reference = operation["responses"]["200"]["content"]["application/json"]["schema"]["$ref"]
    schema = description["components"]["schemas"][reference.rpartition("/")[2]]
    assert schema["properties"][asked["valueLocation"]]["type"] == "integer"
    secrets = read(DEPLOY / "kubernetes" / "workers" / "trigger-authentication.yaml")
    assert secrets["metadata"]["name"] == trigger["authenticationRef"]["name"]
    assert [row["parameter"] for row in secrets["spec"]["secretTargetRef"]] == ["token"], "what bearer asks for"


@pytest.mark.parametrize("name", words_of_commands())
def test_commands_and_options_exist(name: str) -> None:
    words = words_of_commands()[name]
    command: Any = typer.main.get_command(commands)
    while hasattr(command, "commands"):
        command = command.commands[words.pop(0)]
    known = {option for parameter in command.params for option in parameter.opts}
    assert [word for word in words if word.startswith("--") and word not in known] == []


@pytest.mark.parametrize(("name", "container"), containers(), ids=[name for name, _ in containers()])
def test_settings_are_ones_that_are_read(name: str, container: dict[str, Any]) -> None:
    known = {variable.name for variable in VARIABLES}
    assert [entry["name"] for entry in container["env"] if entry["name"] not in known] == []
    security = container["securityContext"]
    assert security["allowPrivilegeEscalation"] is False
    assert security["capabilities"] == {"drop": ["ALL"]}


def seconds(text: str) -> int:
    return int(text[:-1]) * {"s": 1, "m": 60, "h": 3600}[text[-1]] if text[-1].isalpha() else int(text)


def option(words: list[str], name: str) -> str:
    return words[words.index(name) + 1]


def test_a_worker_ends_before_its_scheduler_ends_it() -> None:
    job = SCALED_JOB["spec"]["jobTargetRef"]
    stay = seconds(option(words_of_commands()["worker"], "--at-most"))
    assert stay + STOP_SECONDS < job["activeDeadlineSeconds"]
    assert pod(job)["terminationGracePeriodSeconds"] > STOP_SECONDS
    options = dict(re.findall(r"^#SBATCH --([\w-]+)=(\S+)$", SBATCH.read_text(), re.MULTILINE))
    hours, minutes, rest = map(int, options["time"].split(":"))
    lead = int(options["signal"].rpartition("@")[2])
    assert seconds(option(words_of_commands()["slurm"], "--at-most")) + lead < 3600 * hours + 60 * minutes + rest
    assert lead > STOP_SECONDS
    assert options["signal"].startswith("B:TERM"), "to the worker, which takes the place of the batch shell"


@pytest.mark.parametrize(
    "text", [SBATCH.read_text(), SKYPILOT["run"], SKYPILOT["setup"]], ids=["slurm", "run", "setup"]
)
def test_shells_read_the_scripts(text: str) -> None:
    subprocess.run(["bash", "-n"], input=text, text=True, check=True)


@pytest.fixture
def fake_worker(tmp_path: Path) -> dict[str, str]:
    """An environment whose `warpwatch` writes its words and ends by SIGTERM alone."""
    program = tmp_path / "bin" / "warpwatch"
    program.parent.mkdir()
    program.write_text('#!/bin/bash\ntrap "echo handed back; exit 0" TERM\necho "$@"\nwhile :; do sleep 0.05; done\n')
    program.chmod(0o755)
    return {"PATH": f"{program.parent}:{os.environ['PATH']}", "TMPDIR": str(tmp_path)}


def test_the_signal_of_slurm_reaches_the_worker(fake_worker: dict[str, str], tmp_path: Path) -> None:
    environment = {**fake_worker, "WARPWATCH_URL": "https://bench.example", "WARPWATCH_WORKER_KEY": "wwk_x"}
    output = tmp_path / "output"
    with output.open("wb") as file:
        batch = subprocess.Popen(["bash", str(SBATCH)], env=environment, stdout=file, stderr=file)
    wait_until(output.read_text, 30)
    batch.send_signal(signal.SIGTERM)
    assert batch.wait(30) == 0
    words, last = output.read_text().splitlines()
    assert words == "worker --server https://bench.example --device cuda:0 --until-idle 60 --at-most 4h"
    assert last == "handed back"


def test_a_batch_without_a_key_says_so(fake_worker: dict[str, str]) -> None:
    environment = {**fake_worker, "WARPWATCH_URL": "https://bench.example"}
    done = subprocess.run(["bash", str(SBATCH)], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "warpwatch key add" in done.stderr


def test_skypilot_is_given_what_it_knows() -> None:
    assert set(SKYPILOT) <= {"name", "resources", "envs", "secrets", "setup", "run"}
    assert set(re.findall(r"\$(WARPWATCH_\w+)", SKYPILOT["run"] + SKYPILOT["setup"])) <= set(SKYPILOT["envs"])
    assert set(SKYPILOT["secrets"]) == {"WARPWATCH_WORKER_KEY"}
