"""What all tabs of an operator's page share: device, metric, the chosen case and variants, and the list of cases."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any

from fastapi import Depends

from warpwatch.contract.commit_ids import short_sha
from warpwatch.contract.words import Signal
from warpwatch.db.reads.code import OperatorRow, find_operator, list_suites
from warpwatch.db.reads.operator_cases import CaseChange, CaseSeries, list_case_changes, list_case_series, list_shas
from warpwatch.db.reads.query import DEVICE_METRICS
from warpwatch.db.trends import list_recent_points
from warpwatch.db.watches import list_watches
from warpwatch.server.figures.palette import MOST_LIT, VariantStyle, variant_styles
from warpwatch.server.figures.small_multiples import (
    MOST_PICTURES,
    CaseChoice,
    case_choices,
    commit_places,
    shown_series,
)
from warpwatch.server.figures.speedups import rank_variants
from warpwatch.server.http.problems import not_found
from warpwatch.server.reports.formats import variant_order
from warpwatch.server.web.choices import Bench, Text, Texts, choose_bench
from warpwatch.server.web.render import Scope


class KernelTab(StrEnum):
    NOW = "now"
    COMMITS = "commits"
    SIZES = "sizes"
    DEVICES = "devices"
    CODE = "code"


@dataclass(frozen=True, slots=True)
class FrameChoice:
    """What the address says of the parts that all tabs share. protocol: that of an old series; by default the newest of
    each series counts."""

    case: str | None
    variants: list[str]
    device: str | None
    metric: str | None
    suite: str | None
    protocol: str | None


def frame_choice(
    case: Text = None,
    variant: Texts = [],  # noqa: B006 - FastAPI copies it.
    device: Text = None,
    metric: Text = None,
    suite: Text = None,
    protocol: Text = None,
) -> FrameChoice:
    return FrameChoice(case, [name for name in variant if name], device, metric, suite, protocol)


Frame = Annotated[FrameChoice, Depends(frame_choice)]


@dataclass(frozen=True, slots=True)
class OperatorFrame:
    """series: of the bench's device and metric. ranked: variants, the fastest first. shas: short ids of the commits of
    the small histories, in order."""

    operator: OperatorRow
    choice: FrameChoice
    bench: Bench | None
    series: list[CaseSeries]
    changes: list[CaseChange]
    choices: list[CaseChoice]
    shas: list[str]
    ranked: list[str]
    styles: dict[str, VariantStyle]

    @property
    def case(self) -> str | None:
        """The chosen case, where the operator has it."""
        return self.choice.case if self.choice.case in self.operator.cases else None

    @property
    def variants(self) -> list[str]:
        """The chosen variants; none where all are shown."""
        return [name for name in self.choice.variants if name in self.operator.variants]

    def address(self, tab: KernelTab | None, **filters: Any) -> dict[str, Any]:
        """The filters of a link to a tab, which keeps what is chosen."""
        chosen = {"device": self.bench.device.key, "metric": self.bench.metric} if self.bench else {}
        return {
            "tab": None if tab in (None, KernelTab.NOW) else str(tab),
            "case": self.case,
            "variant": self.variants,
            **chosen,
            "suite": self.choice.suite,
            "protocol": self.choice.protocol,
            **filters,
        }

    def shown(self, variants: list[str]) -> list[str]:
        """The variants in the order of tables: the best BEST_FIRST of many come first."""
        names = sorted(variants, key=variant_order)
        if len(names) <= MOST_LIT:
            return names
        best = [name for name in self.ranked if name in names][:BEST_FIRST]
        return best + [name for name in names if name not in best]


BEST_FIRST = 4


def read_frame(page: Scope, name: str, choice: FrameChoice) -> OperatorFrame:
    """The frame of the operator's page; Problem 404 for an operator that the repository does not have."""
    operator = find_operator(page.session, page.repository.id, name) if page.repository else None
    if page.repository is None or operator is None:
        raise not_found("operator", name, "open one from the list of kernels")
    bench = choose_bench(page.session, page.repository, choice.device, choice.metric, name)
    if bench is None:
        return OperatorFrame(operator, choice, None, [], [], [], [], [], variant_styles(operator.variants))
    series = list_case_series(
        page.session, page.repository.id, bench.device.id, bench.metric, page.line, operator.id, choice.protocol
    )
    variants = [name for name in choice.variants if name in operator.variants]
    listed = [row for row in series if choice.suite in (None, *row.suites) or row.case == choice.case]
    own = {row.series_id for row in series}
    with_launch = bench.metric in DEVICE_METRICS[bench.device.kind]
    changes = [
        item
        for item in list_case_changes(page.session, page.repository.id, bench.device.id, page.line, operator.id)
        if item.series_id in own or (with_launch and item.signal == Signal.LAUNCH)
    ]
    shown = shown_series(listed, changes, variants[0] if len(variants) == 1 else None)
    points = list_recent_points(page.session, [row.series_id for row in shown[:MOST_PICTURES]], page.line)
    shas = list_shas(page.session, places := commit_places(points))
    ranked = rank_variants(series)
    return OperatorFrame(
        operator,
        choice,
        bench,
        series,
        changes,
        case_choices(series, shown, points, changes),
        [short_sha(shas[id_]) for id_ in places],
        ranked,
        variant_styles(operator.variants, variants or ranked[:MOST_LIT]),
    )


def frame_values(page: Scope, frame: OperatorFrame, tab: KernelTab) -> dict[str, Any]:
    """What the template of the frame needs."""
    assert page.repository is not None
    watches = list_watches(page.session, page.repository.id, operator=frame.operator.name).items
    return {
        "frame": frame,
        "operator": frame.operator,
        "bench": frame.bench,
        "tab": tab,
        "suite": frame.choice.suite,
        "suites": list_suites(page.session, page.repository.id),
        "watched_operator": frame.operator.name,
        "watched_case": frame.case,
        "watches": [row for row in watches if row.case in (None, frame.case)] if frame.case else watches,
    }
