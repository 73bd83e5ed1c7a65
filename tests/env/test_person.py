"""What a person does in a browser, as the actions of an agent: real presses and real keys."""

from collections.abc import Iterator

import pytest

from agentkv_env.actions import render
from agentkv_env.browser import Browser
from agentkv_env.named_secrets import Secret
from agentkv_env.page import Page
from agentkv_env.person import Done, Missed, Person, PersonLeft
from agentkv_env.session import Session
from tests.env.conftest import Answer, Pages

pytestmark = pytest.mark.browser

PASSWORD = "correct horse battery"


class Watched:
    """A session in which a person acts, with real events."""

    def __init__(self, session: Session, pages: Pages) -> None:
        self.session, self.pages = session, pages
        self.person: Person = session.watch_person()
        self.done: list[Done] = []
        self.missed: list[Missed] = []

    def show(self, html: str, **others: Answer) -> None:
        self.pages.set({"/": html, **{f"/{name}": page for name, page in others.items()}})
        self.session.open(self.pages.origin() + "/")
        self.person.begin()

    def click(self, selector: str, **options: object) -> None:
        """Press the mouse in the middle of an element, wherever it is drawn now."""
        box = self.session.page.locator(selector).bounding_box()
        assert box is not None
        at = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
        self.session.page.mouse.click(*at, **options)  # type: ignore[arg-type]

    def type(self, text: str) -> None:
        self.session.page.keyboard.type(text)

    def press(self, key: str) -> None:
        self.session.page.keyboard.press(key)

    def actions(self) -> list[str]:
        """What the person has done since the last call."""
        seen, events = len(self.done), [*self.person.wait(0.1), *self.person.wait(0.05)]
        for event in events:
            if isinstance(event, Missed):
                self.missed.append(event)
            else:
                self.done.append(event)
        return [render(each.action) for each in self.done[seen:]]

    def names(self) -> list[str]:
        """The same, with the names of elements in place of their numbers."""
        seen, texts = len(self.done), self.actions()
        for number, done in enumerate(self.done[seen:]):
            if (id := done.action.element_id) is not None:
                name = f"[{page_name(done.page, id)}]"
                texts[number] = texts[number].replace(f"[{id}]", name, 1)
        return texts


def page_name(page: Page, id: int) -> str:
    node = page.element(id)
    assert node is not None, "the page before an action shows its element"
    return node.name


@pytest.fixture
def watched(browser: Browser, pages: Pages) -> Iterator[Watched]:
    hosts = [f"{name}.localhost:{pages.port}" for name in ("shop", "partner")]
    secrets = {"shop": Secret(PASSWORD, [hosts[0]])}
    with browser.session(hosts=hosts, viewport=(800, 600), secrets=secrets) as session:
        yield Watched(session, pages)


def test_a_press_on_a_part_of_a_link_is_a_click_on_the_page_before(watched: Watched) -> None:
    watched.show("<title>A</title><a href=/b><b>go <i>on</i></b></a>", b="<title>B</title>b")
    watched.click("i")
    assert watched.names() == ["click [go on]"]
    assert watched.done[0].page.title == "A" and watched.person.page.title == "B"


def test_a_press_on_a_label_is_a_click_on_its_hidden_box(watched: Watched) -> None:
    watched.show("<label><input type=checkbox style='display:none'><span>Gift wrap</span></label>")
    watched.click("span")
    assert watched.names() == ["click [Gift wrap]"]


def test_a_text_is_one_action_when_its_field_is_left_or_enter_is_pressed(watched: Watched) -> None:
    watched.show(
        "<form action=/b><input aria-label=Name><input aria-label=Town><button>go</button></form>",
        b="<title>B</title>b",
    )
    watched.click("[aria-label=Name]")
    watched.type("Adax")
    watched.press("Backspace")
    assert watched.actions() == [], "the person is still typing"
    watched.click("[aria-label=Town]")
    watched.type("Belwick")
    watched.press("Enter")
    assert watched.names() == ["type [Name] [Ada] [0]", "type [Town] [Belwick] [1]"]
    name, town = (done.page.element(done.action.element_id or 0) for done in watched.done)
    assert name is not None and town is not None
    assert (name.value, town.value) == ("", ""), "the page is that before the text"
    assert watched.person.page.title == "B"


def test_going_on_with_a_text_takes_the_place_of_what_was_typed(watched: Watched) -> None:
    watched.show("<input aria-label=Name><p>words</p>")
    for text in ("Ada", " B."):
        watched.click("input")
        watched.press("End")
        watched.type(text)
        watched.click("p")
        watched.actions()
    assert [done.num_replaced for done in watched.done] == [0, 1]
    assert watched.done[-1].action.text == "Ada B."
    assert watched.done[-1].page == watched.done[0].page


def test_options_of_lists_are_chosen_by_name(watched: Watched) -> None:
    watched.show("<select aria-label=Size><option>S<option>M<option>L</select><p>words</p>")
    watched.session.page.focus("select")
    watched.press("ArrowDown")
    watched.press("ArrowDown")
    watched.click("p")
    assert watched.names() == ["type [Size] [L] [0]"]
    assert watched.done[0].page.nodes[0].value == "S"


def test_a_new_line_in_a_text_of_several_lines_ends_nothing(watched: Watched) -> None:
    watched.show(
        "<textarea aria-label=Note></textarea><textarea aria-label=Chat></textarea><script>"
        "document.querySelectorAll('textarea')[1].onkeydown = e => {"
        " if (e.key === 'Enter') { e.preventDefault(); e.target.value = ''; } }</script>"
    )
    for name in ("Note", "Chat"):
        watched.click(f"[aria-label={name}]")
        watched.type("one")
        watched.press("Enter")
    watched.click("[aria-label=Note]")
    assert watched.names() == ["type [Note] [one\n] [0]", "type [Chat] [one] [1]"]


def test_keys_are_recorded_where_they_act(watched: Watched) -> None:
    watched.show(
        "<input aria-label=City><a href=#x>a link</a><script>"
        "document.querySelector('input').onkeydown = e => "
        "{ if (e.key === 'ArrowDown') e.preventDefault(); };"
        "addEventListener('keydown', e => { if (e.key === 'j') e.preventDefault(); });</script>"
    )
    watched.press("j")
    watched.press("k")
    watched.press("Escape")
    assert watched.actions() == ["press [j]", "press [Escape]"]
    watched.click("input")
    watched.type("Bel")
    watched.press("ArrowLeft")
    watched.press("ArrowDown")
    watched.press("Enter")
    assert watched.names() == ["type [City] [Bel] [0]", "press [ArrowDown]", "press [Enter]"]
    watched.session.page.focus("a")
    watched.press("Enter")
    assert watched.names() == ["click [a link]"]


def test_what_a_script_does_is_no_event(watched: Watched) -> None:
    watched.show(
        "<a id=a href=#x>link</a><input aria-label=Name><select><option>S<option>M</select><script>"
        "forge = () => { a.click(); const [i, s] = document.querySelectorAll('input,select');"
        "i.focus(); i.value = 'forged'; s.value = 'M';"
        "for (const [el, type] of [[i, 'beforeinput'], [i, 'input'], [i, 'change'], [s, 'input'],"
        " [s, 'change'], [i, 'focusout'], [a, 'pointerdown'], [a, 'pointerup'], [a, 'click']])"
        "  el.dispatchEvent(new PointerEvent(type, { bubbles: true, composed: true }));"
        "i.dispatchEvent(new KeyboardEvent('keydown', { key: 'Enter', bubbles: true }));"
        "for (const name of Object.getOwnPropertyNames(window))"
        "  if (name.startsWith('agentkv')) document.title = 'found ' + name;"
        "}</script>"
    )
    watched.session.page.evaluate("forge()")
    assert watched.actions() == [] and watched.missed == []
    assert "found" not in watched.session.page.title()
    watched.click("a")
    assert watched.names() == ["click [link]"]


def test_a_page_that_stops_events_hides_nothing(watched: Watched) -> None:
    watched.show(
        "<script>for (const type of ['pointerdown', 'mousedown', 'click'])"
        "addEventListener(type, e => e.stopImmediatePropagation(), true)</script><button>b</button>"
    )
    watched.click("button")
    assert watched.names() == ["click [b]"]


def test_the_recorded_page_is_what_the_person_saw(watched: Watched) -> None:
    """The page changes after it was read, and the person presses what is new at once."""
    watched.show(
        "<p>old</p><script>setTimeout(() => {"
        "document.body.innerHTML = '<button onclick=\"this.replaceWith(`after`)\">new</button>'"
        "}, 900)</script>"
    )
    assert [node.name for node in watched.person.page.nodes] == ["old"]
    watched.session.page.wait_for_selector("button")
    watched.click("button")
    assert watched.names() == ["click [new]"]
    assert [node.name for node in watched.done[0].page.nodes] == ["new"]
    assert [node.name for node in watched.person.page.nodes] == ["after"]


def test_a_press_on_what_has_no_number_is_missed_only_if_it_has_an_effect(watched: Watched) -> None:
    watched.show(
        "<p>words</p><h1>Head</h1><script>document.addEventListener('mousedown', e => {"
        " if (e.target.localName === 'h1') document.title = 'changed' })</script>"
    )
    watched.click("p")
    assert watched.actions() == [] and watched.missed == []
    watched.click("h1")
    assert watched.actions() == []
    assert [(each.what, each.reason) for each in watched.missed] == [
        ("a press on h1 Head", "the agent sees no element there that it could act on")
    ]


def test_scrolls_are_those_of_an_agent(watched: Watched) -> None:
    filler = "<p style='height:1500px'>tall</p>"
    watched.show(f"<a href=#x>top</a>{filler}<button>down here</button>{filler}")
    watched.session.page.mouse.wheel(0, 1133)
    watched.session.page.wait_for_timeout(200)
    watched.click("button")
    assert watched.names() == ["scroll [down]", "scroll [down]", "click [down here]"]
    assert [done.page.pixels_above for done in watched.done] == [0, 600, 1200]
    assert watched.session.page.evaluate("scrollY") == 1133, "the person's page stays where it is"


def test_an_area_is_scrolled_as_an_agent_scrolls_it(watched: Watched) -> None:
    items = "".join(f"<button style='display:block;height:50px'>b{n}</button>" for n in range(20))
    watched.show(f"<p>words</p><div style='width:300px;height:200px;overflow:auto'>{items}</div>")
    watched.session.page.mouse.move(20, 150)
    watched.session.page.mouse.wheel(0, 330)
    watched.session.page.wait_for_timeout(200)
    watched.click("text=b9")
    scroll, *_, click = watched.names()
    assert scroll.startswith("scroll [down] [")
    assert click == "click [b9]"


def test_a_scroll_of_the_page_itself_is_no_action(watched: Watched) -> None:
    watched.show(
        "<a href=#end>to the end</a><p style='height:2000px'>tall</p><button id=end>end</button>"
    )
    watched.click("a")
    watched.actions()
    watched.click("button")
    assert watched.names() == ["click [end]"]


def test_passwords_are_missed_unless_they_are_named_secrets(watched: Watched) -> None:
    watched.show("<input type=password aria-label=Password><p>words</p>")
    watched.click("input")
    watched.type("hunter2 hunter2")
    watched.click("p")
    assert watched.actions() == []
    (missed,) = watched.missed
    assert "hunter2" not in str(missed) and "--secret" in missed.reason
    assert watched.person.passwords == {"hunter2 hunter2"}
    watched.click("input")
    watched.press("Control+a")
    watched.type(PASSWORD)
    watched.press("Enter")
    assert watched.names() == ["type [Password] [<secret:shop>] [1]"]


def test_a_window_that_a_page_opens_is_followed_and_a_change_of_tabs_recorded(
    watched: Watched,
) -> None:
    watched.show(
        "<title>A</title><a href=/b target=_blank>open</a><button>first</button>",
        b="<title>B</title><button>second</button>",
    )
    first = watched.session.page
    watched.click("a")
    assert watched.names() == ["click [open]"]
    watched.click("button")
    assert watched.names() == ["click [second]"]
    box = first.locator("button").bounding_box()
    assert box is not None
    first.mouse.click(box["x"] + 5, box["y"] + 5)
    assert watched.names() == ["tab_focus [0]", "click [first]"]
    assert [done.page.title for done in watched.done[-2:]] == ["B", "A"]


def test_a_tab_of_the_persons_own_and_an_address_typed_are_recorded(watched: Watched) -> None:
    watched.show("<title>A</title>a", b="<title>B</title>b")
    page = watched.session.page.context.new_page()
    assert watched.actions() == ["new_tab"]
    page.goto(watched.pages.origin() + "/b")
    assert watched.actions() == [f"goto [{watched.pages.origin()}/b]"]
    assert watched.person.page.title == "B"


def test_going_back_is_recorded_if_the_person_does_it(watched: Watched) -> None:
    watched.show("<title>A</title><a href=/b>b</a>", b="<title>B</title>b")
    watched.click("a")
    watched.actions()
    watched.press("Alt+ArrowLeft")
    watched.session.page.go_back()  # what the browser's window makes of the keys
    assert watched.actions() == ["go_back"]
    assert watched.done[-1].page.title == "B"
    watched.session.page.evaluate("setTimeout(() => history.forward(), 0)")
    watched.session.page.wait_for_timeout(300)
    assert watched.actions() == []
    assert [each.what for each in watched.missed] == ["the tab went back or forward"]


@pytest.mark.parametrize(
    ("opens", "accepted", "action"),
    [
        ("confirm('Delete?')", True, "click [OK]"),
        ("confirm('Delete?')", False, "click [Cancel]"),
        ("prompt('Your name?')", True, "type [Answer] [Ada] [1]"),
    ],
)
def test_a_dialog_is_answered_by_the_person_and_is_the_page_of_the_answer(
    watched: Watched, opens: str, accepted: bool, action: str
) -> None:
    watched.show(f'<button onclick="setTimeout(() => document.title = {opens}, 50)">b</button>')
    page = watched.session.page

    browser = page.context.new_cdp_session(page)
    browser.send("Page.enable")

    def answer(event: object) -> None:
        page.wait_for_timeout(100)  # a person needs longer
        browser.send("Page.handleJavaScriptDialog", {"accept": accepted, "promptText": "Ada"})

    browser.on("Page.javascriptDialogOpening", answer)
    watched.click("button")
    done = []
    for _ in range(20):
        done += watched.names()
        if len(done) == 2:
            break
    assert done == ["click [b]", action]
    assert watched.done[-1].page.nodes[0].role == "dialog"
    assert watched.person.page.title == ("Ada" if "prompt" in opens else str(accepted).lower())


@pytest.mark.parametrize("host", ["shop", "partner"])
def test_a_press_in_a_frame_is_a_click_on_the_page_around_it(watched: Watched, host: str) -> None:
    watched.show(
        f"<button>out</button><iframe src='{watched.pages.origin(host)}/f'></iframe>",
        f="<button onclick='this.textContent = `pressed`'>in</button>",
    )
    frame = watched.session.page.frames[1]
    frame.wait_for_selector("button")
    box = frame.locator("button").bounding_box()
    assert box is not None
    watched.session.page.mouse.click(box["x"] + 5, box["y"] + 5)
    assert watched.names() == ["click [in]"]
    assert [node.name for node in watched.done[0].page.nodes if node.id] == ["out", "in"]


def test_a_press_in_a_closed_shadow_root_is_a_click(watched: Watched) -> None:
    watched.show(
        "<x-box></x-box><script>customElements.define('x-box', class extends HTMLElement {"
        " constructor() { super(); this.attachShadow({ mode: 'closed' }).innerHTML ="
        " '<button>deep</button>'; } })</script>"
    )
    watched.session.page.mouse.click(20, 18)
    assert watched.names() == ["click [deep]"]


def test_a_rich_text_is_typed_as_a_whole(watched: Watched) -> None:
    watched.show("<div contenteditable aria-label=Note>old</div><p>words</p>")
    watched.click("div")
    watched.press("Control+a")
    watched.type("new text")
    watched.click("p")
    assert watched.names() == ["type [Note] [new text] [0]"]


def test_a_drag_and_a_file_are_missed(watched: Watched) -> None:
    watched.show("<a href=#x draggable=true>from</a><p style='height:200px'>to</p>")
    mouse = watched.session.page.mouse
    mouse.move(15, 15)
    mouse.down()
    mouse.move(60, 120, steps=5)
    mouse.up()
    assert watched.actions() == []
    assert [each.what for each in watched.missed] == ["a drag from link from"]


def test_two_presses_are_a_double_click(watched: Watched) -> None:
    watched.show("<button ondblclick='document.title = `twice`'>b</button>")
    watched.click("button", click_count=2)
    assert watched.names() == ["click [b]", "click [b]", "double_click [b]"]
    assert watched.done[-1].num_replaced == 2 and watched.person.page.title == "twice"


def test_a_menu_that_opens_under_the_mouse_is_hovered_first(watched: Watched) -> None:
    watched.show(
        "<style>ul { display: none } div:hover ul { display: block }</style>"
        "<div>Menu<ul><li><a href=#x>Deals</a></ul></div>"
    )
    watched.session.page.mouse.move(15, 15)
    watched.session.page.wait_for_timeout(100)
    watched.click("text=Deals")
    assert watched.names() == ["hover [Menu]", "click [Deals]"]


def test_a_script_that_writes_into_a_field_that_was_pressed_types_nothing(
    watched: Watched,
) -> None:
    watched.show(
        "<input aria-label=Name><p>words</p><script>document.querySelector('input').onfocus = () =>"
        " setTimeout(() => document.execCommand('insertText', false, 'forged'), 20)</script>"
    )
    watched.click("input")
    watched.session.page.wait_for_timeout(100)
    assert watched.session.page.input_value("input") == "forged"
    watched.click("p")
    assert watched.actions() == [] and watched.missed == []


def test_a_password_stays_one_while_the_page_shows_it(watched: Watched) -> None:
    watched.show("<input type=password aria-label=Key onfocus='this.type = `text`'><p>words</p>")
    watched.click("input")
    watched.type("hunter2 hunter2")
    watched.click("p")
    assert watched.actions() == [] and watched.person.passwords == {"hunter2 hunter2"}


def test_a_press_on_a_field_counts_if_it_opens_what_is_pressed_next(watched: Watched) -> None:
    watched.show(
        "<input aria-label=Day onfocus='days.hidden = false'><button id=other>other</button>"
        "<div id=days hidden><button>Monday</button></div>"
    )
    watched.click("input")
    watched.actions()
    watched.click("text=Monday")
    assert watched.names() == ["click [Day]", "click [Monday]"]
    watched.click("input")
    watched.click("#other")
    assert watched.names() == ["click [other]"]


def test_the_end_takes_a_text_that_is_being_typed_and_the_place_that_was_scrolled_to(
    watched: Watched,
) -> None:
    watched.show("<input aria-label=Name><p style='height:1700px'>tall</p><p>the price: 3</p>")
    watched.click("input")
    watched.type("Ada")
    watched.session.page.mouse.wheel(0, 2000)
    watched.session.page.wait_for_timeout(200)
    events = watched.person.finish()
    texts = [render(each.action) for each in events if isinstance(each, Done)]
    assert texts == ["type [1] [Ada] [0]", "scroll [down]", "scroll [down]"]
    assert "the price: 3" in [node.name for node in watched.person.page.nodes]


def test_a_person_who_closes_the_last_tab_has_left(watched: Watched) -> None:
    watched.show("<title>A</title><a href=#x>link</a>")
    watched.click("a")
    watched.names()
    watched.session.page.close()
    with pytest.raises(PersonLeft):
        watched.person.wait(0.1)
    assert watched.person.is_settled and watched.person.page.title == "A"
