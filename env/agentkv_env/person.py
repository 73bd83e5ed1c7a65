"""What a person does in the tabs of a session, as the actions of an agent.

Our script (scripts/person.js) hears each event before the page does, and reads the page then. Here
an event becomes an action on that page, or is missed, because an agent has no such action or sees
no such element. What a page's script does is no event.
"""

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from playwright.sync_api import Error
from playwright.sync_api import Page as PlaywrightPage

from agentkv_env.actions import Action, Point
from agentkv_env.errors import BrowserGone, StillLoading, TabClosed
from agentkv_env.histories import Histories
from agentkv_env.named_secrets import NamedSecrets, names_in, without_names
from agentkv_env.page import Page
from agentkv_env.page_dialogs import DialogOpened, PageDialogs, answer_on
from agentkv_env.reader import Reader
from agentkv_env.tab import Tab
from agentkv_env.tabs import Tabs

RELEASE_S = 1.0
"""A press without a release counts as a click after this time."""
_NO_NUMBER = "the agent sees no element there that it could act on"
_WHY = {
    "filled": "it was filled in at once, as browsers do; type the text",
    "upload": "files are not recorded",
    "elsewhere": "the browser opened it in a new tab; click it plainly",
}
_PASSWORD = "passwords are not recorded; give it with --secret NAME=env:VARIABLE and type it again"
Message = dict[str, Any]  # as scripts/person.js tells it


class PersonLeft(Exception):
    """The person has closed the last tab, or the browser."""


@dataclass(frozen=True, slots=True)
class Done:
    """Something that the person did."""

    page: Page
    """The page before it had an effect, as an agent reads it."""
    action: Action
    num_replaced: int = 0
    """Number of the actions before that it takes the place of: a text that was gone on with, or the
    presses of a double click."""


@dataclass(frozen=True, slots=True)
class Missed:
    """Something that the person did and an agent cannot do."""

    what: str
    reason: str


PersonEvent = Done | Missed


class Person:
    """Hears what a person does in the tabs of one session; use `Session.watch_person`.

    Attributes:
        passwords: texts that the person typed into password fields, apart from named secrets.
    """

    def __init__(
        self,
        tabs: Tabs,
        reader: Reader,
        dialogs: PageDialogs,
        secrets: NamedSecrets,
        *,
        observe_dialog: Callable[[], Page],
        to_public: Callable[[str], str],
        may_show: Callable[[str], bool],
    ) -> None:
        self._tabs = tabs
        self._reader = reader
        self._dialogs = dialogs
        self._secrets = secrets
        self._observe_dialog = observe_dialog
        self._to_public = to_public
        self._may_show = may_show
        self.passwords: set[str] = set()
        self._queue: deque[tuple[Tab, Message]] = deque()
        self._arrived: list[Tab] = []  # tabs that nobody has looked at yet
        self._histories = Histories()
        self._pages: dict[Tab, Page] = {}  # the last page of each tab
        self._focus: tuple[Page, int] | None = None  # a press on a field that is still as it was
        self._last: tuple[Done, ...] = ()  # the last two actions that the next event may go on with
        self._is_settled = False
        self._answers: deque[tuple[bool, str]] = deque()  # of dialogs: accepted, and the text
        self._here = tabs.current  # the tab that the person is in
        tabs.on_attached = self._listen
        for tab in tabs.all:
            self._listen(tab)

    def _listen(self, tab: Tab) -> None:
        tab.hear_person(lambda message: self._queue.append((tab, message)))
        self._histories.follow(tab)
        tab.on_dialog_closed = lambda accepted, text: self._answers.append((accepted, text))
        self._arrived.append(tab)

    @property
    def page(self) -> Page:
        """The page that was read last."""
        return self._pages[self._here]

    @property
    def is_settled(self) -> bool:
        """False if the page after the last action could not be read."""
        return self._is_settled

    def begin(self) -> None:
        """Read the first page; what happened before counts as nothing."""
        self._pump(1)
        self._queue.clear()
        self._arrived.clear()
        for tab in self._tabs.all:
            self._histories.note(tab)
        self._read()

    def wait(self, seconds: float) -> list[PersonEvent]:
        """Wait for the person, and return what they have done since the last call.

        Raises:
            PersonLeft: all tabs are closed, or the browser is; nothing more can happen.
        """
        self._pump(1000 * seconds)
        events = list(self._take())
        if not self._queue:
            events += self._look_around()
        if all(tab.page.is_closed() for tab in self._tabs.all) or not self._tabs.is_alive:
            if not events:
                raise PersonLeft
        return events

    def finish(self) -> list[PersonEvent]:
        """Return what the person has begun and not finished, and read the last page.

        The scrolls that an agent needs to see what the person sees last are among the events.
        """
        tab = self._here
        if self._dialogs.is_open:
            events = list(self._take())
            self._pages[tab] = self._queue.popleft()[1]["page"]
            self._is_settled = True
            return events
        with suppress(BrowserGone, Error, StillLoading), tab.guard():
            tab.script.call("rest")
            self._pump(1)
        return list(self._take())

    # ---- waiting

    def _pump(self, ms: float) -> None:
        """Let the browser tell what has happened."""
        page = self._open_page()
        if page is None:
            return
        try:
            with self._dialogs.asking():
                page.wait_for_timeout(ms)
        except DialogOpened:
            self._note_dialog()
        except Error:
            pass  # the page was closed meanwhile

    def _open_page(self) -> PlaywrightPage | None:
        tabs = (self._tabs.current, *self._tabs.all)
        return next((tab.page for tab in tabs if not tab.page.is_closed()), None)

    def _settle(self, tab: Tab) -> None:
        """Wait for the effect of an action in `tab`, as a session does, and read the page."""
        self._is_settled = False
        if self._dialogs.is_open:
            return  # the page waits for the answer
        try:
            with self._dialogs.asking(), tab.guard():
                tab.wait_idle()
                self._tabs.follow_popup(tab)
                self._tabs.current.wait_late()
        except DialogOpened:
            self._note_dialog()
        except (TabClosed, Error):
            pass
        # windows that the action opened are no news
        self._arrived = [each for each in self._arrived if not each.is_popup]
        if not self._dialogs.is_open:
            for each in self._tabs.all:
                self._histories.note(each)
        self._drop_closed()
        self._read()

    def _read(self) -> None:
        """Read the page of the current tab, in which the person is from now on."""
        tab = self._here = self._tabs.current
        if tab.page.is_closed() or self._dialogs.is_open:
            return
        try:
            with self._dialogs.asking():
                self._pages[tab] = self._reader.read()
            self._dialogs.forget_row()
            self._is_settled = True
        except DialogOpened:
            self._note_dialog()
        except (TabClosed, Error):
            pass

    def _drop_closed(self) -> bool:
        """Forget closed tabs, unless all are; return whether the current one was closed."""
        if all(tab.page.is_closed() for tab in self._tabs.all):
            return False
        is_current = self._tabs.current.page.is_closed()
        self._tabs.drop_closed()
        return is_current

    # ---- events

    def _take(self) -> Iterator[PersonEvent]:
        while self._queue:
            tab, message = self._queue[0]
            if message["kind"] == "dialog" and self._dialogs.is_open:
                return  # the person has yet to answer
            self._queue.popleft()
            yield from self._handle(tab, message)

    def _handle(self, tab: Tab, message: Message) -> Iterator[PersonEvent]:
        kind = message["kind"]
        if kind == "dialog":
            yield from self._take_answer(message["page"])
            return
        if kind in ("release", "double", "shown"):
            actions = [each.action for each in self._last]
            if kind == "double" and [each.kind for each in actions] == ["click"] * 2:
                double = replace(actions[0], kind="double_click")
                if actions[0] == actions[1]:
                    yield self._after(Done(self._last[0].page, double, num_replaced=2))
            elif kind == "shown" and tab is not self._here and tab in self._tabs.all:
                yield from self._change_tab(tab)
            return
        if tab is not self._here and tab in self._tabs.all:
            yield from self._change_tab(tab)
        match kind:
            case "press":
                yield from self._press(tab, message)
            case "right":
                yield from self._on_element(tab, message, partial(Action, "right_click"))
            case "write":
                yield from self._write(tab, message)
            case "focus":
                if message["id"] is not None:
                    self._focus = self._pages_of(tab, message)[-1][0], message["id"]
            case "key":
                if message["before"] is not None:
                    nested = {**message["before"], "isMain": message["isMain"]}
                    yield from self._write(tab, {**nested, "nextId": message["nextId"]})
                yield from self._steps(tab, message, Action("press", key=message["key"]))
            case "history":
                yield from self._go(tab, message)
            case "rest":
                *scrolls, (page, _) = self._pages_of(tab, message)
                yield from self._scrolls(scrolls)
                self._pages[tab] = page
                self._is_settled = True
            case "missed":
                yield Missed(message["said"], _WHY[message["why"]])

    def _press(self, tab: Tab, message: Message) -> Iterator[PersonEvent]:
        said = message["said"]
        if self._is_drag(tab):
            yield from self._miss(tab, f"a drag from {said}", "drags are not recorded")
            return
        if message["elsewhere"]:
            yield from self._miss(tab, said, _WHY["elsewhere"])
            return
        point = message["point"]
        at = None if point is None else Point(point[0], point[1], "%")
        yield from self._on_element(tab, message, partial(Action, "click", point=at))

    def _miss(self, tab: Tab, what: str, reason: str) -> Iterator[PersonEvent]:
        """Tell that something is not recorded, and wait for its effect."""
        self._last = ()
        yield Missed(what, reason)
        self._settle(tab)

    def _is_drag(self, tab: Tab) -> bool:
        """Wait for the release of the mouse, and return whether it was dragged before."""
        for _ in range(round(RELEASE_S / 0.02)):
            if self._queue:
                break
            self._pump(20)
            if self._dialogs.is_open or tab.page.is_closed() or self._histories.has_moved(tab):
                break
        if self._queue and self._queue[0][1]["kind"] == "release":
            return bool(self._queue.popleft()[1]["isDrag"])
        return False

    def _on_element(
        self, tab: Tab, message: Message, make: Callable[..., Action]
    ) -> Iterator[PersonEvent]:
        if message["id"] is not None:
            yield from self._steps(tab, message, make(element_id=message["id"]))
            return
        (page, _), *_ = self._pages_of(tab, message)
        self._settle(tab)
        after = self._pages.get(self._here)
        if self._queue and "readings" in self._queue[0][1]:  # the person went on at once
            after = self._pages_of(*self._queue[0])[0][0]
        if after is None or _shown(after) != _shown(page):  # else it was a press on nothing
            yield Missed(f"a press on {message['said']}", _NO_NUMBER)

    def _write(self, tab: Tab, message: Message) -> Iterator[PersonEvent]:
        id, text = message["id"], message["text"]
        what = f"the text in {message['said']}"
        if message["hides"]:
            hidden = self._secrets.masks.mask(text)
            if not names_in(hidden) or without_names(hidden):
                self.passwords.add(text)
                yield from self._miss(tab, what, _PASSWORD)
                return
        if id is None:
            yield from self._miss(tab, what, _NO_NUMBER)
            return
        text = self._secrets.masks.mask(text)
        if message["several"]:
            action = Action("choose", element_id=id, items=tuple(message["options"]))
        elif message["options"] is not None:
            name = (message["options"] or [""])[0]
            action = Action("type", element_id=id, text=name, enter=False)
        elif text or message["enter"]:
            action = Action("type", element_id=id, text=text, enter=message["enter"])
        else:
            action = Action("clear", element_id=id)
        yield from self._steps(tab, message, action)

    def _go(self, tab: Tab, message: Message) -> Iterator[PersonEvent]:
        """Record a step in the history, if the keys or the mouse led to one."""
        before = self._histories.index(tab)
        *scrolls, (page, _) = self._pages_of(tab, message)
        self._pump(200)
        self._settle(tab)
        now = self._histories.index(tab)
        way = 1 if message["way"] == "forward" else -1
        if before is not None and now is not None and now - before == way:
            yield from self._scrolls(scrolls)
            yield self._after(Done(page, Action("go_back" if way < 0 else "go_forward")))

    def _steps(self, tab: Tab, message: Message, action: Action) -> Iterator[PersonEvent]:
        """Yield an action after what it needs, and wait for its effect."""
        *scrolls, (page, _) = self._pages_of(tab, message)
        if action.element_id is not None and page.element(action.element_id) is None:
            # an event in a frame of another origin, which changed since it was read
            yield from self._miss(tab, message["said"], _NO_NUMBER)
            return
        focus, self._focus = self._focus, None
        id = action.element_id
        if focus is not None and id is not None and focus[0].element(id) is None:
            # the press on the field has opened what was pressed next
            yield self._after(Done(focus[0], Action("click", element_id=focus[1])))
        elif hover := self._hover_before(page, id):
            yield self._after(hover)
        yield from self._scrolls(scrolls)
        last = self._last[-1] if self._last else None
        is_again = (
            last is not None
            and not scrolls
            and action.kind in ("type", "clear", "choose")
            and last.action.kind in ("type", "clear", "choose")
            and last.action.element_id == id
            and not (last.action.kind == "type" and last.action.enter)
            and last.page.url == page.url
        )
        if is_again and last is not None:
            page = last.page
        yield self._after(Done(page, action, num_replaced=int(is_again)))
        self._settle(tab)

    def _hover_before(self, page: Page, id: int | None) -> Done | None:
        """Return the hover that shows what is pressed on `page`, if the page before told of it."""
        before, node = self._pages.get(self._here), None if id is None else page.element(id)
        if before is None or node is None or before.url != page.url or before.element(node.id or 0):
            return None
        for each in before.nodes:
            if each.id is not None and node.name in each.reveals:
                return Done(before, Action("hover", element_id=each.id))
        return None

    def _scrolls(self, scrolls: list[tuple[Page, dict[str, Any] | None]]) -> Iterator[PersonEvent]:
        for page, scroll in scrolls:
            assert scroll is not None, "each reading but the last has its scroll"
            action = Action("scroll", direction=scroll["way"], element_id=scroll["area"])
            yield self._after(Done(page, action))

    def _after(self, done: Done) -> Done:
        self._last = (*self._last[-1:], done)
        return done

    def _pages_of(self, tab: Tab, message: Message) -> list[tuple[Page, dict[str, Any] | None]]:
        """Return the pages of a message, and the scroll that follows each."""
        if not message["isMain"] and tab in self._pages:  # a frame reads nothing but itself
            return [(self._pages[tab], None)]
        return [
            (
                self._reader.read_before(tab, reading["page"], message["nextId"]),
                reading.get("scroll"),
            )
            for reading in message["readings"]
        ]

    # ---- tabs and addresses

    def _change_tab(self, tab: Tab) -> Iterator[PersonEvent]:
        """Record that the person has gone to another tab."""
        left = self._tabs.current = self._here
        self._last, self._focus = (), None
        if not left.page.is_closed():
            self._read()
        if left in self._pages:
            yield Done(self._pages[left], Action("tab_focus", tab=self._tabs.all.index(tab)))
        self._tabs.current = self._here = tab
        self._arrived = [each for each in self._arrived if each is not tab]

    def _look_around(self) -> Iterator[PersonEvent]:
        """Find what the person did in the browser's own window: tabs and addresses."""
        if self._dialogs.is_open:
            return
        if self._drop_closed():
            yield Missed("a tab was closed", "a page can do that too; leave tabs open")
            self._last = ()
            self._read()
        arrived, self._arrived = self._arrived, []
        for tab in arrived:
            if tab in self._tabs.all and not tab.page.is_closed():
                yield from self._look_at_new(tab)
        for tab in self._tabs.all:
            if self._histories.has_moved(tab) and tab not in self._arrived:
                yield from self._look_at_history(tab)

    def _look_at_new(self, tab: Tab) -> Iterator[PersonEvent]:
        before = self._pages.get(self._here)
        if tab.is_popup or before is None:  # a window of the page's own accord
            self._histories.note(tab)
            self._tabs.current = tab
            self._read()
        elif not self._may_show(tab.page.url):  # a page of the browser, until an address is typed
            self._tabs.current = self._here
            self._arrived.append(tab)
        else:
            yield self._after(Done(before, Action("new_tab")))
            self._tabs.current = self._here = tab
            tabs = (*before.tabs, "about:blank")
            self._pages[tab] = Page("about:blank", "", (), tabs, len(before.tabs))
            self._histories.begin(tab)

    def _look_at_history(self, tab: Tab) -> Iterator[PersonEvent]:
        moved = self._histories.note(tab)
        if not moved:
            return
        url = moved.typed_url
        if moved.is_step:
            yield Missed(
                "the tab went back or forward",
                "a page can do that too; press Alt and an arrow key instead",
            )
        elif url not in ("", "about:blank") and self._may_show(url):
            if tab is not self._here:
                yield from self._change_tab(tab)
            if page := self._pages.get(tab):
                yield self._after(Done(page, Action("goto", url=self._to_public(url))))
        self._settle(tab)

    # ---- dialogs

    def _note_dialog(self) -> None:
        """Read the dialog that has opened; the person answers it in the browser."""
        self._answers.clear()
        message = {"kind": "dialog", "page": self._observe_dialog()}
        self._queue.append((self._here, message))

    def _take_answer(self, page: Page) -> Iterator[PersonEvent]:
        """Record the answer to the dialog of `page`, which is closed."""
        if not self._answers:
            self._pump(200)  # the answer follows
        if not self._answers:
            return
        accepted, text = self._answers.popleft()
        action = answer_on(page, accepted=accepted, text=text)
        yield self._after(Done(page, action))
        self._settle(self._here)


def _shown(page: Page) -> object:
    return page.url, page.title, page.nodes, page.tabs
