"""Lets other harnesses sit the exam: the planted cheats and their honest twins, as tests/harness benches them.

An adapter of two functions, `check` and `time`, asks a harness about one candidate: see worker/harness/adapters. A
cheat is caught when the harness rejects it. Otherwise what counts is the time that the harness believes, over the time
that the same harness measures for the honest twin of the same operator.
"""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass

from warpwatch.worker.proving import FOLDER, read_expectations

ROOT = FOLDER / "cheaters"
TWIN, TWIN_SITTINGS = "honest", 3
"""The honest variant that the cheats of an operator are held against, and how often it sits: its shortest time counts,
because other load on the host makes times longer and never shorter."""
DECEIVED = 0.8
"""A cheat that is believed to take less than this share of its twin's time has deceived the timer."""
_TIMEOUT_SECONDS = 120


@dataclass(frozen=True, slots=True)
class Sitting:
    """The result of one candidate in one harness.

    outcome: believed, with the `seconds` of a call; caught, by `check` or `time`; not_run, where the candidate cannot
    run here.
    """

    operator: str
    variant: str
    is_cheat: bool
    outcome: str
    by: str
    seconds: float | None
    message: str


@dataclass(frozen=True, slots=True)
class ExamResult:
    """The sittings of one harness."""

    harness: str
    sittings: list[Sitting]

    def ratio(self, sitting: Sitting) -> float | None:
        """The believed time over the shortest of the honest twin; None where either was not believed."""
        twins = [twin for twin in self.sittings if (twin.operator, twin.variant) == (sitting.operator, TWIN)]
        times = [twin.seconds for twin in twins if twin.seconds is not None]
        return sitting.seconds / min(times) if times and sitting.seconds is not None else None

    @property
    def cheats(self) -> list[Sitting]:
        """The cheats that ran."""
        return [sitting for sitting in self.sittings if sitting.is_cheat and sitting.outcome != "not_run"]

    @property
    def honest(self) -> list[Sitting]:
        """The honest variants that ran, once each: the last sitting, or the last that accused them."""
        ran = [sitting for sitting in self.sittings if not sitting.is_cheat and sitting.outcome != "not_run"]
        ran.sort(key=lambda sitting: sitting.outcome == "caught")
        return list({(sitting.operator, sitting.variant): sitting for sitting in ran}.values())

    @property
    def caught(self) -> list[Sitting]:
        return [sitting for sitting in self.cheats if sitting.outcome == "caught"]

    @property
    def deceived(self) -> list[Sitting]:
        """The cheats whose time was believed, although it is far below that of the honest twin."""
        return [sitting for sitting in self.cheats if (ratio := self.ratio(sitting)) is not None and ratio < DECEIVED]

    @property
    def accused(self) -> list[Sitting]:
        return [sitting for sitting in self.honest if sitting.outcome == "caught"]


def candidates(operators: list[str] | None = None) -> list[tuple[str, str, bool]]:
    """(operator, variant, whether it cheats) of all variants that are one function of their inputs.

    Those with `prepare` or native code are left out: other harnesses have no such step. A twin comes three times.
    """
    rows = []
    for expectations in read_expectations(ROOT / "kernels"):
        if operators is not None and expectations.operator not in operators:
            continue
        for node in ast.parse((ROOT / "kernels" / f"{expectations.operator}.py").read_text(encoding="utf-8")).body:
            for decorator in node.decorator_list if isinstance(node, ast.FunctionDef) else ():
                if not isinstance(decorator, ast.Call) or ast.unparse(decorator.func) != "operator.variant":
                    continue
                name = ast.literal_eval(decorator.args[0])
                if not {"prepare", "native"} & {keyword.arg for keyword in decorator.keywords}:
                    row = (expectations.operator, name, name in expectations.caught_by)
                    rows += [row] * (TWIN_SITTINGS if name == TWIN else 1)
    return rows


def sit(adapter: str, checkout: str, device: str, rows: list[tuple[str, str, bool]]) -> Iterator[Sitting]:
    """Asks one harness about every candidate in `rows`; yields each answer as it comes.

    adapter: a name in worker/harness/adapters, or the path of a file. checkout: where the harness lies, "" for a
    package. Raises OSError when the process that asks cannot start, RuntimeError when it ends early.
    """
    request = {
        "root": str(ROOT),
        "adapter": adapter,
        "checkout": checkout,
        "device": device,
        "timeout_seconds": _TIMEOUT_SECONDS,
        "candidates": [[operator, variant] for operator, variant, _ in rows],
    }
    command = [sys.executable, "-P", "-m", "warpwatch.worker.harness.exam", json.dumps(request)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for (_, _, is_cheat), line in zip(rows, process.stdout, strict=False):
            yield Sitting(is_cheat=is_cheat, **json.loads(line))
        process.stdout.read()
    if process.returncode:
        raise RuntimeError(f"the process that asks {adapter} ended with status {process.returncode}")


def as_markdown(results: list[ExamResult]) -> str:
    """Two tables: one line per harness, and one line per cheat with a column per harness."""
    lines = [
        "| harness | cheats | caught | believed, no faster | believed, faster | honest | accused |",
        "|---|---|---|---|---|---|---|",
    ]
    for result in results:
        counts = [len(result.cheats), len(result.caught)]
        counts += [counts[0] - counts[1] - len(result.deceived), len(result.deceived)]
        counts += [len(result.honest), len(result.accused)]
        lines.append(f"| {result.harness} | {' | '.join(map(str, counts))} |")
    lines += ["", f"| cheat | {' | '.join(result.harness for result in results)} |", "|---" * (len(results) + 1) + "|"]
    cheats = dict.fromkeys((s.operator, s.variant) for result in results for s in result.cheats)
    for operator, variant in cheats:
        cells = [_cell(result, operator, variant) for result in results]
        lines.append(f"| {operator} `{variant}` | {' | '.join(cells)} |")
    return "\n".join(lines)


def _cell(result: ExamResult, operator: str, variant: str) -> str:
    sitting = next((s for s in result.cheats if (s.operator, s.variant) == (operator, variant)), None)
    if sitting is None:
        return "not run"
    if sitting.outcome == "caught":
        return "caught"
    ratio = result.ratio(sitting)
    text = "believed" if ratio is None else f"{ratio:.2g}×"
    return f"**{text}**" if sitting in result.deceived else text
