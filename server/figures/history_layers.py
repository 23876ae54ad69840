"""Layers of a history's chart: what is indistinguishable from the level, and the samples behind points."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from statistics import median
from typing import Any

from warpwatch.db.reads.history import PointRow, SeriesHistory
from warpwatch.server.figures.history_view import CommitAxis, HeightScale, card_lines, floor_of
from warpwatch.server.figures.noise_summary import NoiseSummary
from warpwatch.server.figures.palette import VariantStyle, faint
from warpwatch.server.reports.formats import share

Figure = dict[str, Any]
MOST_DETECTABLE = 0.5
"""A band wider than this says nothing but that the series is noisy, which the text below the chart says."""
MOST_MARKS = 41
"""Samples that are drawn of one point: evenly spaced quantiles, the lowest and the highest among them."""
_GOLDEN = 0.618
_STRIP = 0.6
"""Width of a strip of samples, as a share of the distance of two commits."""


def noise_bands(
    histories: Sequence[SeriesHistory],
    noise: Mapping[int, Sequence[NoiseSummary]],
    axis: CommitAxis,
    scale: HeightScale,
    styles: Mapping[str, VariantStyle],
) -> list[Figure]:
    """A band around each level of each series: one more run inside it could not be told from the level."""
    traces: list[Figure] = []
    for history in histories:
        colour = styles[history.series.variant].colour
        for summary in noise.get(history.series.id, ()):
            if summary.detectable > MOST_DETECTABLE:
                continue
            for points in _stretches(history, summary):
                level = median(point.median_ns for point in points)
                edges = [level * (1 - summary.detectable), level * (1 + summary.detectable)]
                low, high = (scale.height(history.series.id, ns, floor_of(points[-1])) for ns in edges)
                if low is None or high is None:
                    continue
                first, last = axis.places[points[0].commit_sha], axis.places[points[-1].commit_sha]
                traces.append(
                    {
                        "type": "scatter",
                        "mode": "lines",
                        "x": [first, last, last, first],
                        "y": [low, low, high, high],
                        "fill": "toself",
                        "fillcolor": faint(colour, 0.1),
                        "line": {"width": 0, "color": colour},
                        "name": escape(f"{history.series.variant}: ±{share(summary.detectable, 1)}"),
                        "hoverinfo": "skip",
                        "showlegend": False,
                    }
                )
    return traces


def _stretches(history: SeriesHistory, summary: NoiseSummary) -> Iterator[list[PointRow]]:
    """The points of one environment and line of cards between its level shifts and confirmed changes, where there are
    at least two."""
    heads = {step.head_sha for step in summary.steps} | {item.fixed_by_sha for item in history.changes}
    for item in history.changes:
        heads |= {next((point.commit_sha for point in history.points if point.ordinal >= item.head_ordinal), None)}
    stretch: list[PointRow] = []
    cards = card_lines(history)
    for point in history.points:
        if (point.environment_id, cards[point.card_id][0]) != (summary.environment_id, summary.card_id):
            continue
        if point.commit_sha in heads and len(stretch) > 1:
            yield stretch
        if point.commit_sha in heads:
            stretch = []
        stretch.append(point)
    if len(stretch) > 1:
        yield stretch


def sample_strips(
    histories: Sequence[SeriesHistory],
    samples: Mapping[int, Sequence[float]],
    axis: CommitAxis,
    scale: HeightScale,
    styles: Mapping[str, VariantStyle],
) -> list[Figure]:
    """Every point's samples beside each other: one trace per series. samples: in nanoseconds, by point id."""
    traces: list[Figure] = []
    low, high = axis.ends
    width = _STRIP if not axis.is_date else _STRIP * (high - low) / max(len(axis.places), 1)
    for history in histories:
        x: list[float] = []
        y: list[float | None] = []
        for point in history.points:
            for index, ns in enumerate(quantiles(samples.get(point.id, ()))):
                # A fixed pattern without runs, so that equal samples do not cover one another.
                x.append(axis.places[point.commit_sha] + (index * _GOLDEN % 1 - 0.5) * width)
                y.append(scale.of(history, point, ns))
        if x:
            traces.append(
                {
                    "type": "scatter",
                    "mode": "markers",
                    "name": escape(f"samples of {history.series.variant}"),
                    "x": x,
                    "y": y,
                    "marker": {"size": 3, "color": styles[history.series.variant].colour, "opacity": 0.5},
                    "hoverinfo": "skip",
                    "showlegend": False,
                }
            )
    return traces


def quantiles(samples: Sequence[float], most: int = MOST_MARKS) -> list[float]:
    """At most `most` of the samples, evenly spaced in their order, from the lowest to the highest."""
    ordered = sorted(samples)
    if len(ordered) <= most:
        return ordered
    return [ordered[round(index * (len(ordered) - 1) / (most - 1))] for index in range(most)]
