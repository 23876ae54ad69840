"""Leaves out of a page what its reader may not do: forms, buttons and links that lead nowhere for the public.

Pages are made for people with an account. One pass over the finished markup is the place that no new form or button of
a template can be forgotten in.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from html import escape, unescape
from urllib.parse import urlencode

Place = Callable[[str], str | None]
"""Where the target of an address of this server lies for the reader; None where it does not exist for them."""
_TOKEN = re.compile(r"<!--.*?-->|<(/?)([a-zA-Z][\w-]*)((?:[^\"'<>]|\"[^\"]*\"|'[^']*')*)>", re.DOTALL)
_ATTRIBUTE = re.compile(r"([^\s=/]+)(?:\s*=\s*(?:\"([^\"]*)\"|'([^']*)'|(\S+)))?")
_VOID = frozenset(("br", "col", "hr", "img", "input", "link", "meta", "source", "wbr"))
_RAW = frozenset(("script", "style", "textarea", "title"))
"""Elements whose text is no markup."""
_CONTROLS = frozenset(("button", "input", "select", "textarea", "datalist"))
_BUTTONS = frozenset(("data-copy", "data-theme-toggle", "data-menu"))
"""Attributes of the buttons that need no server."""
_ADDRESSES = {"a": "href", "link": "href", "script": "src", "img": "src", "iframe": "src", "form": "action"}
_SCRIPTS = ("/palette.js", "/forms.js", "/inbox.js", "/live.js")
"""Scripts of what the public has not."""
_SEPARATOR = re.compile(r"\s*·\s*$")
_FIRST_SEPARATOR = re.compile(r"^\s*·\s*")
_SPACE = re.compile(r"[ \n]{2,}")


@dataclass(slots=True)
class Element:
    """An element with its children. is_closed: whether its end stands in the markup."""

    tag: str
    attributes: dict[str, str | None] = field(default_factory=dict)
    children: list[Element | str] = field(default_factory=list)
    is_closed: bool = True

    def descendants(self) -> Iterator[Element]:
        for child in self.children:
            if isinstance(child, Element):
                yield child
                yield from child.descendants()

    def has_class(self, *names: str) -> bool:
        return not set(names).isdisjoint((self.attributes.get("class") or "").split())


def parse(markup: str) -> Element:
    """The elements of a page, as our own templates write them."""
    root = Element("")
    stack, at = [root], 0
    while (match := _TOKEN.search(markup, at)) is not None:
        stack[-1].children.append(markup[at : match.start()])
        at = match.end()
        if match[2] is None:
            continue
        tag = match[2].lower() if "svg" not in {element.tag for element in stack[1:]} else match[2]
        if match[1]:
            depth = next((index for index in range(len(stack) - 1, 0, -1) if stack[index].tag == tag), 0)
            del stack[depth or len(stack) :]
            continue
        body = match[3]
        element = Element(tag, _attributes(body))
        stack[-1].children.append(element)
        if tag in _VOID or body.endswith("/"):
            element.is_closed = False
        elif tag in _RAW:
            end = markup.find(f"</{tag}", at)
            element.children.append(markup[at:end])
            at = markup.index(">", end) + 1
        else:
            stack.append(element)
    root.children.append(markup[at:])
    return root


def _attributes(text: str) -> dict[str, str | None]:
    found: dict[str, str | None] = {}
    for name, double, single, bare in _ATTRIBUTE.findall(text.removesuffix("/")):
        value = double or single or bare
        found[name] = unescape(value) if value or f"{name}=" in text else None
    return found


def write(element: Element) -> str:
    """The markup of a page, without the indentation of templates."""
    parts: list[str] = []
    _write(element, parts, is_preformatted=False)
    return "".join(parts)


def _write(element: Element, parts: list[str], *, is_preformatted: bool) -> None:
    if element.tag:
        attributes = (
            f" {name}" if value is None else f' {name}="{escape(value)}"' for name, value in element.attributes.items()
        )
        parts.append(f"<{element.tag}{''.join(attributes)}{'' if element.is_closed or element.tag in _VOID else '/'}>")
    is_preformatted = is_preformatted or element.tag in ("pre", *_RAW)
    for child in element.children:
        if isinstance(child, str):
            parts.append(child if is_preformatted else _SPACE.sub(" ", child))
        else:
            _write(child, parts, is_preformatted=is_preformatted)
    if element.tag and element.is_closed:
        parts.append(f"</{element.tag}>")


@dataclass(frozen=True, slots=True)
class PublicMarkup:
    """What of a page stays for the public.

    path: address of the page without its filters. has_server: whether forms that only read, and parts that are fetched
    later, work. in_form, in_choice, in_bar, in_picture: what the children at hand are in; a choice is a table whose
    narrow cells had a control for each row.
    """

    place: Place
    path: str
    has_server: bool = True
    in_form: bool = False
    in_choice: bool = False
    in_bar: bool = False
    in_picture: bool = False

    def kept(self, element: Element) -> Element:
        """The element without the children that the public cannot use."""
        inside = replace(
            self,
            in_bar=self.in_bar or element.tag in ("nav", "footer") or element.has_class("tabs"),
            in_picture=self.in_picture or element.tag == "svg",
            in_form=self.in_form or element.tag == "form",
        )
        children: list[Element | str] = []
        # The links of a line stand between dots.
        lost_link = False
        for child in element.children:
            if isinstance(child, str):
                is_first = lost_link and all(isinstance(text, str) and not text.strip() for text in children)
                children.append(_FIRST_SEPARATOR.sub("", child) if is_first else child)
            elif (kept := inside._child(child)) is not None:
                children.append(kept)
            elif child.tag == "a":
                lost_link = True
                if children and isinstance(children[-1], str):
                    children[-1] = _SEPARATOR.sub("", children[-1])
        return replace(element, children=children)

    def _child(self, element: Element) -> Element | None:
        """A child as the public gets it; None for one that is left out."""
        placed = self._placed(element)
        if placed is None or self._is_left_out(placed):
            return None
        if placed.tag == "form" and (placed.attributes.get("method") == "post" or not self.has_server):
            if not _has_table(placed):
                return self._switches(placed)
            # Of a table of which rows can be chosen, the table is left.
            table = Element("div", _only(placed, "class"), placed.children)
            return replace(self, in_choice=True).kept(table)
        drops_requests = not self.has_server or self.place(placed.attributes.get("hx-get") or "/") is None
        if drops_requests:
            kept = {name: value for name, value in placed.attributes.items() if not name.startswith("hx-")}
            placed = replace(placed, attributes=kept)
        placed = self.kept(placed)
        is_empty = not any(not isinstance(child, str) or child.strip() for child in placed.children)
        return None if is_empty and placed.tag in ("li", "label") else placed

    def _is_left_out(self, element: Element) -> bool:
        attributes = element.attributes
        if element.tag == "form":
            return attributes.get("method") == "post" and not _has_table(element)
        if element.tag == "details":
            forms = (child.attributes.get("method") for child in element.descendants() if child.tag == "form")
            return "post" in forms and not _has_table(element)
        if self.in_choice and element.tag in ("td", "th") and element.has_class("tight"):
            return True
        if element.tag in _CONTROLS:
            return not self.in_form and _BUTTONS.isdisjoint(attributes)
        if element.tag == "script":
            source = attributes.get("src") or ""
            return any(name in source for name in _SCRIPTS) or (not self.has_server and "/htmx" in source)
        if not self.has_server and (element.tag == "noscript" or attributes.get("rel") == "preload"):
            return True
        # What is fetched from where the public may not ask would stay empty.
        part = attributes.get("hx-get")
        return part is not None and element.tag != "a" and self.place(part) is None

    def _placed(self, element: Element) -> Element | None:
        """The element with its address at its place. A link that leads nowhere becomes its text, or nothing where it is
        made to be pressed."""
        name = _ADDRESSES.get(element.tag)
        address = element.attributes.get(name) if name is not None else None
        if name is None or address is None or not address.startswith("/") or address.startswith("//"):
            return element
        where = self.place(address)
        if where is not None:
            return replace(element, attributes=element.attributes | {name: where})
        is_pressed = self.in_bar or element.has_class("button", "gear") or "download" in element.attributes
        if element.tag == "form":
            return element if _has_table(element) else None
        if element.tag != "a" or is_pressed or address.startswith("/api/"):
            return None
        return Element("g" if self.in_picture else "span", _only(element, "class", "id", "title"), element.children)

    def _switches(self, form: Element) -> Element | None:
        """The selects of a form whose choices have pages of their own, which a script leads to."""
        controls = [element for element in form.descendants() if element.tag in ("input", "select")]
        values = {name: _value(control) for control in controls if (name := control.attributes.get("name"))}
        path = form.attributes.get("action") or self.path
        labels: list[Element | str] = []
        for label in (child for child in form.descendants() if child.tag == "label"):
            select = next((child for child in label.descendants() if child.tag == "select"), None)
            if select is None:
                continue
            options: list[Element | str] = []
            for option in (child for child in select.descendants() if child.tag == "option"):
                chosen = values | {select.attributes.get("name") or "": option.attributes.get("value") or ""}
                given = urlencode({name: value for name, value in chosen.items() if name and value})
                where = self.place(f"{path}?{given}")
                if where is not None:
                    options.append(replace(option, attributes=option.attributes | {"value": where}))
            if len(options) > 1:
                text: list[Element | str] = [child for child in label.children if isinstance(child, str)]
                labels.append(replace(label, children=[*text, Element("select", {"data-places": None}, options)]))
        return Element("div", _only(form, "class"), labels) if labels else None


def _has_table(element: Element) -> bool:
    return any(child.tag == "table" for child in element.descendants())


def _only(element: Element, *names: str) -> dict[str, str | None]:
    return {name: value for name, value in element.attributes.items() if name in names}


def _value(control: Element) -> str:
    """What a control of a form would send."""
    if control.tag == "select":
        options = [child for child in control.descendants() if child.tag == "option"]
        first = options[0] if options else control
        chosen = next((option for option in options if "selected" in option.attributes), first)
        return chosen.attributes.get("value") or ""
    is_sent = control.attributes.get("type") not in ("checkbox", "radio") or "checked" in control.attributes
    return (control.attributes.get("value") or "") if is_sent else ""
