"""A text browser that runs solutions in many worlds within seconds.

It treats the whole page as visible, so it does not detect a missing `scroll`.
"""

import http.client
import re
from dataclasses import dataclass, field
from urllib.parse import urlencode, urljoin, urlsplit

from agentkv_env.actions import Action
from agentkv_env.page import Box, Node, Page
from agentkv_env.sites.server import Server
from agentkv_tasks.addresses import Addresses
from tests.tasks.text_names import readable_parts
from tests.tasks.text_page import Element, read

_NOWHERE = Box(0, 0, 0, 0)
_BLANK = "about:blank"
# The two effects that the sites' scripts have on a page.
_OPENS = re.compile(r"document\.querySelector\('(?P<selector>[^']+)'\)\.showModal\(\)$")
_ENABLES = "this.querySelector('[disabled]')?.removeAttribute('disabled')"


class Refused(Exception):
    """An action that would also fail in a real browser."""


class NeedsScript(Exception):
    """An action that needs a page's JavaScript."""


@dataclass
class Document:
    """A fetched page."""

    url: str
    """Real form, with the port."""
    html: str
    root: Element
    seen: list[Element] = field(default_factory=list)
    """Elements by number: 1, 2, ..."""


@dataclass
class _Tab:
    entries: list[Document]
    index: int = 0

    @property
    def document(self) -> Document:
        return self.entries[self.index]

    def push(self, document: Document) -> None:
        same = self.document.url in (_BLANK, document.url)
        del self.entries[self.index + (not same) :]
        self.entries.append(document)
        self.index = len(self.entries) - 1


class TextBrowser:
    """Tabs on the sites of `server`, with the interface of a session."""

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
        """Open one tab for each address; the first tab is current."""
        self._tabs = [_Tab([self.fetch(url)]) for url in urls]
        self._current = 0

    @property
    def document(self) -> Document:
        """Page of the current tab."""
        return self._tabs[self._current].document

    def observe(self) -> Page:
        """Return the whole current page."""
        document = self.document
        document.seen, nodes = [], []
        for part in readable_parts(document.root):
            id = None
            if part.element is not None:
                document.seen.append(part.element)
                id = len(document.seen)
            nodes.append(
                Node("text" if id is None else "element", part.role, part.name, _NOWHERE, id)
            )
        title = next((each for each in document.root.walk() if each.tag == "title"), None)
        return Page(
            self.addresses.public(document.url),
            title.text_content if title else "",
            tuple(nodes),
            tab=self._current,
        )

    def act(self, action: Action) -> None:
        """Perform an action other than `stop`.

        Raises:
            Refused: a real browser would refuse the action.
            NeedsScript: the action has no effect without JavaScript.
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
                    raise Refused(f"{action.kind}: the history has no such page")
                tab.index = index
                tab.entries[index] = self.fetch(tab.document.url)
            case "tab_focus":
                if action.tab is None or not 0 <= action.tab < len(self._tabs):
                    raise Refused(f"there is no tab {action.tab}")
                self._current = action.tab
            case "new_tab":
                self._tabs.append(_Tab([Document(_BLANK, "", read(""))]))
                self._current = len(self._tabs) - 1
            case "close_tab":
                del self._tabs[self._current]
                self._current = max(0, self._current - 1)
            case "press":
                raise NeedsScript("keys are not supported")
            case _:
                pass  # the whole page is visible, and no page reacts to the mouse

    # ---- pages ------------------------------------------------------------------------------

    def fetch(self, url: str, body: str | None = None) -> Document:
        """Fetch the page at `url` (in any form), or post `body` there, and follow redirects."""
        url = self.addresses.real(url)
        for _ in range(8):
            response, content = self._request(url, body)
            if response.status not in (301, 302, 303, 307):
                html = content.decode()
                return Document(url, html, read(html))
            url, body = urljoin(url, response.headers["Location"]), None
        raise Refused(f"{url} redirects endlessly")

    def _request(self, url: str, body: str | None) -> tuple[http.client.HTTPResponse, bytes]:
        parts = urlsplit(url)
        cookies = self._cookies.setdefault(parts.netloc, {})
        headers = {"Host": parts.netloc}
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
        element = self.document.seen[action.element_id - 1]
        if _is_disabled(element):
            raise Refused(f"this {element.tag} is disabled")
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
                _notify_form(element)
            case "button", "" | "submit":
                self._press_button(element)
            case "input", "submit" | "image":
                self._press_button(element)
            case "input" | "textarea", _:
                pass  # only the focus moves
            case _:
                raise NeedsScript(f"a click on this {element.tag} has no effect")

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
            _notify_form(element)
            return
        if element.has("readonly") or element.tag not in ("input", "textarea"):
            raise Refused(f"{element.tag} takes no text")
        limit = int(element.get("maxlength") or 10**6)
        element.attributes["value"] = action.text[:limit]
        form = self._form_of(element)
        if not action.enter or element.tag == "textarea" or form is None:
            return
        owned = [each for each in self.document.root.walk() if self._form_of(each) is form]
        button = next((each for each in owned if _is_submit(each)), None)
        if button is not None and _is_disabled(button):
            return
        self._submit(form, button)

    def _press_button(self, button: Element) -> None:
        form = self._form_of(button)
        if form is None:
            raise NeedsScript("a button without a form")
        if "dialog" in (form.get("method"), button.get("formmethod")):
            dialog = button.closest("dialog")
            assert dialog is not None
            _set(dialog, "open", False)
            return
        self._submit(form, button)

    def _form_of(self, element: Element) -> Element | None:
        if not element.has("form"):
            return element.closest("form")
        among = self.document.root.walk()
        return next((each for each in among if each.get("id") == element.get("form")), None)

    def _submit(self, form: Element, button: Element | None) -> None:
        fields = []
        for each in self.document.root.walk():
            is_field = each.tag in ("input", "select", "textarea") or each is button
            if is_field and self._form_of(each) is form and not _is_disabled(each):
                if each.has("required") and not any(value for _, value in _form_data(each, button)):
                    raise Refused(f"the field {each.get('name')} is required")
                fields += _form_data(each, button)
        own = button.attributes if button is not None else {}
        action = own.get("formaction") or form.get("action") or self.document.url
        url = urljoin(self.document.url, action).split("#")[0]
        method = (own.get("formmethod") or form.get("method") or "get").lower()
        if method == "post":
            document = self.fetch(url, urlencode(fields))
        else:
            document = self.fetch(f"{url.split('?')[0]}?{urlencode(fields)}")
        self._tabs[self._current].push(document)


def value_of(element: Element) -> str:
    """Return the current value of a field."""
    if element.tag == "select":
        options = [each for each in element.walk() if each.tag == "option"]
        chosen = [each for each in options if each.has("selected")] or options[:1]
        return chosen[-1].get("value", _label(chosen[-1])) if chosen else ""
    if element.tag == "textarea":
        return element.get("value", element.text_content.removeprefix("\n"))
    is_box = element.get("type") in ("checkbox", "radio")
    return element.get("value", "on" if is_box else "")


def _form_data(element: Element, button: Element | None) -> list[tuple[str, str]]:
    """Return the form data of a field.

    A field without a name, an unchecked box and any button but the pressed one have none.
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
    options = [each for each in select.walk() if each.tag == "option" and not each.has("disabled")]
    wanted = next((each for each in options if _label(each) == label), None)
    if wanted is None:
        known = " | ".join(_label(each) for each in options)
        raise Refused(f"no option '{label}'; it has: {known}")
    for each in options:
        _set(each, "selected", each is wanted)


def _label(option: Element) -> str:
    return " ".join(option.text_content.split())


def _notify_form(changed: Element) -> None:
    """Run the effect of the form's `onchange` handler."""
    form = changed.closest("form")
    if form is not None and form.get("onchange") == _ENABLES:
        for each in form.select("[disabled]")[:1]:
            _set(each, "disabled", False)


def _is_submit(element: Element) -> bool:
    kind = element.get("type").lower()
    if element.tag == "button":
        return kind in ("", "submit")
    return element.tag == "input" and kind in ("submit", "image")


def _is_disabled(element: Element) -> bool:
    around = (each for each in element.ancestors() if each.tag == "fieldset")
    return element.has("disabled") or any(each.has("disabled") for each in around)


def _radio_group(root: Element, radio: Element) -> list[Element]:
    form = radio.closest("form")
    return [
        each for each in root.walk()
        if each.get("type") == "radio" and each.get("name") == radio.get("name")
        and each.closest("form") is form
    ]  # fmt: skip


def _set(element: Element, attribute: str, on: bool) -> None:
    if on:
        element.attributes[attribute] = ""
    else:
        element.attributes.pop(attribute, None)
