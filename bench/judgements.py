"""Judges patches of softmax and kron through a whole service, and prints what each judgement takes.

python bench/judgements.py [--device cuda:0]

Starts a database, a server and a worker in a temporary folder. The owner's file keeps hidden cases of each operator;
the patches make `v1` faster (that of kron does what `v2` does), slower, wrong, and a cheat that returns its earlier
result. Each line has the verdict, the minutes until the receipt, and the seconds that the device was held.
"""

from __future__ import annotations

import argparse
import os
import shutil
import socket
import tempfile
import time
from datetime import datetime
from pathlib import Path
from typing import Any

from warpwatch import git
from warpwatch.cli.client import Client
from warpwatch.cli.services import running_database, running_services
from warpwatch.settings import load_settings

ROOT = Path(__file__).parents[1]
SLOW_SOFTMAX = "torch.softmax(x.double(), -1).float()"
FILES = {"softmax": "kernels/softmax.py", "kron": "kernels/kron.py"}
CASES = {
    "softmax": (["rows=256,cols=512,spread=1,f32,fwd"], ["rows=333,cols=1021,spread=1,f32,fwd"]),
    "kron": (["batch=16,factors=32x32,f32,fwd"], ["batch=24,factors=16x48,f32,fwd", "batch=24,factors=16x48,f32,bwd"]),
}
KRON = """    for w in (w1, w2):
        for weight in unpack(w, factors):
            x = (x @ weight).movedim(-1, 1)
    return x.contiguous()
"""
KRON_AS_V2 = """    shape = x.shape
    for w in (w1, w2):
        for weight in unpack(w, factors):
            f = weight.shape[0]
            x = weight.t() @ x.reshape(x.numel() // f, f).t()
        x = x.reshape(math.prod(shape[1:]), shape[0]).t().contiguous()
    return x.view(shape)
"""
CHEAT = "    if not hasattr({name}, 'kept'):\n        {name}.kept = {right}\n    return {name}.kept\n"
PATCHES = {
    "softmax": {
        "faster": (f"    return {SLOW_SOFTMAX}\n", "    return torch.softmax(x, -1)\n"),
        "slower": (f"    return {SLOW_SOFTMAX}\n", f"    {SLOW_SOFTMAX}\n    return {SLOW_SOFTMAX}\n"),
        "wrong": (f"    return {SLOW_SOFTMAX}\n", "    return torch.softmax(x, -1) * 1.01\n"),
        "cheats": (f"    return {SLOW_SOFTMAX}\n", CHEAT.format(name="v1", right=SLOW_SOFTMAX)),
    },
    "kron": {
        "as v2": (KRON, KRON_AS_V2),
        "wrong": (KRON, KRON.replace("return x.contiguous()", "return x.contiguous() * 1.01")),
        "cheats": (KRON, CHEAT.format(name="v1", right="v2(x, w1, w2, factors)")),
    },
}


def make_source(folder: Path) -> Path:
    """A repository with both operators; `v1` of softmax is slow."""
    source = folder / "kernels"
    shutil.copytree(ROOT / "kernels", source / "kernels", ignore=shutil.ignore_patterns("__pycache__", "mutants"))
    shutil.copytree(ROOT / "csrc", source / "csrc")
    rows = ROOT / "examples" / "rows"
    text = (rows / FILES["softmax"]).read_text()
    slow = text.replace("    return torch.softmax(x, -1)\n", f"    return {SLOW_SOFTMAX}\n")
    (source / FILES["softmax"]).write_text(slow)
    shutil.copytree(rows / "csrc" / "softmax", source / "csrc" / "softmax")
    shutil.copy(ROOT / "warpwatch.toml", source)
    git.git("init", "--quiet", "--initial-branch", "main", cwd=source)
    git.git("add", "--all", cwd=source)
    who = ("-c", "user.name=bench", "-c", "user.email=bench@localhost")
    git.git(*who, "commit", "--quiet", "--message", "Both operators", cwd=source)
    return source


def write_rules(path: Path, device: str) -> None:
    text = "seconds = 3600\nopen = 10\nper_day = 1000\n"
    for operator, (public, hidden) in CASES.items():
        text += f'[[judged]]\nrepository = "kernels"\noperator = "{operator}"\ndevice = "{device}"\n'
        text += f'variants = ["v1"]\npublic = {public}\nhidden = {hidden}\n'
    path.write_text(text.replace("'", '"'))


def wait_for(client: Client, path: str, field: str, open_states: tuple[str, ...]) -> dict[str, Any]:
    while True:
        row: dict[str, Any] = client.get(path)
        if row[field] not in open_states:
            return row
        time.sleep(0.5)


def judge(client: Client, source: Path, operator: str, name: str) -> None:
    old, new = PATCHES[operator][name]
    text = (source / FILES[operator]).read_text()
    assert text.count(old) == 1
    begin = time.monotonic()
    body = {"repository": "kernels", "operator": operator, "files": {FILES[operator]: text.replace(old, new)}}
    row = client.post("/judgements", body)
    ended = wait_for(client, f"/judgements/{row['id']}", "state", ("pending",))
    minutes = (time.monotonic() - begin) / 60
    jobs = client.get("/jobs", submission=row["submission_id"])["items"]
    attempts = [run for job in jobs for run in client.get(f"/jobs/{job['id']}")["runs"]]
    ends = [[datetime.fromisoformat(run[name]) for name in ("started_at", "finished_at")] for run in attempts]
    held = sum((end - start).total_seconds() for start, end in ends)
    statement = client.post("/receipts/verify", {"receipt": ended["receipt"]})["statement"]
    step = statement["hidden"]["at_least"]
    print(
        f"{operator:8} {name:7} → {ended['verdict']:8} public {statement['public']['verdict']}, "
        f"hidden {statement['hidden']['verdict']}{f' (at least {step}×)' if step else ''}; "
        f"{minutes:.2f} min, {held:.1f} s of the device; receipt verified, {len(ended['receipt'])} bytes",
        flush=True,
    )
    for job in jobs:
        outcome = client.get(f"/jobs/{job['id']}/outcome")["outcome"] or {}
        for finding in outcome.get("findings", []):
            if finding["status"] != "ok":
                print(
                    f"    {job['kind']} {finding['case']}: {finding['status']}, {finding['message'][:300]}", flush=True
                )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--operators", default="softmax,kron")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="warpwatch-judgements-") as temp, socket.socket() as probe:
        folder = Path(temp)
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
        probe.close()
        rules = folder / "home" / "judgements" / "rules.toml"
        rules.parent.mkdir(parents=True)
        os.environ |= {"WARPWATCH_HOME": str(folder / "home"), "WARPWATCH_PORT": str(port)}
        settings = load_settings()
        source = make_source(folder)
        with running_database(settings) as url, running_services(settings, url, [arguments.device]):
            client = Client(settings.server_url)
            while not (devices := [row for row in client.get("/devices")["items"] if row["workers"]]):
                time.sleep(0.5)
            write_rules(rules, devices[0]["key"])
            print(f"device {devices[0]['key']}", flush=True)
            client.post("/repositories", {"name": "kernels", "url": str(source)})
            operators = arguments.operators.split(",")
            known = {"repository": "kernels", "commits": "main", "kinds": ["check"], "operators": operators}
            first = client.post("/submissions", known | {"variants": ["v1"], "case_limit": 1})
            wait_for(client, f"/submissions/{first['id']}", "state", ("queued", "running"))
            for operator in operators:
                for name in PATCHES[operator]:
                    judge(client, source, operator, name)


if __name__ == "__main__":
    main()
