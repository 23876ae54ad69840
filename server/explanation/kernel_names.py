"""Shortens kernel names as compilers write them, for reading and for matching."""

from __future__ import annotations

LONGEST = 72


def plain_name(name: str) -> str:
    """Without return type, parameters and the contents of template arguments: `kron::fused<…>`."""
    text = without_signature(name)
    kept, depth = [], 0
    for letter in text:
        closing = letter == ">" and depth > 0
        depth -= closing
        if depth == 0:
            kept.append(letter)
        if letter == "<":
            depth += 1
            if depth == 1:
                kept.append("…")
    return "".join(kept)


def short_name(name: str) -> str:
    """Without return type and parameters, and without template arguments where it would be too long with them."""
    text = without_signature(name)
    return text if len(text) <= LONGEST else plain_name(name)


def without_signature(name: str) -> str:
    """`void f<int>(float*)` as `f<int>`; a name that is not a C++ function stays as it is."""
    text = name.removeprefix("void ").replace("(anonymous namespace)::", "")
    depth = 0
    for index, letter in enumerate(text):
        # "Memcpy HtoD (Pageable -> Device)" is not a function; a name that starts with a parenthesis stays as it is.
        if letter == "(" and depth == 0 and text[:index].strip() == text[:index]:
            return text[:index] or text
        depth += {"<": 1, ">": -1}.get(letter, 0)
    return text
