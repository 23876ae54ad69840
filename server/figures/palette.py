"""Colours of variants, the same in every chart."""

from __future__ import annotations

import re
from zlib import crc32

# Readable on light and dark, and told apart by most kinds of colour blindness.
PALETTE = ("#4878d0", "#d98324", "#2f9e82", "#b05cc6", "#c8505a", "#7d8c2f", "#8c6d5a", "#2f9dc0")
NAMED_PALETTE = ("#6f8296", "#d4619e", "#a3a02f", "#e8604c", "#8f8bf0", "#b5835a", "#5fa83a", "#4f9a9a")
"""For variants that are no v1, v2, …, so that the two kinds never share a colour."""
LIBRARIES = ("torch", "compile", "triton", "cublas", "cudnn", "cutlass", "gpytorch", "mha")
"""Usual names of variants, which never share a colour either."""


def variant_colour(name: str) -> str:
    """The colour of a variant, the same in every chart and for every selection: v1, v2, … and usual names in the order
    of their palettes, any other name by its checksum."""
    if number := re.fullmatch(r"v(\d+)", name):
        return PALETTE[(int(number[1]) - 1) % len(PALETTE)]
    place = LIBRARIES.index(name) if name in LIBRARIES else crc32(name.encode())
    return NAMED_PALETTE[place % len(NAMED_PALETTE)]


def faint(colour: str, opacity: float = 0.18) -> str:
    """The same colour, for areas behind lines."""
    red, green, blue = (int(colour[start : start + 2], 16) for start in (1, 3, 5))
    return f"rgba({red},{green},{blue},{opacity})"
