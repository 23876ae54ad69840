"""Reads what pages claim: every element with the colour of a signal, an arrow, or a verdict word, and the statement
that it renders."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from html.parser import HTMLParser

SIGNALS = {"slower", "faster", "failing", "suspected", "shift", "good", "bad", "better", "worse"}
"""Classes that colour an element as a verdict."""
WORDS = re.compile(r"(?<!not )\b(slower|faster)\b|[▲▼]")
_SIGNAL_WORDS = re.compile(r"\b(kernel|launch)\b(?= [+\u2212])")
PERCENT = re.compile(r"[+\u2212]\d[\d.]*\u2009%|×\d[\d.]*")
_VOID = {"area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "source", "track", "wbr"}
_EXPLAINING = {"option", "label", "dt", "title", "head", "pre", "code", "script", "select", "summary"}
"""Elements whose words name a column, a choice, a tooltip or a command, and claim nothing of a series."""
_EXPLAINING_CLASSES = {"note", "lead", "sub-note", "legend", "diff", "command", "message", "chart"}
_STATES = {
    "data-status",
    "data-state",
    "data-check",
    "data-legend",
    "data-trade",
    "data-answer",
    "data-counts",
    "data-outcome",
}
"""Attributes of elements that say what a check, a job or a legend says; they are no statements about time."""
_STATE_WORDS = {"queued", "running", "done", "failed", "cancelled", "success", "failure", "error", "pending", "lost"}
_CHROME = {"notice", "diff", "waterfall", "check-bar", "segments", "dot", "menu", "lane"}


@dataclass
class Element:
    """One element, with those around it, and all of its text."""

    tag: str
    attributes: dict[str, str]
    parent: Element | None
    text: str = ""
    own_text: str = ""

    @property
    def classes(self) -> set[str]:
        return set(self.attributes.get("class", "").split())

    def lineage(self) -> Iterator[Element]:
        element: Element | None = self
        while element is not None:
            yield element
            element = element.parent


@dataclass(frozen=True)
class Claim:
    """What an element says. kind, direction, …: of its statement; kind is None where it has none."""

    page: str
    kind: str | None
    direction: str | None
    series: int | None
    commit: str | None
    regression: int | None
    classes: frozenset[str]
    text: str
    is_fix: bool = False
    """Whether the element is about the commit that ended the change."""
    signals: frozenset[str] = frozenset()
    """The signals that it names."""

    @property
    def word(self) -> str | None:
        """slower or faster, where the text says so."""
        match = WORDS.search(self.text)
        return None if match is None else {"▲": "slower", "▼": "faster"}.get(match[0], match[0])


@dataclass
class Reader(HTMLParser):
    """Collects the elements of a page."""

    elements: list[Element] = field(default_factory=list)
    here: Element | None = None

    def __post_init__(self) -> None:
        super().__init__(convert_charrefs=True)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        element = Element(tag, {name: value or "" for name, value in attrs}, self.here)
        self.elements.append(element)
        if tag not in _VOID:
            self.here = element

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append(Element(tag, {name: value or "" for name, value in attrs}, self.here))

    def handle_endtag(self, tag: str) -> None:
        for element in self.here.lineage() if self.here else ():
            if element.tag == tag:
                self.here = element.parent
                return

    def handle_data(self, data: str) -> None:
        if self.here is not None:
            self.here.own_text += data
            for element in self.here.lineage():
                element.text += data


def claims_of(page: str, text: str) -> list[Claim]:
    """The claims of a page, each once; those of statements come with what they render."""
    reader = Reader()
    reader.feed(text)
    claims: dict[int, Claim] = {}
    for element in reader.elements:
        if "data-statement" in element.attributes:
            claims[id(element)] = _claim(page, element)
        elif _is_signal(element):
            stated = next((around for around in element.lineage() if "data-statement" in around.attributes), None)
            if stated is None:
                claims[id(element)] = _claim(page, element)
    return list(claims.values())


def _is_signal(element: Element) -> bool:
    around = list(element.lineage())
    if any(_STATES & item.attributes.keys() or _CHROME & item.classes or item.tag == "nav" for item in around):
        return False
    if SIGNALS & element.classes:
        # The badge of a job, a worker or a report is coloured by its state, which is none of a series.
        is_state = "badge" in element.classes and element.text.strip() in _STATE_WORDS
        return not is_state
    if any(item.tag in _EXPLAINING or _EXPLAINING_CLASSES & item.classes for item in around):
        return False
    return element.tag != "th" and WORDS.search(element.own_text) is not None


def _claim(page: str, element: Element) -> Claim:
    data = {name.removeprefix("data-"): value for name, value in element.attributes.items() if value}
    text = re.sub(r"\s+", " ", element.text).strip()
    series, regression = data.get("series"), data.get("regression")
    kind, direction = data.get("statement"), data.get("direction")
    if "phase" in data or element.tag in ("tr", "h1", "li"):
        # A row or a headline about a change holds the statement in one of its parts.
        text = ""
    if "phase" in data and kind == "not_told_apart":
        # The direction is that of the suspicion, which was dismissed.
        direction = None
    if data.get("role") == "fix":
        direction = "fixed"
    return Claim(
        page,
        kind,
        direction,
        int(series) if series else None,
        data.get("commit"),
        int(regression) if regression else None,
        frozenset(element.classes & SIGNALS),
        text,
        data.get("role") == "fix",
        frozenset({data["signal"]} if "signal" in data else ()) | frozenset(_SIGNAL_WORDS.findall(text)),
    )
