"""Judges patches of softmax and kron through a whole service, and prints what each judgement takes.

python bench/judgements.py [--device cuda:0] [--exam]

Starts a database, a server and a worker in a temporary folder. The owner's file keeps hidden cases of each operator;
the patches make `v1` faster (that of kron does what `v2` does), slower, wrong, and a cheat that returns its earlier
result. Each line has the verdict, the minutes until the receipt, and the seconds that the device was held.

--exam: judges every cheat of `warpwatch prove` and its honest twins instead, as patches of a package that definitions
beside it measure. No cheat may be judged faster or the same, and no twin a cheat or wrong.
"""

from __future__ import annotations

import argparse
import os
import re
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
from warpwatch.worker.proving import FOLDER

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


STEP_SECONDS = 60
EXAM_STEP_SECONDS = 20
CHEATS = FOLDER / "cheaters" / "kernels"
EXAM = {
    "product": (["n=256,f32,fwd"], ["n=224,f32,fwd"], "return torch.matmul(*inputs)"),
    "guessed": (["rows=256,columns=4096,f32,fwd"], ["rows=200,columns=4096,f32,fwd"], "return inputs[0].softmax(1)"),
    "forward": (["n=256,f32,bwd"], ["n=224,f32,bwd"], "return inputs[0] @ inputs[1] @ inputs[2]"),
}
"""Operators of the exam's inputs: public and hidden cases, and the code of the base."""
EXAM_VARIANT = """

@operator.variant("v1", idea="the measured package")
def v1({names}):
    import subject

    return subject.{operator}({names})
"""
DECORATED = re.compile(r'^@operator\.variant\(\s*"(\w+)"(.*?)\)\ndef (\w+)', re.MULTILINE | re.DOTALL)


def make_exam(folder: Path) -> tuple[Path, Path]:
    """The measured package, and the definitions beside it. Both are repositories."""
    subject, definitions = folder / "exam", folder / "definitions"
    functions = [f"def {name}(*inputs):\n    {code}\n" for name, (_, _, code) in EXAM.items()]
    write_repository(
        subject,
        {"subject/__init__.py": "import torch\n\n\n" + "\n\n".join(functions)}
        | {"subject/_product.py": (CHEATS / "_product.py").read_text()},
    )
    product = (CHEATS / "_product.py").read_text() + '\n\noperator = make_operator("product", "y = a b")\n'
    heads = {name: (CHEATS / f"{name}.py").read_text().split("caught_by")[0] for name in ("guessed", "forward")}
    names = {"product": "a, b", "guessed": "x", "forward": "x, a, b"}
    files = {
        f"operators/{name}.py": head + EXAM_VARIANT.format(names=names[name], operator=name)
        for name, head in ({"product": product} | heads).items()
    }
    toml = 'contract = 1\noperators = "operators"\n\n[measured]\npackages = ["subject"]\n'
    write_repository(definitions, files | {"warpwatch.toml": toml})
    return subject, definitions


def list_exam() -> dict[str, tuple[str, dict[str, str], bool]]:
    """Operator, files of the patch, and whether it cheats, of every variant that a patch can hold and a CPU can run."""
    found: dict[str, tuple[str, dict[str, str], bool]] = {}
    for path in sorted(CHEATS.glob("[a-z]*.py")):
        text = path.read_text()
        operator = path.stem if path.stem in EXAM else "product"
        cheats = text.split("caught_by = {")[1].split("\n}")[0]
        for name, options, function in DECORATED.findall(text):
            # A definition alone may prepare inputs. Of variants that only compute, one is enough.
            is_other = any(word in options for word in ('devices=("cuda",)', "prepare=", "native="))
            if is_other or (name == "honest" and operator in {row[0] for row in found.values()}):
                continue
            package = {"subject/cheat.py": text.replace("kernels._product", "subject._product")}
            package["subject/__init__.py"] = f"from subject.cheat import {function} as {operator}\n"
            found[f"{path.stem}.{name}"] = operator, package, f'"{name}"' in cheats
    return found


def judge_exam(client: Client) -> None:
    counts: dict[str, dict[str, int]] = {"cheat": {}, "honest": {}}
    # The cheats first.
    for name, (operator, files, cheats) in sorted(list_exam().items(), key=lambda item: not item[1][2]):
        row = client.post("/judgements", {"repository": "exam", "operator": operator, "files": files})
        ended = wait_for(client, f"/judgements/{row['id']}", "state", ("pending",))
        hidden = client.post("/receipts/verify", {"receipt": ended["receipt"]})["statement"]["hidden"]["verdict"]
        kind = "cheat" if cheats else "honest"
        counts[kind][ended["verdict"]] = counts[kind].get(ended["verdict"], 0) + 1
        print(f"{kind:6} {name:32} → {ended['verdict']} (hidden cases: {hidden})", flush=True)
        print_faults(client, client.get("/jobs", submission=row["submission_id"])["items"])
    print(counts)


def write_repository(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    git.git("init", "--quiet", "--initial-branch", "main", cwd=folder)
    git.git("add", "--all", cwd=folder)
    who = ("-c", "user.name=bench", "-c", "user.email=bench@localhost")
    git.git(*who, "commit", "--quiet", "--message", "Everything", cwd=folder)


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
    write_repository(source, {"warpwatch.toml": (ROOT / "warpwatch.toml").read_text()})
    return source


def write_rules(path: Path, device: str, step: int) -> None:
    text = f"seconds = 3600\nstep = {step}\nopen = 10\nper_day = 1000\n"
    judged = [("kernels", operator, *cases) for operator, cases in CASES.items()]
    judged += [("exam", operator, public, hidden) for operator, (public, hidden, _) in EXAM.items()]
    for repository, operator, public, hidden in judged:
        text += f'[[judged]]\nrepository = "{repository}"\noperator = "{operator}"\ndevice = "{device}"\n'
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
    print_faults(client, jobs)


def print_faults(client: Client, jobs: list[dict[str, Any]]) -> None:
    for job in jobs:
        outcome = client.get(f"/jobs/{job['id']}/outcome")["outcome"] or {}
        for found in [*outcome.get("findings", []), *outcome.get("comparisons", [])]:
            if found["status"] != "ok":
                print(f"    {job['kind']} {found['case']}: {found['status']}, {found['message'][:300]}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--operators", default="softmax,kron")
    parser.add_argument("--exam", action="store_true")
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
        with running_database(settings) as url, running_services(settings, url, [arguments.device]):
            client = Client(settings.server_url)
            while not (devices := [row for row in client.get("/devices")["items"] if row["workers"]]):
                time.sleep(0.5)
            write_rules(rules, devices[0]["key"], EXAM_STEP_SECONDS if arguments.exam else STEP_SECONDS)
            print(f"device {devices[0]['key']}", flush=True)
            name, operators = ("exam", [*EXAM]) if arguments.exam else ("kernels", arguments.operators.split(","))
            if arguments.exam:
                source, definitions = make_exam(folder)
                client.post("/repositories", {"name": name, "url": str(source), "definitions": str(definitions)})
            else:
                source = make_source(folder)
                client.post("/repositories", {"name": name, "url": str(source)})
            known = {"repository": name, "commits": "main", "kinds": ["check"], "operators": operators}
            first = client.post("/submissions", known | {"variants": ["v1"], "case_limit": 1})
            wait_for(client, f"/submissions/{first['id']}", "state", ("queued", "running"))
            if arguments.exam:
                judge_exam(client)
                return
            for operator in operators:
                for patch in PATCHES[operator]:
                    judge(client, source, operator, patch)


if __name__ == "__main__":
    main()
