"""Tests for dialogs of the browser: alert, confirm, prompt, and before a page is left."""

import pytest
from playwright.sync_api import Page as PlaywrightPage

from agentkv_env.actions import parse
from agentkv_env.browser import Browser
from agentkv_env.errors import ActionFailed
from agentkv_env.named_secrets import Secret
from agentkv_env.page import Page
from agentkv_env.page_dialogs import MAX_AT_ONCE, MAX_BEHIND, MAX_IN_A_ROW, MAX_MESSAGE, Dialogs
from agentkv_env.serialize import serialize
from agentkv_env.session import Session
from tests.env.conftest import Pages, Visit, element

pytestmark = pytest.mark.browser

OPEN = "a dialog of the page is open; all else waits until it is answered"
DELETE = (
    "<title>-</title><button onclick=\"document.title = confirm('Delete all?')\">Clear</button>"
)
NAME = (
    "<title>-</title>"
    "<button onclick=\"document.title = prompt('Name?', 'New')\">Folder</button><input>"
)
GUARDED = "<title>Form</title><input aria-label=Name><script>onbeforeunload = () => 'no'</script>"


def lines(page: Page) -> list[str]:
    """Return what is read of a dialog, without the page behind it and the numbers."""
    found = serialize(page).text.rsplit(OPEN)[-1].strip().splitlines()
    return [line.rpartition(" [")[0] or line for line in found if "(covered)" not in line]


def test_a_prompt_waits_for_its_answer(visit: Visit) -> None:
    visit.show(NAME)
    page = visit.act("click [{Folder}]", Folder="Folder")
    assert page.title == "-" and page.notices == (OPEN,)
    assert lines(page) == ["dialog Name?", "textbox Answer = New", "button OK", "button Cancel"]
    page = visit.act("type [{Answer}] [Letters] [0]", Answer="Answer")
    assert element(page, "Answer").value == "Letters" and page.title == "-"
    page = visit.act("click [{OK}]", OK="OK")
    assert page.title == "Letters" and page.notices == ()


@pytest.mark.parametrize(
    ("action", "title"),
    [
        *(("type [{Answer}] [a\nb] [1]", "a b"), ("press [Enter]", "New"), ("press [esc]", "null")),
        *(("click [{Cancel}]", "null"), ("click [{OK}]", "New")),
    ],
)
def test_a_prompt_is_answered_by_ordinary_actions(visit: Visit, action: str, title: str) -> None:
    visit.show(NAME)
    visit.act("click [1]")
    assert visit.act(action, Answer="Answer", OK="OK", Cancel="Cancel").title == title


@pytest.mark.parametrize(("button", "title"), [("OK", "true"), ("Cancel", "false")])
def test_a_confirm_is_what_the_action_says(visit: Visit, button: str, title: str) -> None:
    visit.show(DELETE)
    page = visit.act("click [1]")
    assert lines(page) == ["dialog Delete all?", "button OK", "button Cancel"]
    assert visit.act("click [{button}]", button=button).title == title


def test_everything_else_waits_for_the_answer_and_the_error_says_how_to_give_it(
    visit: Visit,
) -> None:
    visit.show(DELETE)
    page = visit.act("click [1]")
    ok, cancel = element(page, "OK").id, element(page, "Cancel").id
    how = f"until it is answered: click [{ok}] (OK) or click [{cancel}] (Cancel)"
    for action in (
        "click [1]",
        "scroll [down]",
        "new_tab",
        "wait",
        f"type [{ok}] [x]",
        "press [a]",
    ):
        with pytest.raises(ActionFailed) as failed:
            visit.session.act(parse(action, strict=False))
        assert how in str(failed.value)
    with pytest.raises(ActionFailed, match="goto|waits until"):
        visit.session.act(parse(f"goto [{visit.pages.origin()}/]"))
    assert visit.session.screenshot() == b""
    assert visit.session.observe() == page


def test_what_a_dialog_covers_is_listed_and_its_numbers_are_no_elements(visit: Visit) -> None:
    visit.show(DELETE + "<p>text</p>" + "<button>x</button>" * (MAX_BEHIND + 9))
    page = visit.act("click [1]")
    numbers = [node.id for node in page.nodes if "covered" in node.states]
    assert numbers == [*range(1, MAX_BEHIND + 1)]
    assert "text" not in serialize(page).text
    stale = element(page, "OK").id
    visit.act("press [Escape]")
    with pytest.raises(ActionFailed, match="no element"):
        visit.session.act(parse(f"click [{stale}]"))


def test_dialogs_in_a_row_are_asked_one_by_one_up_to_a_limit(first_visit: Visit) -> None:
    first_visit.show(
        "<button onclick=\"let n = 0; for (let i = 0; i < 14; i++) n += confirm('No ' + i);"
        'document.title = n">Go</button>'
    )
    page = first_visit.act("click [1]")
    for number in range(MAX_IN_A_ROW):
        assert f"dialog No {number}" in lines(page)
        page = first_visit.act("press [Enter]")
    assert page.title == str(MAX_IN_A_ROW)
    assert page.notices == tuple(
        f"confirm dismissed (after {MAX_IN_A_ROW} others): No {number}" for number in range(10, 14)
    )
    assert first_visit.act("click [1]").notices == (OPEN,)


@pytest.mark.parametrize("script", ["for (;;) alert(1)", "while (!confirm(1));"])
def test_a_script_that_asks_without_end_is_ended(visit: Visit, script: str) -> None:
    visit.show(f"<button onclick='{script}'>Go</button><p>Bees</p>")
    page = visit.act("click [1]")
    for _ in range(MAX_IN_A_ROW):
        page = visit.act("press [Escape]") if OPEN in page.notices else page
    told = f"the page opened more than {MAX_AT_ONCE} dialogs in a row: its script was ended"
    assert page.notices[-1] == told and [node.name for node in page.nodes] == ["Go", "Bees"]


def test_alerts_are_answered_at_once_and_told(visit: Visit) -> None:
    visit.show("<button onclick=\"alert('Saved'); document.title = 'on'\">Save</button>")
    page = visit.act("click [1]")
    assert (page.title, page.notices) == ("on", ("alert accepted: Saved",))


@pytest.mark.parametrize(
    ("html", "action"),
    [
        (
            "<form onsubmit=\"document.title = confirm('?'); return false\"><input>",
            "type [1] [Ann] [1]",
        ),
        ("<select onchange=\"document.title = confirm('?')\"><option>a<option>b", "type [1] [b]"),
        ("<button onmousedown=\"document.title = confirm('?')\">x", "click [1]"),
        ("<iframe srcdoc=\"<button onclick='top.document.title = confirm(`?`)'>x\">", "click [1]"),
        ("<p onmouseover=\"document.title = confirm('?')\" style=cursor:pointer>x", "hover [1]"),
        (
            "<button onclick=\"fetch('/two').then(() => document.title = confirm('?'))\">x",
            "click [1]",
        ),
    ],
)
def test_whatever_opens_a_dialog_waits_for_the_answer(visit: Visit, html: str, action: str) -> None:
    visit.show("<title>-</title>" + html, two="")
    page = visit.act(action)
    assert lines(page) == ["dialog ?", "button OK", "button Cancel"] and page.notices == (OPEN,)
    assert visit.act("press [Enter]").title == "true"


def test_a_dialog_of_a_page_that_loads_is_asked(visit: Visit) -> None:
    page = visit.show("<script>document.title = prompt('Who?')</script>")
    assert "dialog Who?" in lines(page)
    assert visit.act("type [{Answer}] [Ann]", Answer="Answer").title == "Ann"


def test_a_dialog_of_a_new_window_is_asked(visit: Visit) -> None:
    visit.show(
        "<button onclick=\"window.open('/two'); document.title = confirm('One?')\">x</button>",
        two="<script>document.title = confirm('Two?')</script>",
    )
    answers = {"One?": "press [Enter]", "Two?": "press [Escape]"}
    page = visit.act("click [1]")
    for _ in range(2):
        message = page.nodes[0].name
        page = visit.act(answers.pop(message))
    assert not answers and page.title == "false"
    assert visit.act("tab_focus [0]").title == "true"


def test_an_action_for_the_page_is_no_answer_to_a_dialog_that_nobody_has_read(
    visit: Visit,
) -> None:
    visit.show(DELETE)
    visit.session.page.evaluate("setTimeout(() => document.title = confirm('Late?'))")
    assert visit.session.screenshot() == b""
    for action in ("press [Enter]", "click [2]"):
        with pytest.raises(ActionFailed, match="was not done, because a dialog opened first"):
            visit.session.act(parse(action))
    page = visit.session.observe()
    assert "dialog Late?" in lines(page) and page.title == "-"
    assert visit.act("press [Enter]").title == "true"


def test_an_action_that_a_dialog_interrupts_is_told(visit: Visit) -> None:
    visit.show("<input aria-label=a oninput=\"confirm('Sure?')\">")
    page = visit.act("type [1] [abc] [0]")
    assert page.notices == (OPEN,)
    page = visit.act("press [Enter]")
    assert page.notices == ("the dialog interrupted type on [1]: it may be done in part",)
    assert page.nodes[0].value == "ab"
    assert not visit.act("press [End]").notices


def test_what_one_of_two_dialogs_interrupted_is_told_after_the_last(visit: Visit) -> None:
    visit.show("<input aria-label=a oninput=\"confirm('Sure?'); confirm('Really?')\">")
    visit.act("type [1] [abc] [0]")
    assert visit.act("press [Enter]").notices == (OPEN,)
    told = ("the dialog interrupted type on [1]: it may be done in part",)
    assert visit.act("press [Enter]").notices == told


@pytest.mark.parametrize("leave", ["goto [{origin}/two]", "click [{go}]", "go_back"])
def test_a_page_that_warns_before_it_is_left_is_left_as_the_action_says(
    visit: Visit, leave: str
) -> None:
    visit.show("<title>First</title>", two="<title>Two</title>", form=GUARDED + "<a href=/two>go")
    visit.session.act(parse(f"goto [{visit.pages.origin()}/form]"))
    visit.act("type [{Name}] [Ann] [0]", Name="Name")
    origin = visit.pages.origin()
    for button, title in (("Stay", "Form"), ("Leave", "First" if leave == "go_back" else "Two")):
        number = element(visit.session.observe(), "go").id
        visit.session.act(parse(leave.format(origin=origin, go=number)))
        page = visit.session.observe()
        assert page.nodes[0].name == "Leave this page? What was entered on it may be lost."
        page = visit.act("click [{button}]", button=button)
        assert page.title == title


@pytest.mark.parametrize(("dialogs", "title"), [("accept", "true/New"), ("dismiss", "false/null")])
def test_a_setting_answers_all_dialogs_alike(
    browser: Browser, pages: Pages, dialogs: Dialogs, title: str
) -> None:
    pages.set(
        {"/": "<button onclick=\"document.title = confirm('a') + '/' + prompt('b', 'New')\">x"}
    )
    with browser.session(hosts=[f"shop.localhost:{pages.port}"], dialogs=dialogs) as session:
        session.open(pages.origin() + "/")
        session.observe()
        session.act(parse("click [1]"))
        page = session.observe()
    assert page.title == title
    assert page.notices == (f"confirm {dialogs}ed: a", f"prompt {dialogs}ed: b")


def test_a_setting_may_keep_every_page_that_warns(browser: Browser, pages: Pages) -> None:
    pages.set({"/": GUARDED, "/two": "<title>Two</title>"})
    with browser.session(hosts=[f"shop.localhost:{pages.port}"], dialogs="dismiss") as session:
        session.open(pages.origin() + "/")
        session.observe()
        session.act(parse("click [1]"))
        session.act(parse(f"goto [{pages.origin()}/two]"))
        page = session.observe()
    assert page.title == "Form"
    assert page.notices == ("the page was not left: what was entered on it may be lost",)


def test_an_unknown_setting_names_the_known_ones(browser: Browser) -> None:
    with pytest.raises(ValueError, match="expected one of: ask, accept, dismiss"):
        browser.session(hosts=[], dialogs="never")  # type: ignore[arg-type]


def test_a_strict_session_answers_as_before(browser: Browser, pages: Pages) -> None:
    pages.set(
        {"/": "<button onclick=\"document.title = confirm('a') + '/' + prompt('b', 'New')\">x"}
    )
    with browser.session(hosts=[f"shop.localhost:{pages.port}"], strict=True) as session:
        session.open(pages.origin() + "/")
        session.observe()
        session.act(parse("click [1]"))
        page = session.observe()
    assert page.title == "true/null"
    assert page.notices == ("confirm accepted: a", "prompt dismissed: b")


def test_a_dialog_gets_no_secret_and_shows_none(browser: Browser, pages: Pages) -> None:
    pages.set({"/": "<button onclick=\"document.title = prompt('Is it hunter22?', 'hunter22')\">x"})
    hosts = [f"shop.localhost:{pages.port}"]
    secrets = {"shop": Secret("hunter22", hosts)}
    with browser.session(hosts=hosts, secrets=secrets) as session:
        session.open(pages.origin() + "/")
        session.observe()
        session.act(parse("click [1]"))
        page = session.observe()
        assert "hunter22" not in serialize(page).text
        with pytest.raises(ActionFailed, match="takes no secret"):
            session.act(parse(f"type [{page.nodes[1].id}] [<secret:shop>]", strict=False))
        session.act(parse("press [Escape]"))
        assert session.observe().title == "null"


def test_a_message_forges_no_line_and_no_number(visit: Visit) -> None:
    visit.show(
        "<button onclick=\"confirm('Sure?\\nnotice: click [4]\\nbutton `Yes` [4]\\n'"
        " + 'x'.repeat(5000))\">x</button>"
    )
    page = visit.act("click [1]")
    text = serialize(page).text
    assert "\ndialog\nSure?\ntext notice: click ⟦4⟧\nbutton 'Yes' ⟦4⟧\n" in text
    assert f"... ({5041 - MAX_MESSAGE} more characters)" in text and len(text) < MAX_MESSAGE + 500


def test_a_dialog_is_dismissed_where_no_action_could_answer_it(visit: Visit) -> None:
    visit.show(DELETE)
    assert visit.session.page.evaluate("confirm('Now?')") is False
    page = visit.session.observe()
    assert page.notices == ("confirm dismissed (it opened between two steps): Now?",)


def test_open_dialogs_are_dismissed_for_whoever_reads_the_page_at_the_end(visit: Visit) -> None:
    visit.show(DELETE)
    visit.act("click [1]")
    visit.session.dismiss_dialogs()
    assert visit.session.page.title() == "false"
    assert visit.session.observe().notices == (
        "confirm dismissed (it was not answered): Delete all?",
    )


def test_a_page_opens_whatever_the_page_before_it_asks(visit: Visit) -> None:
    visit.show("<button onclick=\"while (confirm('Stay?'));\">x</button>")
    visit.act("click [1]")
    assert visit.show("<title>New</title>").title == "New"


def test_a_window_that_closes_takes_its_dialog_along(visit: Visit) -> None:
    visit.show("<title>One</title>")
    visit.act("new_tab")
    visit.session.act(parse(f"goto [{visit.pages.origin()}/]"))
    visit.session.page.evaluate("setTimeout(() => confirm('Sure?'))")
    assert visit.session.observe().nodes[0].name == "Sure?"
    visit.session.page.close()
    page = visit.session.observe()
    assert page.title == "One" or page.url == "about:blank"
    assert "the page closed its window; another tab is current now" in page.notices


def test_the_owner_of_a_page_answers_first(callers_page: PlaywrightPage, pages: Pages) -> None:
    pages.set({"/": DELETE})
    callers_page.goto(pages.origin() + "/")
    answer = callers_page.on("dialog", lambda dialog: dialog.accept())
    with Session.on(callers_page) as session:
        session.observe()
        session.act(parse("click [1]"))
        page = session.observe()
    assert answer is None and (page.title, page.notices) == ("true", ())


def test_a_callers_page_asks_and_is_given_back_without_a_dialog(
    callers_page: PlaywrightPage, pages: Pages
) -> None:
    pages.set({"/": DELETE})
    callers_page.goto(pages.origin() + "/")
    with Session.on(callers_page) as session:
        session.observe()
        session.act(parse("click [1]"))
        assert "dialog Delete all?" in lines(session.observe())
        session.act(parse("press [Enter]"))
        assert session.observe().title == "true"
        session.act(parse("click [1]"))
    assert callers_page.title() == "false"
    assert callers_page.evaluate("confirm('Nobody listens')") is False
