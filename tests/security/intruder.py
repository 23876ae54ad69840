"""Runs hostile code in the strongest confinement of this host, also as a user who may do little.

Each line of standard input is an order in JSON: {"home": path, "code": Python, "hidden": [paths], "visible": [paths],
"folder": path, "isolation": "auto" or what that has found, "changes": {…}, "forked": bool}, with changes to the
confinement. A template forks the process that runs the code, or it is started as a program. Prints a line for each,
{"isolation", "code", "out"} or {"error"}.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from dataclasses import replace
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[2]))

from warpwatch.worker import levels, sandbox, templates

GIB = 2**30


def intrude(order: dict[str, Any]) -> dict[str, Any]:
    home = Path(order["home"])
    hidden = tuple(map(Path, order["hidden"]))
    confinement = levels.confinement(home, GIB, hidden, order["isolation"], scratch_bytes=32 * 2**20)
    confined = replace(confinement, **order["changes"])
    folder, visible = Path(order["folder"]), [Path(path) for path in order["visible"]]
    if order["forked"]:
        code, out = run_forked(confined, home, order["code"], folder, visible)
    else:
        words = [os.path.realpath(sys.executable), "-I", "-S", "-c", order["code"]]
        done = sandbox.run_confined(confined, words, folder, visible)
        code, out = done.returncode, done.stdout.strip() or done.stderr.strip()
    return {"isolation": confinement.isolation, "code": code, "out": out}


def run_forked(
    confinement: sandbox.Confinement, home: Path, code: str, folder: Path, visible: list[Path]
) -> tuple[int, str]:
    """As sandbox.run_confined, in a fork of a template: the exit status and what was printed."""
    script = home / "attack.py"
    # A program of this kind has no descriptor for replies.
    script.write_text(f'import os; os.close(int(os.environ["{templates.REPLY_VARIABLE}"]))\n{code}')
    jail = sandbox.Jail(confinement)
    words = [sys.executable, "-P", str(script)]
    printed, output = os.pipe()
    unused, replies = os.pipe()
    try:
        request = templates.TemplateRequest(words, sandbox.environment(jail.inside), folder, [*visible, script], 1)
        child = templates.fork(request, jail, replies, output)
        jail.launched()
        for descriptor in (unused, replies, output):
            os.close(descriptor)
        with os.fdopen(printed, encoding="utf-8", errors="replace") as text:
            out = text.read().strip()
        status = child.wait(60)
        child.release()
        return status, out
    finally:
        jail.close()


def serve() -> None:
    with os.fdopen(os.dup(0), encoding="utf-8") as orders:
        # Hostile code inherits standard input, and reads no orders there.
        with Path(os.devnull).open("rb") as nothing:
            os.dup2(nothing.fileno(), 0)
        for order in orders:
            try:
                answer = intrude(json.loads(order))
            except Exception:  # noqa: BLE001 - the test that gave the order fails with it.
                answer = {"error": traceback.format_exc()}
            print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    serve()
