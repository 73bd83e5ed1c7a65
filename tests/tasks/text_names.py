"""Roles and names of a page's elements, by the rules of `env/agentkv_env/scripts`."""

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
class Part:
    """A text or an element of a page; `element` is None for parts without actions."""

    role: str
    name: str
    element: Element | None = None


def read_parts(root: Element) -> Iterator[Part]:
    """Yield all texts and elements of the page in reading order."""
    yield from _merge_lines(_parts(root, root))


def role_of(element: Element) -> str:
    """Return the role of `element`, or an empty text if it has no actions."""
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
    """Return the accessible name of `element`, which has a role, on the page `root`."""
    ids = element.get("aria-labelledby").split()
    references = [other for other in root.walk() if other.get("id") in ids] if ids else []
    aria = " ".join(_text(other) for other in references) or _squeeze(element.get("aria-label"))
    if aria:
        return aria
    tag, role = element.tag, role_of(element)
    if tag == "input" and role == "button":
        defaults = {"submit": "Submit", "reset": "Reset", "image": "Submit"}
        alt = element.get("alt") if element.get("type") == "image" else ""
        given = alt or element.get("value") or element.get("title")
        return _squeeze(given) or defaults.get(element.get("type"), "")
    if tag in _CONTROLS:
        labels = " ".join(_text(label) for label in _labels(root, element)).strip()
        if labels:
            return labels
    if tag in ("input", "textarea", "select") or role == "textbox":
        return _squeeze(element.get("placeholder") or element.get("title"))
    return _text(element) or _squeeze(element.get("title"))


def _parts(root: Element, parent: Element, is_named: bool = False) -> Iterator[Part | None]:
    """Yield the parts of `parent`, and None at the end of a line.

    Args:
        is_named: whether the text belongs to the name of an element and is skipped.
    """
    for child in parent.children:
        if isinstance(child, str):
            if not is_named:
                yield Part("text", child)
            continue
        if child.is_hidden:
            continue
        role = role_of(child)
        if role:
            yield None
            yield Part(role, name_of(root, child), child)
            if role in ("link", "button"):
                yield from _parts(root, child, True)
            yield None
        elif child.tag == "img":
            yield None
            if not is_named and child.get("alt"):
                yield Part("image", child.get("alt"))
        elif child.tag in _HEADINGS and not is_named:
            yield None
            yield Part("heading", _text(child))
            yield from _parts(root, child, True)
            yield None
        else:
            ends_line = not child.is_inline
            if ends_line:
                yield None
            is_label = child.tag == "label" and _control(root, child) is not None
            yield from _parts(root, child, is_named or is_label)
            if ends_line:
                yield None


def _merge_lines(parts: Iterator[Part | None]) -> Iterator[Part]:
    """Merge the texts of each line."""
    pending = ""
    for part in parts:
        if part is not None and part.role == "text":
            pending += part.name
            continue
        if pending.strip():
            yield Part("text", _squeeze(pending))
        pending = ""
        if part is not None:
            yield part
    if pending.strip():
        yield Part("text", _squeeze(pending))


def _labels(root: Element, element: Element) -> list[Element]:
    label = element.closest("label")
    enclosing = [label] if label is not None and not label.has("for") else []
    if not element.has("id"):
        return enclosing
    referring = [
        other for other in root.walk()
        if other.tag == "label" and other.has("for") and other.get("for") == element.get("id")
    ]  # fmt: skip
    return enclosing + referring


def _control(root: Element, label: Element) -> Element | None:
    if label.has("for"):
        return next((other for other in root.walk() if other.get("id") == label.get("for")), None)
    return next((other for other in label.walk() if other.tag in _CONTROLS), None)


def _text(element: Element) -> str:
    return _squeeze(_raw_text(element))


def _raw_text(element: Element) -> str:
    text = ""
    for child in element.children:
        if isinstance(child, str):
            text += child
        elif child.tag == "img":
            text += f" {child.get('alt') or child.get('title')} "
        elif child.tag == "br":
            text += " "
        elif not child.is_hidden and child.tag not in (*_CONTROLS, "option"):
            inner = child.get("aria-label") or _raw_text(child)
            text += inner if child.is_inline else f" {inner} "
    return text


def _squeeze(text: str) -> str:
    return " ".join(text.split())
