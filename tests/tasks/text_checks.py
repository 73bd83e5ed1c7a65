"""Scoring in a text browser: a page that loads addresses and evaluates locators."""

import re
from typing import Any, cast

from playwright.sync_api import Error
from playwright.sync_api import Page as PlaywrightPage

from agentkv_tasks.evaluate import Final, Score, evaluate
from agentkv_tasks.task import Task
from tests.tasks.text_browser import Document, TextBrowser, value_of
from tests.tasks.text_page import Element

_ONE = re.compile(r"document\.querySelector\((['\"])(?P<selector>.*?)\1\)(?P<tail>\??\..*)?$")
_COUNT = re.compile(r"document\.querySelectorAll\((['\"])(?P<selector>.*?)\1\)\.length$")
_JOIN = re.compile(
    r"\[\.\.\.document\.querySelectorAll\((['\"])(?P<selector>.*?)\1\)\]"
    r"\.map\((?P<each>\w+) => (?P=each)(?P<tail>\.[^,]*?)\)\.join\((['\"])(?P<by>.*?)\5\)$"
)
_ATTRIBUTE = re.compile(r"\.getAttribute\((['\"])(?P<name>.*?)\1\)$")


class UnknownScript(Exception):
    """A locator in a form that the text browser does not support."""


def scored(task: Task, browser: TextBrowser, answer: str) -> Score:
    """Score an episode of `task` that ended on the current page of the browser.

    Raises:
        UnknownScript: a check needs a real browser.
    """
    page = cast(PlaywrightPage, CheckedPage(browser, browser.document))
    final = Final.of(page, answer, browser.addresses)
    return evaluate(task, final, page=page, addresses=browser.addresses)


class CheckedPage:
    """The part of Playwright's `Page` that checks use."""

    def __init__(self, browser: TextBrowser, document: Document | None = None) -> None:
        self._browser = browser
        self._document = document

    @property
    def context(self) -> "CheckedPage":
        return self

    def new_page(self) -> "CheckedPage":
        return CheckedPage(self._browser)

    @property
    def url(self) -> str:
        return self._document.url if self._document else ""

    def content(self) -> str:
        return self._document.html if self._document else ""

    def goto(self, url: str, **limits: Any) -> None:
        self._document = self._browser.fetch(url)

    def wait_for_timeout(self, milliseconds: float) -> None: ...

    def close(self) -> None: ...

    def is_closed(self) -> bool:
        return False

    def evaluate(self, script: str) -> object:
        """Return the result of the locator `script`.

        Raises:
            Error: no element matches, so the script would throw.
            UnknownScript: the form of the script is not supported.
        """
        assert self._document is not None
        root, script = self._document.root, script.removeprefix("() => ").strip()
        try:
            if found := _COUNT.match(script):
                return len(root.select(found["selector"]))
            if found := _JOIN.match(script):
                each = root.select(found["selector"])
                return found["by"].join(str(_read(one, found["tail"])) for one in each)
            if found := _ONE.match(script):
                return self._one(root, found["selector"], found["tail"] or "")
        except ValueError as error:
            raise UnknownScript(str(error)) from None
        raise UnknownScript(script)

    def _one(self, root: Element, selector: str, tail: str) -> object:
        elements = root.select(selector)
        if not elements:
            if tail.startswith("?."):
                return None
            raise Error(f"no element matches {selector}")
        return _read(elements[0], tail.removeprefix("?"))


def _read(element: Element, tail: str) -> object:
    if tail.endswith(".trim()"):
        return str(_read(element, tail.removesuffix(".trim()"))).strip()
    if attribute := _ATTRIBUTE.match(tail):
        return element.attributes.get(attribute["name"])
    match tail:
        case ".innerText":
            return element.inner_text
        case ".textContent":
            return element.text_content
        case ".value":
            return value_of(element)
        case ".checked":
            return str(element.has("checked")).lower()
    raise UnknownScript(tail)
