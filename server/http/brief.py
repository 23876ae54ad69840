"""Brief answers: the same facts as the JSON of an endpoint, in at most 4,000 bytes, with a cursor to more.

Agents and scripts ask for them with `?brief` or `Accept: application/vnd.warpwatch.brief+json`.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import wraps
from typing import Annotated, Any, TypeVar, cast

from fastapi import Depends, Query, Request, Response

BRIEF_TYPE = "application/vnd.warpwatch.brief+json"
MOST_BYTES = 4000
"""Size of an answer, and with it the words that an agent has to read for one."""
MOST_TEXT = 600
"""Length of a text in an answer; a message of a compiler may have a hundred thousand."""
MOST_LISTED = 20
"""Values of a list in an answer."""
_SCHEMA = {
    "type": "object",
    "description": "Texts hold every number with its unit and its certainty. `more` is the cursor to the items that "
    "follow; null at the end.",
    "properties": {
        "items": {"type": "array", "items": {"type": "object"}},
        "more": {"anyOf": [{"type": "string"}, {"type": "null"}]},
    },
}
F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class Brief:
    """What a brief answer says. facts: said on every page of it. items: what the cursor runs over; texts state their
    unit and how certain they are. next_before: of the page of the endpoint that the items are from."""

    facts: dict[str, Any]
    items: Sequence[dict[str, Any]] = field(default=())
    next_before: int | None = None


def documented_brief(status: int = 200) -> dict[int | str, dict[str, Any]]:
    """The brief answer of an endpoint, for its OpenAPI description."""
    return {status: {"content": {BRIEF_TYPE: {"schema": _SCHEMA}}}}


class BriefRequest:
    """Whether a request wants a brief answer, and from which item on."""

    def __init__(
        self,
        request: Request,
        brief: Annotated[
            str | None,
            Query(
                pattern="^(|1|true)$",
                description=f"Answer in at most {MOST_BYTES:,} bytes, as `Accept: {BRIEF_TYPE}` does.",
            ),
        ] = None,
        cursor: Annotated[
            str | None,
            Query(pattern=r"^\d{1,18}\.\d{1,9}$", description="`more` of the brief answer before."),
        ] = None,
    ) -> None:
        self.is_wanted = brief is not None or BRIEF_TYPE in request.headers.get("accept", "")
        before, _, skip = (cursor or "0.0").partition(".")
        self.before, self.skip = int(before) or None, int(skip)
        self.status = getattr(request.scope.get("route"), "status_code", None) or 200

    def answer(self, brief: Brief) -> Response:
        """As many items as fit, at least one, and the cursor to the next; texts are cut where a single one is left."""
        items = brief.items[self.skip :]
        most, count = MOST_TEXT, len(items)
        while len(content := self._content(brief, items, count, most)) > MOST_BYTES and (count > 1 or most > 1):
            if count > 1:
                count -= max(1, count // 8)
            else:
                most //= 2
        return Response(content, self.status, {"Vary": "Accept"}, BRIEF_TYPE)

    def _content(self, brief: Brief, items: Sequence[dict[str, Any]], count: int, most: int) -> bytes:
        answer = _cut(brief.facts, most)
        if brief.items:
            is_cut = count < len(items)
            following = (self.before or 0, self.skip + count) if is_cut else (brief.next_before, 0)
            more = None if following[0] is None else "{}.{}".format(*following)
            answer |= {"items": [_cut(item, most) for item in items[:count]], "more": more}
        return json.dumps(answer, ensure_ascii=False, separators=(",", ":"), default=str).encode()


def _cut(values: dict[str, Any], most: int) -> dict[str, Any]:
    """The values that say something, each at most so long."""
    return {name: _cut_value(value, most) for name, value in values.items() if value not in (None, "", [])}


def _cut_value(value: Any, most: int) -> Any:
    if isinstance(value, str):
        return value if len(value) <= most else f"{value[:most]} …"
    if isinstance(value, list):
        kept = [_cut_value(entry, most) for entry in value[: min(MOST_LISTED, most)]]
        return kept + ([f"… {len(value) - len(kept)} more"] if len(kept) < len(value) else [])
    return value


def briefly(make: Callable[[Any], Brief], write: Callable[[Any], Any] | None = None) -> Callable[[F], F]:
    """Gives an endpoint a brief answer. make: writes it from what the endpoint returns; write: writes the full answer,
    where FastAPI does not."""

    def decorate(endpoint: F) -> F:
        signature = inspect.signature(endpoint, eval_str=True)
        is_paged = "before" in signature.parameters

        def turn_to_page(wanted: BriefRequest | None, arguments: dict[str, Any]) -> None:
            if is_paged and wanted is not None and wanted.before is not None:
                arguments["before"] = wanted.before

        def answer(wanted: BriefRequest | None, result: Any) -> Any:
            if wanted is not None and wanted.is_wanted:
                return wanted.answer(make(result))
            return write(result) if wanted is not None and write is not None else result

        if inspect.iscoroutinefunction(endpoint):

            @wraps(endpoint)
            async def run(*args: Any, wanted: BriefRequest | None = None, **kwargs: Any) -> Any:
                turn_to_page(wanted, kwargs)
                return answer(wanted, await endpoint(*args, **kwargs))

        else:

            @wraps(endpoint)
            def run(*args: Any, wanted: BriefRequest | None = None, **kwargs: Any) -> Any:
                turn_to_page(wanted, kwargs)
                return answer(wanted, endpoint(*args, **kwargs))

        added = inspect.Parameter(
            "wanted", inspect.Parameter.KEYWORD_ONLY, annotation=Annotated[BriefRequest, Depends(BriefRequest)]
        )
        parameters = [*signature.parameters.values(), added]
        run.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
        return cast(F, run)

    return decorate
