"""A text browser that carries out solutions in many worlds within seconds.

The whole page is visible, so this browser does not notice a missing `scroll`.
"""

import http.client
import re
from dataclasses import dataclass, field
from urllib.parse import urlencode, urljoin, urlsplit

from agentkv_env.actions import Action
from agentkv_env.page import Box, Node, Page
from agentkv_env.sites.server import Server
from agentkv_tasks.addresses import Addresses
from tests.tasks.text_names import read_parts
from tests.tasks.text_page import Element, parse_html

_NOWHERE = Box(0, 0, 0, 0)
_BLANK = "about:blank"
# The only two scripts of the sites that change a page.
_OPENS = re.compile(r"document\.querySelector\('(?P<selector>[^']+)'\)\.showModal\(\)$")
_ENABLES = "this.querySelector('[disabled]')?.removeAttribute('disabled')"


class ActionRefused(Exception):
    """An action that would also fail in a real browser."""


class NeedsScript(Exception):
    """An action that requires JavaScript."""


@dataclass
class Document:
    """A fetched page."""

    url: str
    """Real address, including the port."""
    html: str
    root: Element
    elements: list[Element] = field(default_factory=list)
    """Observed elements; the first one has id 1."""


@dataclass
class _Tab:
    entries: list[Document]
    index: int = 0

    @property
    def document(self) -> Document:
        return self.entries[self.index]

    def push(self, document: Document) -> None:
        replaces_current = self.document.url in (_BLANK, document.url)
        del self.entries[self.index + (not replaces_current) :]
        self.entries.append(document)
        self.index = len(self.entries) - 1


class TextBrowser:
    """Tabs on the sites of `server` that accept the same actions as a session."""

    def __init__(self, server: Server) -> None:
        self.addresses = Addresses(server.placeholders, server.addresses)
        self._connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)
        self._cookies: dict[str, dict[str, str]] = {}
        self._tabs: list[_Tab] = []
        self._current = 0

    def close(self) -> None:
        self._connection.close()

    # ---- session interface ------------------------------------------------------------------

    def open(self, *urls: str) -> None:
        """Open one tab for each address and focus the first."""
        self._tabs = [_Tab([self.fetch(url)]) for url in urls]
        self._current = 0

    @property
    def document(self) -> Document:
        """Document of the current tab."""
        return self._tabs[self._current].document

    def observe(self) -> Page:
        """Return the whole current page and number its elements."""
        document = self.document
        document.elements, nodes = [], []
        for part in read_parts(document.root):
            id = None
            if part.element is not None:
                document.elements.append(part.element)
                id = len(document.elements)
            nodes.append(
                Node("text" if id is None else "element", part.role, part.name, _NOWHERE, id)
            )
        title = next((element for element in document.root.walk() if element.tag == "title"), None)
        return Page(
            self.addresses.public(document.url),
            title.text_content if title else "",
            tuple(nodes),
            tab=self._current,
        )

    def act(self, action: Action) -> None:
        """Carry out an action other than `stop`.

        Raises:
            ActionRefused: the action would also fail in a real browser.
            NeedsScript: the action requires JavaScript.
        """
        tab = self._tabs[self._current]
        match action.kind:
            case "click":
                self._click(self._element(action))
            case "type":
                self._type(self._element(action), action)
            case "clear":
                self._element(action).attributes["value"] = ""
            case "goto":
                tab.push(self.fetch(action.url))
            case "go_back" | "go_forward":
                index = tab.index + (1 if action.kind == "go_forward" else -1)
                if not 0 <= index < len(tab.entries):
                    raise ActionRefused(f"{action.kind}: the history has no such entry")
                tab.index = index
                tab.entries[index] = self.fetch(tab.document.url)
            case "tab_focus":
                if action.tab is None or not 0 <= action.tab < len(self._tabs):
                    raise ActionRefused(f"there is no tab {action.tab}")
                self._current = action.tab
            case "new_tab":
                self._tabs.append(_Tab([Document(_BLANK, "", parse_html(""))]))
                self._current = len(self._tabs) - 1
            case "close_tab":
                del self._tabs[self._current]
                self._current = max(0, self._current - 1)
            case "press":
                raise NeedsScript("the text browser does not support key presses")
            case _:
                pass  # the whole page is visible, and nothing reacts to the mouse

    # ---- pages ------------------------------------------------------------------------------

    def fetch(self, url: str, body: str | None = None) -> Document:
        """Fetch `url` and follow redirects; `body` makes the first request a POST.

        Raises:
            ActionRefused: there are more than seven redirects.
        """
        url = self.addresses.real(url)
        for _ in range(8):
            response, content = self._request(url, body)
            if response.status not in (301, 302, 303, 307):
                html = content.decode()
                return Document(url, html, parse_html(html))
            url, body = urljoin(url, response.headers["Location"]), None
        raise ActionRefused(f"too many redirects, the last one to {url}")

    def _request(self, url: str, body: str | None) -> tuple[http.client.HTTPResponse, bytes]:
        parts = urlsplit(url)
        cookies = self._cookies.setdefault(parts.netloc, {})
        # the server closes connections that are idle for some seconds, which a busy machine reaches
        headers = {"Host": parts.netloc, "Connection": "close"}
        if cookies:
            headers["Cookie"] = "; ".join(f"{name}={value}" for name, value in cookies.items())
        if body is not None:
            headers["Content-Type"] = "application/x-www-form-urlencoded"
        path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        self._connection.request("GET" if body is None else "POST", path, body, headers)
        response = self._connection.getresponse()
        content = response.read()
        for cookie in response.headers.get_all("Set-Cookie") or ():
            name, _, value = cookie.partition(";")[0].partition("=")
            cookies[name.strip()] = value.strip()
        return response, content

    # ---- elements ---------------------------------------------------------------------------

    def _element(self, action: Action) -> Element:
        assert action.element_id is not None
        element = self.document.elements[action.element_id - 1]
        if _is_disabled(element):
            raise ActionRefused(f"the {element.tag} is disabled")
        return element

    def _click(self, element: Element) -> None:
        kind = element.get("type").lower()
        match element.tag, kind:
            case _ if opened := _OPENS.match(element.get("onclick")):
                for dialog in self.document.root.select(opened["selector"]):
                    _set(dialog, "open", True)
            case "a", _:
                self._follow(element)
            case "summary", _:
                assert element.parent is not None
                _set(element.parent, "open", not element.parent.has("open"))
            case "input", "checkbox":
                _set(element, "checked", not element.has("checked"))
            case "input", "radio":
                for other in _radio_group(self.document.root, element):
                    _set(other, "checked", other is element)
                _run_onchange(element)
            case "button", "" | "submit":
                self._press_button(element)
            case "input", "submit" | "image":
                self._press_button(element)
            case "input" | "textarea", _:
                pass  # the click only moves the focus
            case _:
                raise NeedsScript(f"a click on this {element.tag} does nothing without a script")

    def _follow(self, link: Element) -> None:
        url = urljoin(self.document.url, link.get("href"))
        if url.startswith("javascript:") or url.split("#")[0] == self.document.url and "#" in url:
            return
        if link.get("target") == "_blank":
            self._tabs.append(_Tab([self.fetch(url)]))
            self._current = len(self._tabs) - 1
            return
        self._tabs[self._current].push(self.fetch(url.split("#")[0]))

    def _type(self, element: Element, action: Action) -> None:
        if element.tag == "select":
            _choose(element, action.text)
            _run_onchange(element)
            return
        if element.has("readonly") or element.tag not in ("input", "textarea"):
            raise ActionRefused(f"the {element.tag} does not accept text")
        limit = int(element.get("maxlength") or 10**6)
        element.attributes["value"] = action.text[:limit]
        form = self._form_of(element)
        if not action.enter or element.tag == "textarea" or form is None:
            return
        members = [part for part in self.document.root.walk() if self._form_of(part) is form]
        button = next((member for member in members if _is_submit(member)), None)
        if button is not None and _is_disabled(button):
            return
        self._submit(form, button)

    def _press_button(self, button: Element) -> None:
        form = self._form_of(button)
        if form is None:
            raise NeedsScript("a button without a form does nothing without a script")
        if "dialog" in (form.get("method"), button.get("formmethod")):
            dialog = button.closest("dialog")
            assert dialog is not None
            _set(dialog, "open", False)
            return
        self._submit(form, button)

    def _form_of(self, element: Element) -> Element | None:
        if not element.has("form"):
            return element.closest("form")
        elements = self.document.root.walk()
        return next((other for other in elements if other.get("id") == element.get("form")), None)

    def _submit(self, form: Element, button: Element | None) -> None:
        fields = []
        for element in self.document.root.walk():
            is_field = element.tag in ("input", "select", "textarea") or element is button
            if is_field and self._form_of(element) is form and not _is_disabled(element):
                values = _form_values(element, button)
                if element.has("required") and not any(value for _, value in values):
                    raise ActionRefused(f"the field {element.get('name')} is required")
                fields += values
        overrides = button.attributes if button is not None else {}
        action = overrides.get("formaction") or form.get("action") or self.document.url
        url = urljoin(self.document.url, action).split("#")[0]
        method = (overrides.get("formmethod") or form.get("method") or "get").lower()
        if method == "post":
            document = self.fetch(url, urlencode(fields))
        else:
            document = self.fetch(f"{url.split('?')[0]}?{urlencode(fields)}")
        self._tabs[self._current].push(document)


def value_of(element: Element) -> str:
    """Return the current value of a field."""
    if element.tag == "select":
        options = [option for option in element.walk() if option.tag == "option"]
        chosen = [option for option in options if option.has("selected")] or options[:1]
        return chosen[-1].get("value", _label(chosen[-1])) if chosen else ""
    if element.tag == "textarea":
        return element.get("value", element.text_content.removeprefix("\n"))
    is_box = element.get("type") in ("checkbox", "radio")
    return element.get("value", "on" if is_box else "")


def _form_values(element: Element, button: Element | None) -> list[tuple[str, str]]:
    """Return the name and value that a field submits.

    Unnamed fields, unchecked boxes and buttons other than `button` submit nothing.
    """
    kind = element.get("type").lower()
    if not element.get("name") or kind in ("file", "reset", "button"):
        return []
    if _is_submit(element) and element is not button:
        return []
    if kind in ("checkbox", "radio") and not element.has("checked"):
        return []
    return [(element.get("name"), value_of(element))]


def _choose(select: Element, label: str) -> None:
    options = [
        element
        for element in select.walk()
        if element.tag == "option" and not element.has("disabled")
    ]
    wanted = next((option for option in options if _label(option) == label), None)
    if wanted is None:
        labels = " | ".join(_label(option) for option in options)
        raise ActionRefused(f"there is no option '{label}'; the options are: {labels}")
    for option in options:
        _set(option, "selected", option is wanted)


def _label(option: Element) -> str:
    return " ".join(option.text_content.split())


def _run_onchange(changed: Element) -> None:
    """Run the `onchange` script of the form that contains a changed field."""
    form = changed.closest("form")
    if form is not None and form.get("onchange") == _ENABLES:
        for element in form.select("[disabled]")[:1]:
            _set(element, "disabled", False)


def _is_submit(element: Element) -> bool:
    kind = element.get("type").lower()
    if element.tag == "button":
        return kind in ("", "submit")
    return element.tag == "input" and kind in ("submit", "image")


def _is_disabled(element: Element) -> bool:
    fieldsets = (ancestor for ancestor in element.ancestors() if ancestor.tag == "fieldset")
    return element.has("disabled") or any(fieldset.has("disabled") for fieldset in fieldsets)


def _radio_group(root: Element, radio: Element) -> list[Element]:
    form = radio.closest("form")
    return [
        element for element in root.walk()
        if element.get("type") == "radio" and element.get("name") == radio.get("name")
        and element.closest("form") is form
    ]  # fmt: skip


def _set(element: Element, attribute: str, on: bool) -> None:
    if on:
        element.attributes[attribute] = ""
    else:
        element.attributes.pop(attribute, None)
