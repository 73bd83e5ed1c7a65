"""Dialogs of the browser that a page opens: alert, confirm, prompt, and before it is left.

While such a dialog is open, the page's scripts wait in it, and so does every call into the page. A
dialog with a choice therefore ends the call that is in progress (`DialogOpened`) and stays open
until an action answers it. Playwright's sync API waits for a call in a greenlet and runs handlers
in others, so a handler can raise an exception in the greenlet that waits.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

from greenlet import getcurrent
from playwright.sync_api import BrowserContext, Dialog, Error
from playwright.sync_api import Page as PlaywrightPage

from agentkv_env.actions import Action
from agentkv_env.errors import ActionFailed
from agentkv_env.keys import normalize
from agentkv_env.named_secrets import names_in
from agentkv_env.page import Box, Node, Page
from agentkv_env.sanitize import clean
from agentkv_env.serialize import MAX_NAME

Dialogs = Literal["ask", "accept", "dismiss"]
"""What answers the dialogs of a page that offer a choice: actions, or always the same answer."""
DIALOGS: tuple[Dialogs, ...] = get_args(Dialogs)

MAX_NOTICE = 200
"""Characters of a dialog's message in a notice."""
MAX_MESSAGE = 2000
"""Characters of a dialog's message while it is open; the rest is counted."""
MAX_LINES = 40
"""Lines of such a message."""
MAX_BEHIND = 40
"""Elements of the page that are listed as covered by a dialog."""
MAX_IN_A_ROW = 10
"""Dialogs that are kept open although no page was read in between; later ones are dismissed."""
MAX_AT_ONCE = 50
"""Dialogs answered at once although no page was read in between; then the script that opens them
is ended."""
OWNER_S = 0.2
"""Time for the owner of a page to answer a dialog before it is kept open."""
POLL_MS = 4

_LEAVING = "Leave this page? What was entered on it may be lost."
_NOWHERE = Box(0, 0, 0, 0)  # it covers the page, and belongs to no place of it


class DialogOpened(Exception):
    """Raised out of a browser call that cannot end while a dialog is open."""


LAST_STEP = suppress(DialogOpened)
"""Surrounds the last step of an action: a dialog that it opens leaves nothing undone."""


@dataclass(eq=False)
class _Open:
    """A dialog that waits for its answer."""

    dialog: Dialog
    text: str
    """prompt: the answer so far."""
    number: int | None = None
    """Number of its first element; None if nobody has read it."""


class PageDialogs:
    """Answers the dialogs of one browser context, or keeps them open for an action.

    Alerts have nothing to choose and are answered at once. So is any dialog that opens while no
    call of `asking` is in progress, because whoever calls the page then does not expect it: it is
    dismissed, or, if it would keep the page from being left, accepted.
    """

    def __init__(
        self,
        context: BrowserContext,
        *,
        dialogs: Dialogs,
        strict: bool,
        owns_context: bool,
        may_show: Callable[[str], bool],
        end_script: Callable[[PlaywrightPage], None],
        notices: list[str],
    ) -> None:
        """Prepare; nothing is answered before `install` and `watch`.

        Args:
            strict: answer as VisualWebArena's browser was set up to, whatever `dialogs` says.
            owns_context: False for a caller's context, whose own handlers come first.
            may_show: returns whether an agent may read pages of an address.
            end_script: ends the script that a page runs, while a dialog may be open.
            notices: gets a notice for each dialog that no action answered.

        Raises:
            ValueError: `dialogs` is none of `DIALOGS`.
        """
        if dialogs not in DIALOGS:
            raise ValueError(f"dialogs is {dialogs!r}; expected one of: {', '.join(DIALOGS)}")
        self._context = context
        self._setting = dialogs
        self._strict = strict
        self._owns_context = owns_context
        self._may_show = may_show
        self._end_script_of = end_script
        self._notices = notices
        self._pages: list[PlaywrightPage] = []
        self._waiting: Any = None  # the greenlet that a dialog interrupts
        self._is_answering = False
        self._open: list[_Open] = []
        self._closed: Dialog | None = None  # the last one that was closed
        self._num_in_a_row = 0
        self._num_at_once = 0
        self._is_ending = False  # True while a script is being ended

    def install(self) -> None:
        """Answer the dialogs of a context of ours."""
        if self._owns_context:
            self._listen(self._context)

    def watch(self, page: PlaywrightPage) -> None:
        """Answer the dialogs of a page in a caller's context, after the handlers of its owner."""
        if not self._owns_context:
            self._pages.append(page)
            self._listen(page)

    def release(self) -> None:
        """Dismiss what is open and remove all handlers from a caller's context."""
        self.dismiss()
        for page in self._pages:
            if not page.is_closed():
                page.remove_listener("dialog", self._on_dialog)
                page.remove_listener("dialogclosed", self._on_closed)

    def _listen(self, where: BrowserContext | PlaywrightPage) -> None:
        where.on("dialog", self._on_dialog)
        where.on("dialogclosed", self._on_closed)

    @contextmanager
    def asking(self, asks: bool = True) -> Iterator[None]:
        """Within the block, a dialog that opens is kept open and raises `DialogOpened`.

        With `asks=False` it is answered at once instead, also inside another such block.
        """
        before, self._waiting = self._waiting, getcurrent() if asks else None
        try:
            yield
        finally:
            self._waiting = before

    @property
    def is_open(self) -> bool:
        """True while a dialog waits for its answer."""
        self._open = [each for each in self._open if not _is_gone(each.dialog)]
        return bool(self._open)

    @property
    def page(self) -> PlaywrightPage | None:
        """The page of the open dialog; None for a window that has yet to appear."""
        return self._open[0].dialog.page

    def forget_row(self) -> None:
        """Note that a page was read, so that its next dialogs are kept open again."""
        self._num_in_a_row = self._num_at_once = 0

    def show(self, take_numbers: Callable[[int], int], behind: Page | None) -> tuple[Node, ...]:
        """Return the open dialog as the nodes of a page, and what it covers.

        Args:
            take_numbers: returns the first of this many consecutive numbers that no element has.
            behind: the page that the dialog covers, if it was read.
        """
        shown = self._open[0]
        if shown.number is None:
            shown.number = take_numbers(3 if shown.dialog.type == "prompt" else 2)
        field, accept, dismiss = _numbers(shown)
        yes, no = _buttons(shown.dialog)
        return (
            *_message(shown.dialog),
            *([] if field is None else [_element("textbox", "Answer", field, clean(shown.text))]),
            _element("button", yes, accept),
            _element("button", no, dismiss),
            *_covered(behind),
        )

    def answer(self, action: Action) -> bool:
        """Carry out `action` on the open dialog; return whether this closed it.

        Raises:
            ActionFailed: the dialog does not take the action; the message says which it takes.
        """
        shown = self._open[0]
        if shown.number is None:
            raise ActionFailed(f"{action.kind} was not done, because a dialog opened first")
        field, accept, dismiss = _numbers(shown)
        key = normalize(action.key) if action.kind == "press" else ""
        match action.kind, action.element_id:
            case (("type" | "clear"), int(number)) if number == field:
                if names_in(action.text):
                    raise ActionFailed("a dialog takes no secret; type it into a text field")
                shown.text = " ".join(action.text.splitlines())
                if action.kind == "clear" or not action.enter:
                    return False
                return self._close(shown, accepted=True)
            case "click", int(number) if number == field:
                return False
            case "click", int(number) if number in (accept, dismiss):
                return self._close(shown, accepted=number == accept)
            case "press", _ if key in ("Enter", "Escape"):
                return self._close(shown, accepted=key == "Enter")
        yes, no = _buttons(shown.dialog)
        how = f"click [{accept}] ({yes}) or click [{dismiss}] ({no})"
        if field is not None:
            how = f"type [{field}] [text] [1] or click [{dismiss}] ({no})"
        raise ActionFailed(f"a dialog is open, and all else waits until it is answered: {how}")

    def dismiss(self) -> None:
        """Answer what is open with no."""
        while self.is_open:
            shown = self._open[0]
            self._close(shown, accepted=False)
            self._tell(shown.dialog, accepted=False, why="it was not answered")

    def _on_dialog(self, dialog: Dialog) -> None:
        kind = dialog.type
        leaves = kind == "beforeunload"
        if kind == "alert" or self._strict:
            self._answer_now(dialog, accepted=kind != "prompt")
        elif self._setting != "ask":
            self._answer_now(dialog, accepted=self._setting == "accept")
        elif self._is_answered_by_owner(dialog):
            pass
        elif self._waiting is None and not self._is_answering:
            self._answer_now(dialog, accepted=leaves, why="it opened between two steps")
        elif self._num_in_a_row >= MAX_IN_A_ROW:
            self._answer_now(dialog, accepted=leaves, why=f"after {MAX_IN_A_ROW} others")
        elif dialog.page is not None and not self._may_show(dialog.page.url):
            self._answer_now(dialog, accepted=leaves, why="it is not on the allowed hosts")
        else:
            self._num_in_a_row += 1
            self._open.append(_Open(dialog, dialog.default_value))
            if not self._is_answering:
                self._waiting.throw(DialogOpened())

    def _is_answered_by_owner(self, dialog: Dialog) -> bool:
        """Give the owner's handlers, which may be coroutines, time; return if they answered."""
        if not self._owns_context and dialog.page is not None:
            until = time.monotonic() + OWNER_S
            while self._closed != dialog and time.monotonic() < until:
                dialog.page.wait_for_timeout(POLL_MS)
        return self._closed == dialog

    def _on_closed(self, dialog: Dialog) -> None:
        self._closed = dialog
        self._open = [each for each in self._open if each.dialog != dialog]

    def _answer_now(self, dialog: Dialog, *, accepted: bool, why: str = "") -> None:
        try:
            _answer(dialog, accepted, dialog.default_value)
        except Error:
            return  # its owner answered it, or its page is gone
        self._num_at_once += 1
        if self._num_at_once <= MAX_AT_ONCE:
            self._tell(dialog, accepted=accepted, why=why)
        elif dialog.page is not None:
            self._end_script(dialog.page)

    def _end_script(self, page: PlaywrightPage) -> None:
        """End the script that opens one dialog after another, so that the page answers again."""
        if self._is_ending:
            return
        self._is_ending = True
        try:
            self._end_script_of(page)
        except Error:
            return  # its page is gone
        finally:
            self._is_ending = False
        self._num_at_once = 0
        self._notices.append(
            f"the page opened more than {MAX_AT_ONCE} dialogs in a row: its script was ended"
        )

    def _close(self, shown: _Open, *, accepted: bool) -> bool:
        self._is_answering = True  # the next dialog may open before this call has ended
        try:
            _answer(shown.dialog, accepted, shown.text)
        except Error:
            pass  # the page has closed it, or is gone, which its next call tells
        finally:
            self._is_answering = False
            self._open = [each for each in self._open if each is not shown]
        return True

    def _tell(self, dialog: Dialog, *, accepted: bool, why: str = "") -> None:
        kind = dialog.type
        if kind == "beforeunload":
            if not accepted:
                self._notices.append("the page was not left: what was entered on it may be lost")
            return
        message = " ".join(dialog.message.split())[:MAX_NOTICE]
        reason = f" ({why})" if why else ""
        verb = "accepted" if accepted else "dismissed"
        self._notices.append(f"{kind} {verb}{reason}: {message}")


def answer_on(page: Page, *, accepted: bool, text: str) -> Action:
    """Return the action that answers the dialog of `page`, which `PageDialogs.show` has made.

    Args:
        text: what is entered into a prompt that is accepted.
    """
    own = [node for node in page.nodes if node.id is not None and "covered" not in node.states]
    *field, yes, no = own
    if field and accepted:
        return Action("type", element_id=field[0].id, text=text, enter=True)
    return Action("click", element_id=yes.id if accepted else no.id)


def _answer(dialog: Dialog, accepted: bool, text: str) -> None:
    if not accepted:
        dialog.dismiss()
    elif dialog.type == "prompt":
        dialog.accept(text)
    else:
        dialog.accept()


def _is_gone(dialog: Dialog) -> bool:
    return dialog.page is not None and bool(dialog.page.is_closed())


def _numbers(shown: _Open) -> tuple[int | None, int, int]:
    """Return the numbers of a prompt's field, of the button that accepts, and of the other one."""
    assert shown.number is not None
    is_prompt = shown.dialog.type == "prompt"
    accept = shown.number + is_prompt
    return shown.number if is_prompt else None, accept, accept + 1


def _buttons(dialog: Dialog) -> tuple[str, str]:
    return ("Leave", "Stay") if dialog.type == "beforeunload" else ("OK", "Cancel")


def _message(dialog: Dialog) -> list[Node]:
    """Return the message as one `dialog` node, or, if it is long, as texts after such a node."""
    message = _LEAVING if dialog.type == "beforeunload" else dialog.message
    lines = [line for each in message[:MAX_MESSAGE].splitlines() if (line := clean(each))]
    if len(lines) <= 1 and len(message) <= MAX_NAME:
        return [Node("text", "dialog", " ".join(lines), _NOWHERE)]
    if len(message) > MAX_MESSAGE:
        lines.append(f"... ({len(message) - MAX_MESSAGE} more characters)")
    texts = [*lines[: MAX_LINES - 1], " ".join(lines[MAX_LINES - 1 :])]
    return [Node("text", "dialog", "", _NOWHERE)] + [
        Node("text", "text", each, _NOWHERE) for each in texts if each
    ]


def _covered(page: Page | None) -> list[Node]:
    """Return the first elements of a page, as covered: they were read before, texts and all."""
    elements = [] if page is None else [node for node in page.nodes if node.id is not None]
    return [
        replace(node, states=tuple(dict.fromkeys((*node.states, "covered"))), uses=())
        for node in elements[:MAX_BEHIND]
    ]


def _element(role: str, name: str, number: int, value: str = "") -> Node:
    return Node("element", role, name, _NOWHERE, id=number, value=value)
