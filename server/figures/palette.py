"""Colours and marks of variants, the same in every chart of an operator."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from warpwatch.server.reports.formats import variant_order

# Readable on light and dark, and told apart by most kinds of colour blindness.
PALETTE = ("#4878d0", "#d98324", "#2f9e82", "#b05cc6", "#c8505a", "#7d8c2f")
GREY = "#9aa1a9"
"""Of variants that are not lit."""
MOST_LIT = len(PALETTE)
"""Variants that are coloured at once; the others are grey until the reader asks for them."""
DASHES = ("solid", "dash", "dot")
SYMBOLS = ("circle", "circle-open", "diamond", "diamond-open", "square", "square-open")
"""Marks of the variants that share a colour: filled and hollow ones of three shapes."""
FILLINGS = ("", "-open", "-dot", "-open-dot")


@dataclass(frozen=True, slots=True)
class VariantStyle:
    """How a variant is drawn. Of an operator's first 36 variants no two share own colour and symbol.

    own: its colour while it is lit. turn: which of the variants of that colour it is.
    """

    own: str
    turn: int
    is_lit: bool = True

    @property
    def colour(self) -> str:
        """What it is drawn in."""
        return self.own if self.is_lit else GREY

    @property
    def dash(self) -> str:
        return DASHES[self.turn % len(DASHES)]

    @property
    def symbol(self) -> str:
        return SYMBOLS[self.turn % len(SYMBOLS)]

    @property
    def filling(self) -> str:
        """Suffix of a symbol whose shape says something else."""
        return FILLINGS[self.turn % len(FILLINGS)]


def variant_styles(variants: Iterable[str], lit: Collection[str] | None = None) -> dict[str, VariantStyle]:
    """The style of every variant of an operator, by its place among all of them, so that a selection changes few.

    lit: those that are coloured, by default the first MOST_LIT. Of lit ones that would share a colour, later ones take
    a colour that is free.
    """
    names = sorted(set(variants), key=variant_order)
    coloured = set(names[:MOST_LIT] if lit is None else lit)
    styles: dict[str, VariantStyle] = {}
    taken: set[tuple[int, int]] = set()
    for place, name in enumerate(names):
        turn, hue = divmod(place, len(PALETTE))
        if name in coloured:
            hues = {other for other, _ in taken}
            near = [(hue + step) % len(PALETTE) for step in range(len(PALETTE))]
            unlike = (other for other in near if (other, turn) not in taken)
            hue = next((other for other in near if other not in hues), next(unlike, hue))
            taken.add((hue, turn))
        styles[name] = VariantStyle(PALETTE[hue], turn, name in coloured)
    return styles


def faint(colour: str, opacity: float = 0.18) -> str:
    """The same colour, for areas behind lines."""
    red, green, blue = (int(colour[start : start + 2], 16) for start in (1, 3, 5))
    return f"rgba({red},{green},{blue},{opacity})"
