"""Plants one cost of every kind, each as the only change of a variant, and shows what a running service says of it.

python bench/planted_costs.py [--device auto] [--limit 400] [--same 12]

Two commits of one repository are checked, benched and compared. Variants that change nothing stand beside those that
wait on the host, launch a kernel more, move the gradient's work into the forward pass, keep more memory, err more
within the tolerance, or give other bits from call to call. Prints a row for each, with the verdicts and costs that the
service names, and exits with 1 where one is wrong, missing, or named where nothing was planted. A CPU has one signal,
so there a wait on the host is a slower call.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path.cwd()))

from bench.own_service import empty_database, wait_for_worker
from bench.verdict_times import Service, print_jobs
from warpwatch.cli.client import Client
from warpwatch.cli.services import running_services
from warpwatch.worker.devices import choose_device

NAME = "costs"
ROWS = """
import os
from time import perf_counter_ns
import torch
from warpwatch import Cost, Operator, case

HEAD = {head}
operator = Operator(
    "rows", "Softmax of rows.",
    inputs=lambda case, make: {{"x": make.normal(case["n"], 1024)}},
    reference=lambda x: torch.softmax(x, -1),
    cost=lambda case: Cost(flops=5 * 1024 * case["n"], bytes=8 * 1024 * case["n"]),
    cases={{"quick": [case(n={rows})]}}, batch="n",
)


def wait(microseconds):
    end = perf_counter_ns() + 1000 * microseconds
    while perf_counter_ns() < end:
        pass


def softmax(x):
    return torch.softmax(x, -1)


def add(name, function):
    operator.variant(name, idea=name)(function if HEAD else softmax)

for number in range({same}):
    operator.variant(f"same_{{number}}", idea="the same at both commits")(softmax)
add("host_20", lambda x: (wait(20), softmax(x))[1])
add("host_100", lambda x: (wait(100), softmax(x))[1])
add("launch", lambda x: softmax(x).mul_(1))
add("error", lambda x: softmax(x) * (1 + 6e-7))
add("bits", lambda x: softmax(x).mul_(1 + 1.2e-7 * (os.urandom(1)[0] % 4)))
add("neighbours", lambda x: softmax(x).mul_(1 + 2.4e-7 * (x.shape[0] > {rows} // 2)))


@operator.variant("trade", idea="a faster kernel for a slower host")
def trade(x):
    if HEAD:
        wait({trade})
        return softmax(x)
    return softmax(x).mul_(1).mul_(1)
"""
STEPS = """
import torch
from warpwatch import Cost, Operator, both_directions, case

HEAD = {head}


def inputs(case, make):
    n = case["n"]
    return {{"x": make.normal(case["rows"], n)}} | {{name: make.normal(n, n, scale=n**-0.5) for name in "abcd"}}


def chain(x, a, b, c, d):
    return x @ a @ b @ c @ d


operator = Operator(
    "steps", "Four products in a row.", inputs=inputs, reference=chain,
    cost=lambda case: Cost(8 * case["rows"] * case["n"] ** 2, 4 * (2 * case["rows"] * case["n"] + 4 * case["n"] ** 2)),
    cases={{"quick": both_directions(case(rows={rows}, n={n}), directions=("fwd", "bwd", "step"))}},
    gradients=("x",), depth=lambda case: 4 * case["n"],
)
operator.variant("same", idea="the same at both commits")(chain)


class InForward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, a, b, c, d):
        if ctx.needs_input_grad[0]:
            ctx.save_for_backward(a @ b @ c @ d)
        return chain(x, a, b, c, d)

    @staticmethod
    def backward(ctx, g):
        (product,) = ctx.saved_tensors
        return g @ product.T, None, None, None, None


class Keeps(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, a, b, c, d):
        ctx.save_for_backward(*(x.repeat({kept}, 1),) * HEAD, a, b, c, d)
        return chain(x, a, b, c, d)

    @staticmethod
    def backward(ctx, g):
        for factor in reversed(ctx.saved_tensors[-4:]):
            g = g @ factor.T
        return g, None, None, None, None


operator.variant("moved", idea="the gradient's work in the forward pass")(
    (lambda x, a, b, c, d: InForward.apply(x, a, b, c, d)) if HEAD else chain
)
operator.variant("kept", idea="keeps more between the passes")(lambda x, a, b, c, d: Keeps.apply(x, a, b, c, d))
"""
SIZES = {
    "cuda": {"rows": 4096, "n": 512, "kept": 8, "trade": 60},
    # The two products that the wait stands for take up to 200 µs on two busy cores.
    "cpu": {"rows": 512, "n": 256, "kept": 16, "trade": 1000},
}
EXPECTED = {
    "host_20": {"launch slower"},
    "host_100": {"launch slower"},
    "launch": {"kernel slower", "launch slower"},
    "trade": {"kernel faster", "launch slower"},
    "error": {"accuracy"},
    "bits": {"determinism"},
    "neighbours": {"batch"},
    "moved": {"bwd faster", "moved work"},
    "kept": {"kept"},
}
"""What must be said of each, of all that NAMED holds; an operation more also costs time, and a step with more work is
slower."""
ALLOWED = {
    "error": {"kernel slower", "launch slower", "memory"},
    "bits": {"kernel slower", "launch slower", "accuracy"},
    "neighbours": {"kernel slower", "launch slower", "accuracy"},
    "moved": {"step slower", "step faster", "kept", "memory", "launch faster", "launch slower"},
    "kept": {"step slower", "memory", "launch slower", "bwd slower"},
    "host_20": set[str](),
}


@dataclass
class Repository:
    """The measured repository of two commits."""

    folder: Path
    same: int
    kind: str

    def commit(self, head: bool) -> str:
        kernels = self.folder / "kernels"
        kernels.mkdir(parents=True, exist_ok=True)
        (self.folder / "warpwatch.toml").write_text('operators = "kernels"\n')
        sizes = SIZES[self.kind]
        (kernels / "rows.py").write_text(ROWS.format(head=head, same=self.same, **sizes))
        (kernels / "steps.py").write_text(STEPS.format(head=head, **sizes))
        identity = ["-c", "user.name=bench", "-c", "user.email=bench@localhost"]
        message = "Plant one cost per variant" if head else "Add two operators"
        for words in (["init", "-q", "-b", "main"], ["add", "--all"], [*identity, "commit", "-qm", message]):
            subprocess.run(["git", *words], cwd=self.folder, check=True)
        return subprocess.check_output(["git", "rev-parse", "HEAD"], cwd=self.folder, text=True).strip()


def read_said(service: Service, compared: int, head: str) -> dict[str, set[str]]:
    """What the report of the comparison and the trades of the head say, by variant."""
    said: dict[str, set[str]] = defaultdict(set)
    for row in service.client.get(f"/submissions/{compared}/report")["rows"]:
        if row["kind"] in ("slower", "faster"):
            signal, direction = (row["statement"] or {}).get("signal") or "kernel", row["case"].rpartition(",")[2]
            name = direction if direction in ("bwd", "step") and signal == "kernel" else signal
            said[row["variant"]].add(f"{name} {row['kind']}")
    for trade in service.client.get(f"/commits/{head}/trades", repository=NAME)["items"]:
        if trade["kind"] == "moved":
            said[trade["variant"]].add("moved work")
        elif trade["is_worse"] and trade["is_exact"]:
            said[trade["variant"]].add(trade["kind"])
    return said


def with_one_signal(words: set[str]) -> set[str]:
    """The same words about a CPU, where whatever the host does is a part of the time."""
    return {"kernel slower" if word == "launch slower" else word for word in words}


def judge(said: dict[str, set[str]], same: int, kind: str) -> int:
    """Prints a row per variant; returns how many are wrong."""
    faults = 0
    for name in [*EXPECTED, "same", *(f"same_{number}" for number in range(same))]:
        expected, allowed = EXPECTED.get(name, set()), ALLOWED.get(name, set())
        if kind == "cpu":
            expected, allowed = with_one_signal(expected), with_one_signal(allowed)
            expected -= {"kernel faster"} if name == "trade" else set()
        found = said.get(name, set())
        missing, wrong = expected - found, found - expected - allowed
        faults += bool(missing or wrong)
        fault = f"  MISSING {sorted(missing)}" * bool(missing) + f"  WRONG {sorted(wrong)}" * bool(wrong)
        print(f"{name:>12}  {', '.join(sorted(found)) or 'nothing'}{fault}")
    return faults


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--limit", type=float, default=400.0, help="seconds to wait for each thing")
    parser.add_argument("--same", type=int, default=12, help="variants that change nothing")
    arguments = parser.parse_args()
    device = choose_device(arguments.device)
    kind = device.partition(":")[0]
    with empty_database() as (settings, url):
        repository = Repository(settings.home / "source", arguments.same, kind)
        repository.commit(head=False)
        with running_services(settings, url, [device]):
            client = Client(settings.server_url)
            wait_for_worker(client)
            client.post("/repositories", {"name": NAME, "url": str(repository.folder)})
            (name,) = {item["key"] for item in client.get("/devices")["items"]}
            service = Service(client, name, arguments.limit)
            begin = time.monotonic()
            first = service.submit("HEAD", repository=NAME)
            print(f"base measured: {service.seconds_until(begin, lambda: service.has_ended(first))}", flush=True)
            print_jobs(service)
            head = repository.commit(head=True)
            asked = time.monotonic()
            compared = service.submit(head, repository=NAME, base="parent", kinds=["compare"])
            second = service.submit(head, repository=NAME)
            print(f"compared: {service.seconds_until(asked, lambda: service.has_ended(compared))}", flush=True)
            asked = time.monotonic()
            print(f"head measured: {service.seconds_until(asked, lambda: service.has_ended(second))}", flush=True)
            print_jobs(service)
            ended, path = time.monotonic(), f"/submissions/{compared}/report"
            print(f"judged: {service.seconds_until(ended, lambda: not client.get(path)['pending'])}", flush=True)
            faults = judge(read_said(service, compared, head), arguments.same, kind)
            count = len(EXPECTED) + 1 + arguments.same
            print(f"{faults} wrong of {count} variants on {name}, {time.monotonic() - begin:.0f} s")
    sys.exit(bool(faults))


if __name__ == "__main__":
    main()
