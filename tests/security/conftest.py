"""The lab of the server's tests, for attacks on what it stores; and kernel code with bad intentions, as two users."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.security import intruder
from tests.server.conftest import lab as lab
from tests.server.conftest import source as source
from tests.worker.conftest import repository as repository
from tests.worker.conftest import user_cache as user_cache

NOBODY = 65534


@dataclass(frozen=True, slots=True)
class Intruder:
    """Kernel code in the sandbox of a worker that runs as `user`, None for this process's own user; in a fork of a
    template, or in a program. process: another user's, which runs intruder.py."""

    home: Path
    user: int | None
    forked: bool
    process: subprocess.Popen[str] | None = None

    def attack(self, code: str, **order: Any) -> str:
        """What the code prints. order: hidden, visible, folder, and changes to the confinement."""
        return str(self.run(code, **order)["out"])

    def run(self, code: str, **order: Any) -> dict[str, Any]:
        isolation = _isolations.get(self.user, "auto")
        defaults = {"hidden": [], "visible": [], "folder": "/", "changes": {}, "forked": self.forked}
        order = {"home": str(self.home), "code": textwrap.dedent(code), "isolation": isolation, **defaults, **order}
        if self.process is None:
            return intruder.intrude(order)
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(order) + "\n")
        self.process.stdin.flush()
        answer: dict[str, Any] = json.loads(self.process.stdout.readline())
        assert "error" not in answer, answer["error"]
        return answer


def as_user(user: int) -> list[str]:
    """A command line that runs Python as another user without any power."""
    python = shutil.which("python3", path="/usr/bin:/usr/local/bin")
    identity = [f"--reuid={user}", f"--regid={user}", "--clear-groups", "--inh-caps=-all", "--bounding-set=-all"]
    return ["setpriv", *identity, python or sys.executable]


@pytest.fixture(scope="module")
def ordinary_user() -> Iterator[subprocess.Popen[str]]:
    """A worker's process of an ordinary user. To start one for each attack would take longer than the attack."""
    if reason := reason_against(NOBODY):
        pytest.skip(reason)
    command = [*as_user(NOBODY), intruder.__file__]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield process
        assert process.stdin is not None
        process.stdin.close()


OTHER_PAIRS = [pytest.param(name, marks=pytest.mark.nightly) for name in ("own", "ordinary, forked")]
"""Every run attacks as both users, and from both kinds of children; nightly as each user from each kind."""


@pytest.fixture(params=["own, forked", "ordinary", *OTHER_PAIRS])
def kernel(request: pytest.FixtureRequest) -> Iterator[Intruder]:
    """Hostile kernel code, as the user of this process and, where that is root, as an ordinary user."""
    # pytest's own temporary folders are closed to other users.
    with tempfile.TemporaryDirectory(prefix="jail-") as folder:
        home = Path(folder)
        user, _, forked = request.param.partition(", ")
        if user == "own":
            kernel = Intruder(home, None, bool(forked))
        else:
            kernel = Intruder(home, NOBODY, bool(forked), request.getfixturevalue("ordinary_user"))
            os.chown(home, NOBODY, NOBODY)
        # What a host allows does not change from one test to the next.
        if kernel.user not in _isolations:
            _isolations[kernel.user] = kernel.run("print()")["isolation"]
        if _isolations[kernel.user] != "full":
            pytest.skip("this host allows no full isolation")
        yield kernel


_isolations: dict[int | None, str] = {}
"""The isolation that this host allows kernel code of each user."""


@cache
def reason_against(user: int) -> str:
    """Why kernel code cannot run as this user here, "" where it can."""
    if os.getuid() != 0 or shutil.which("setpriv") is None:
        return "only root can become another user"
    look = f"import sys; assert sys.version_info >= (3, 11); open({intruder.__file__!r})"
    if subprocess.run([*as_user(user), "-c", look], capture_output=True, check=False).returncode:
        return "an ordinary user cannot read this checkout, or has no Python of 3.11"
    return ""
