"""Scripts for pages where text is selected, formatted or written without a field."""

import re
from collections.abc import Generator
from itertools import count

from agentkv_env.actions import Action
from agentkv_env.page import Page
from agentkv_tasks.miniwob.eyes import (
    click,
    element,
    elements,
    enter,
    hover,
    matched,
    ordinal,
    press,
    quoted,
    texts,
)
from agentkv_tasks.miniwob.script import Steps


def highlight_text(goal: str, page: Page) -> Steps:
    """`Highlight the text in the paragraph below and click submit.`, or in the 3rd of three."""
    paragraphs = texts(page)
    text = paragraphs[ordinal(goal) - 1] if re.search(r"\d", goal) else " ".join(paragraphs)
    page = yield Action("select_text", text=text)
    yield click(element(page, "button", "Submit"))


_COLOURS = ("red", "orange", "yellow", "green", "blue", "purple")
_STYLES = ("colored", "bold", "italics", "underlined")


def format_text(goal: str, page: Page) -> Steps:
    """`Using the text editor, give the text Enim the style bold and press Submit.`

    The buttons stand in this order without names: colour, bold, italic, underlined. In the palette,
    the colours of the rainbow follow black.
    """
    words, how = matched(r"(?:the text (\S+)|everything) the (?:style|color) (\w+)", goal)
    field = elements(page, "textbox")[-1]
    yield Action("select_text", element_id=field.id, text=words)
    page = yield hover(field)  # the editor learns of the selection a moment later
    if how in _STYLES:
        page = yield click(elements(page, "button")[_STYLES.index(how)])
    else:
        before = {node.id for node in elements(page)}
        page = yield click(elements(page, "button")[0])
        palette = [node for node in elements(page) if node.id not in before]
        page = yield click(palette[1 + _COLOURS.index(how)])
    yield click(element(page, "button", "Submit"))


def sign_agreement(goal: str, page: Page) -> Steps:
    """`Scroll to the bottom of the textarea, enter the name "Renda" then press "Cancel"`"""
    if not quoted(goal):
        yield click(element(page, "button", "Cancel"))
        return
    name, button = quoted(goal)
    agreement = element(page, "textbox")
    for step in count(1):
        if "disabled" not in element(page, "textbox", "Name").states:
            break
        if step % 4 == 0:  # a fifth equal scroll without an effect to be seen would end the episode
            yield hover(agreement)
        page = yield Action("scroll", direction="down", element_id=agreement.id)
    page = yield enter(element(page, "textbox", "Name"), name)
    yield click(element(page, "button", button))


def delete_file(goal: str, page: Page) -> Steps:
    """`Use the terminal below to delete a file ending with the extension .html`

    The terminal gets the keyboard a moment after the page is there, so the first keys may be lost.
    """
    ending = matched(r"(?:extension (\S+)|no file extension)", goal)[0].rstrip(".")
    said = ""
    for _ in range(3):
        page = yield from _command("ls", page)
        said = " ".join(texts(page)) + " ".join(node.name for node in elements(page))
        if "$ ls" in said:
            break
    files = matched(r"\$ ?ls\s+(.*?)\s*user\$", said)[0].split()
    fitting = [name for name in files if (name.endswith(ending) if ending else "." not in name)]
    yield from _command(f"rm {fitting[0]}", page)


def _command(line: str, page: Page) -> Generator[Action, Page, Page]:
    for key in line:
        yield press("Space" if key == " " else key)
    return (yield press("Enter"))
