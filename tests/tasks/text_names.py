"""Roles and names of elements, by the rules of the page walk (env/agentkv_env/scripts)."""

from collections.abc import Iterator
from dataclasses import dataclass

from tests.tasks.text_page import Element

_ROLES = {
    "button": "button", "link": "link", "checkbox": "checkbox", "radio": "radio", "tab": "tab",
    "switch": "switch", "menuitem": "menuitem", "option": "option", "combobox": "combobox",
    "textbox": "textbox", "searchbox": "textbox", "spinbutton": "textbox", "slider": "slider",
}  # fmt: skip
_INPUTS = {
    "button": "button", "submit": "button", "reset": "button", "image": "button",
    "checkbox": "checkbox", "radio": "radio", "range": "slider", "file": "file",
}  # fmt: skip
_CONTROLS = ("input", "select", "textarea", "button")
_HEADINGS = ("h1", "h2", "h3", "h4", "h5", "h6")


@dataclass(frozen=True)
class NamedPart:
    """A readable part of a page; `element` is set if an action can target it."""

    role: str
    name: str
    element: Element | None = None


def readable_parts(root: Element) -> Iterator[NamedPart]:
    """Yield the readable parts of the page in reading order."""
    yield from _merge_lines(_parts(root, root))


def role_of(element: Element) -> str:
    """Return the role of an element, or an empty string if no action can target it."""
    tag = element.tag
    if tag == "input":
        kind = element.get("type", "text")
        if kind == "hidden":
            return ""
        return _INPUTS.get(kind) or ("combobox" if element.has("list") else "textbox")
    if tag == "textarea":
        return "textbox"
    if tag == "select":
        return "listbox" if element.has("multiple") else "combobox"
    claimed = _ROLES.get(element.get("role").lower(), "")
    if claimed:
        return claimed
    if tag == "button" or (tag == "a" and element.has("href")):
        return "button" if tag == "button" else "link"
    is_summary = tag == "summary" and element.parent is not None
    return "button" if is_summary else ""


def name_of(root: Element, element: Element) -> str:
    """Return the name of `element`, which must have a role, on the page `root`."""
    ids = element.get("aria-labelledby").split()
    by_ids = [each for each in root.walk() if ids and each.get("id") in ids]
    own = " ".join(_text(each) for each in by_ids) or _collapse(element.get("aria-label"))
    if own:
        return own
    tag, role = element.tag, role_of(element)
    if tag == "input" and role == "button":
        standard = {"submit": "Submit", "reset": "Reset", "image": "Submit"}
        alt = element.get("alt") if element.get("type") == "image" else ""
        given = alt or element.get("value") or element.get("title")
        return _collapse(given) or standard.get(element.get("type"), "")
    if tag in _CONTROLS:
        labels = " ".join(_text(label) for label in _labels(root, element)).strip()
        if labels:
            return labels
    if tag in ("input", "textarea", "select") or role == "textbox":
        return _collapse(element.get("placeholder") or element.get("title"))
    return _text(element) or _collapse(element.get("title"))


def _parts(root: Element, here: Element, inside: bool = False) -> Iterator[NamedPart | None]:
    """Yield the parts inside `here`; None ends a line."""
    for child in here.children:
        if isinstance(child, str):
            if not inside:
                yield NamedPart("text", child)
            continue
        if child.is_hidden:
            continue
        role = role_of(child)
        if role:
            yield None
            yield NamedPart(role, name_of(root, child), child)
            if role in ("link", "button"):
                yield from _parts(root, child, True)
            yield None
        elif child.tag == "img":
            yield None
            if not inside and child.get("alt"):
                yield NamedPart("image", child.get("alt"))
        elif child.tag in _HEADINGS and not inside:
            yield None
            yield NamedPart("heading", _text(child))
            yield from _parts(root, child, True)
            yield None
        else:
            ends_line = not child.is_inline
            if ends_line:
                yield None
            is_label = child.tag == "label" and _control(root, child) is not None
            yield from _parts(root, child, inside or is_label)
            if ends_line:
                yield None


def _merge_lines(parts: Iterator[NamedPart | None]) -> Iterator[NamedPart]:
    """Merge pieces of text on the same line."""
    pending = ""
    for part in parts:
        if part is not None and part.role == "text":
            pending += part.name
            continue
        if pending.strip():
            yield NamedPart("text", _collapse(pending))
        pending = ""
        if part is not None:
            yield part
    if pending.strip():
        yield NamedPart("text", _collapse(pending))


def _labels(root: Element, element: Element) -> list[Element]:
    label = element.closest("label")
    around = [label] if label is not None and not label.has("for") else []
    pointing = [
        each for each in root.walk()
        if each.tag == "label" and each.has("for") and each.get("for") == element.get("id")
    ]  # fmt: skip
    return around + pointing


def _control(root: Element, label: Element) -> Element | None:
    among = root.walk()
    if label.has("for"):
        return next((each for each in among if each.get("id") == label.get("for")), None)
    return next((each for each in label.walk() if each.tag in _CONTROLS), None)


def _text(element: Element) -> str:
    return _collapse(_raw(element))


def _raw(element: Element) -> str:
    text = ""
    for child in element.children:
        if isinstance(child, str):
            text += child
        elif child.tag == "img":
            text += f" {child.get('alt') or child.get('title')} "
        elif child.tag == "br":
            text += " "
        elif not child.is_hidden and child.tag not in (*_CONTROLS, "option"):
            inner = child.get("aria-label") or _raw(child)
            text += inner if child.is_inline else f" {inner} "
    return text


def _collapse(text: str) -> str:
    return " ".join(text.split())
