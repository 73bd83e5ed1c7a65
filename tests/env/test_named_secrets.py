"""A secret is typed by its name, on its hosts only, and no page text or error holds its value."""

from collections.abc import Iterator
from dataclasses import asdict

import pytest

from agentkv_env.actions import parse
from agentkv_env.browser import Browser
from agentkv_env.errors import ActionFailed
from agentkv_env.named_secrets import NamedSecrets, Secret, UnknownSecret
from agentkv_env.page import Page
from tests.env.conftest import Pages, Sessions, Visit, element

pytestmark = pytest.mark.browser

VALUE = "qu&et <otter> 99"
OTHER = "4111 8222 9333"
KINDS = ("type [{id}] [<secret:shop>] [0]", "append [{id}] [<secret:shop>]")
FORM = """<title>Sign in</title><form action=/in>
<label>Password <input type=password name=pw></label> <label>User <input name=user></label>
<label>Short <input maxlength=7></label> <label>Notes <textarea></textarea></label>
<label>Day <input type=date></label> <label>Number <input id=number></label>
<div contenteditable aria-label=Letter></div>
<label>Size <select><option>Small<option>Large</select></label><button>Go</button></form>
<script>document.querySelector("#number").oninput = (event) => {
  event.target.value = event.target.value.replace(/ /g, "-");
};</script>"""


@pytest.fixture(scope="module")
def sessions(browser: Browser, pages: Pages) -> Iterator[Sessions]:
    """Sessions with two secrets for the first of their hosts."""
    hosts = [f"shop.localhost:{pages.port}"]
    secrets = {"shop": Secret(VALUE, hosts), "card": Secret(OTHER, hosts)}
    with Sessions(browser, pages, secrets=secrets) as made:
        yield made


def held(visit: Visit, selector: str) -> str:
    return str(visit.session.page.locator(selector).input_value())


def says(page: Page, value: str) -> bool:
    return value.split()[0] in repr(asdict(page))


def test_nothing_is_dragged_from_a_field_that_may_hold_a_secret(visit: Visit) -> None:
    visit.show(FORM)
    visit.act("type [{id}] [<secret:shop>] [0]", id="User")
    user, notes = (element(visit.session.observe(), name).id for name in ("User", "Notes"))
    visit.act(f"select_text [{user}]")
    with pytest.raises(ActionFailed, match="nothing is dragged from textbox"):
        visit.act(f"drag [{user}] [{notes}]")
    assert held(visit, "textarea") == ""


@pytest.mark.parametrize(
    "kind", ["type [{id}] [<secret:shop>] [0]", "append [{id}] [<secret:shop>]"]
)
@pytest.mark.parametrize(
    ("name", "selector"),
    [("Password", "[name=pw]"), ("User", "[name=user]"), ("Notes", "textarea")],
)
def test_a_field_gets_the_value_and_the_agent_reads_the_name(
    visit: Visit, kind: str, name: str, selector: str
) -> None:
    visit.show(FORM)
    page = visit.act(kind, id=name)
    assert held(visit, selector) == VALUE
    assert not says(page, VALUE)
    assert element(page, name).value in ("<secret:shop>", "********")


def test_text_around_a_name_stays_and_enter_sends_the_form(visit: Visit) -> None:
    visit.show(FORM, **{"in": "<p>Welcome"})
    visit.act("type [{id}] [a <secret:shop> b] [0]", id="User")
    assert held(visit, "[name=user]") == f"a {VALUE} b"
    page = visit.act("type [{id}] [<secret:shop>] [1]", id="Password")
    assert any("pw=qu%26et" in asked for asked in visit.pages.asked)
    assert "pw=<secret:shop>" in page.url and not says(page, VALUE)


def test_an_insertion_and_an_editable_area_take_a_secret(visit: Visit) -> None:
    visit.show(FORM)
    visit.act("type [{id}] [end] [0]", id="Notes")
    visit.act("insert [{id}] [end] [<secret:shop> ]", id="Notes")
    assert held(visit, "textarea") == f"{VALUE} end"
    page = visit.act("type [{id}] [<secret:shop>] [0]", id="Letter")
    assert visit.session.page.locator("div").inner_text() == VALUE
    assert not says(page, VALUE)


def test_a_secret_that_is_added_leaves_the_text_before_it_in_sight(visit: Visit) -> None:
    visit.show(FORM)
    visit.act("type [{id}] [card:] [0]", id="User")
    page = visit.act("append [{id}] [<secret:shop>]", id="User")
    assert held(visit, "[name=user]") == "card:" + VALUE
    assert element(page, "User").value == "card:<secret:shop>"


def test_a_field_that_the_page_empties_may_show_something_else_afterwards(visit: Visit) -> None:
    visit.show(FORM)
    visit.act("type [{id}] [<secret:shop>] [0]", id="User")
    change = "value => { document.querySelector('[name=user]').value = value }"
    for value in ("", "Bath"):
        visit.session.page.evaluate(change, value)
        assert element(visit.session.observe(), "User").value == value


def test_what_a_field_of_a_secret_holds_is_not_quoted_when_more_is_typed(visit: Visit) -> None:
    visit.show(FORM)
    visit.act("type [{id}] [<secret:card>] [0]", id="Number")
    page = visit.act("append [{id}] [ 77]", id="Number")
    assert page.notices == () and held(visit, "#number").endswith("-77")
    with pytest.raises(ActionFailed, match="does not have the words 'otter'$"):
        visit.act("insert [{id}] [otter] [x]", id="Number")


def test_a_slider_or_segment_takes_no_secret_because_keys_may_go_elsewhere(visit: Visit) -> None:
    visit.show("""<input type=range aria-label=A> <span role=slider tabindex=0 aria-label=B
        aria-valuenow=1>b</span> <span role=spinbutton contenteditable aria-label=C>c</span>""")
    for name in "ABC":
        with pytest.raises(ActionFailed, match="takes no secret"):
            visit.act("type [{id}] [<secret:card>] [0]", id=name)


def test_a_field_without_room_for_a_secret_gets_no_part_of_it(visit: Visit) -> None:
    visit.show(FORM)
    for kind in KINDS:
        with pytest.raises(ActionFailed, match="takes at most 7 characters; with <secret:shop>"):
            visit.act(kind, id="Short")
    assert held(visit, "[maxlength]") == ""


def test_a_field_that_changes_a_secret_fails_the_action_without_a_word_of_it(visit: Visit) -> None:
    visit.show(FORM)
    visit.session.page.evaluate("""() => {
      document.querySelector("[name=user]").oninput = (e) => { e.target.value = "otter" };
    }""")
    for kind in KINDS:
        with pytest.raises(ActionFailed, match="holds something else now") as caught:
            visit.act(kind, id="User")
        assert "otter" not in str(caught.value)
    assert element(visit.session.observe(), "User").value.endswith("<secret:shop>")


def test_a_secret_in_boxes_of_one_character_is_spread_over_them(visit: Visit) -> None:
    boxes = "".join(f"<input maxlength=1 size=1 aria-label='Digit {n}'>" for n in range(20))
    visit.show(f"<div>{boxes}</div>")
    page = visit.act("type [{id}] [<secret:card>] [0]", id="Digit 0")
    joined = "[...document.querySelectorAll('input')].map((each) => each.value).join('')"
    assert visit.session.page.evaluate(joined) == OTHER.replace(" ", "")
    assert {node.value for node in page.nodes} == {"", "<secret:card>"}


def test_a_field_that_formats_a_secret_shows_its_name(visit: Visit) -> None:
    visit.show(FORM)
    page = visit.act("type [{id}] [<secret:card>] [0]", id="Number")
    assert held(visit, "#number") == OTHER.replace(" ", "-")
    assert element(page, "Number").value == "<secret:card>"
    page = visit.act("type [{id}] [other text] [0]", id="Number")
    assert element(page, "Number").value == "other-text"
    assert element(visit.act("clear [{id}]", id="Number"), "Number").value == ""


def test_a_page_that_shows_a_value_anywhere_shows_the_name_to_the_agent(visit: Visit) -> None:
    words = VALUE.replace("&", "&amp;").replace("<", "&lt;")
    page = visit.show(
        f"<title>{words}</title><h1>So {words}</h1><button aria-label='{words}'>x</button>"
        f"<input placeholder='{words}'><select><option>{words}</select><img alt='{words}' src=x>"
        f"<table><tr><td>Mine<td>{words}</table>"
        f"<script>alert({VALUE!r}); history.replaceState(0, 0, '?' + btoa({VALUE!r}))</script>"
    )
    assert not says(page, VALUE) and "cXUmZXQ" not in page.url
    assert page.title == "<secret:shop>"
    assert "So <secret:shop>" in [node.name for node in page.nodes]
    assert ("Mine", "<secret:shop>") in [node.cells for node in page.nodes]
    assert any("<secret:shop>" in notice for notice in page.notices)


@pytest.mark.parametrize(
    "kind", ["type [{id}] [<secret:shop>] [0]", "append [{id}] [<secret:shop>]"]
)
@pytest.mark.parametrize("is_inner", [False, True], ids=["page", "frame"])
def test_another_host_gets_no_secret_as_page_or_as_frame(
    visit: Visit, kind: str, is_inner: bool
) -> None:
    """The frame is a foreign one in a page of the secret's host, and the other way around."""
    other = visit.pages.origin("partner")
    visit.show(f"<iframe src='{other}/form'></iframe>", form=FORM, frame="<iframe src=/form>")
    if not is_inner:
        visit.session.open(other + "/form")
    with pytest.raises(ActionFailed) as caught:
        visit.act(kind, id="User")
    assert str(caught.value) == (
        f"<secret:shop> is not typed on {other[7:]}; it is for shop.localhost:{visit.pages.port} "
        "only"
    )
    assert not any(
        "qu" in frame.content() and VALUE in frame.content() for frame in visit.session.page.frames
    )


def test_a_frame_of_the_host_in_a_page_of_another_gets_no_secret(visit: Visit) -> None:
    shop, other = visit.pages.origin(), visit.pages.origin("partner")
    visit.show("", form=FORM, around=f"<iframe src='{shop}/form'></iframe>")
    visit.session.open(other + "/around")
    with pytest.raises(ActionFailed, match=r"not typed on partner\.localhost"):
        visit.act("type [{id}] [<secret:shop>] [0]", id="User")


@pytest.mark.parametrize("frame", ["srcdoc", "sandboxed", "data"])
def test_a_frame_without_an_address_counts_by_its_origin(visit: Visit, frame: str) -> None:
    inner = "<label>User <input name=user></label>"
    html = {
        "srcdoc": f'<iframe srcdoc="{inner}"></iframe>',
        "sandboxed": f'<iframe sandbox="allow-scripts" srcdoc="{inner}"></iframe>',
        "data": f'<iframe src="data:text/html,{inner}"></iframe>',
    }[frame]
    visit.show(html)
    if frame == "srcdoc":
        visit.act("type [{id}] [<secret:shop>] [0]", id="User")
        assert visit.session.page.frames[1].locator("input").input_value() == VALUE
    else:
        with pytest.raises((ActionFailed, StopIteration)):  # or the frame is not read at all
            visit.act("type [{id}] [<secret:shop>] [0]", id="User")


def test_a_page_that_takes_the_focus_away_gets_nothing_elsewhere(visit: Visit) -> None:
    other = visit.pages.origin("partner")
    visit.show(
        f"<label>User <input name=user onfocus='document.querySelector(`iframe`).focus()'></label>"
        f"<iframe src='{other}/form'></iframe>",
        form="<input autofocus>",
    )
    with pytest.raises(ActionFailed, match="takes no text"):
        visit.act("type [{id}] [<secret:shop>] [0]", id="User")
    assert visit.session.page.frames[1].locator("input").input_value() == ""


def test_an_unknown_name_lists_those_that_exist(visit: Visit) -> None:
    visit.show(FORM)
    with pytest.raises(ActionFailed) as caught:
        visit.act("type [{id}] [<secret:bank>] [0]", id="User")
    assert str(caught.value) == (
        "there is no <secret:bank>; there are: <secret:shop>, <secret:card>"
    )
    assert held(visit, "[name=user]") == ""


@pytest.mark.parametrize(
    "action",
    [
        "type [{id}] [<secret:shop>] [0]",
        "goto [/?<secret:shop>]",
        "press [Control+v]",
        "press [ctrl+shift+V]",
        "press [shift+ins]",
        "press [<secret:shop>]",
    ],
)
def test_only_text_of_a_field_may_name_a_secret(visit: Visit, action: str) -> None:
    visit.show(FORM)
    with pytest.raises(ActionFailed) as caught:
        visit.act(action, id="Size")
    assert "otter" not in str(caught.value)


def test_errors_that_quote_the_page_show_the_name(visit: Visit) -> None:
    words = VALUE.replace("&", "&amp;").replace("<", "&lt;")
    visit.show(f"<select aria-label=List><option>{words}</select>")
    with pytest.raises(ActionFailed, match="it has: .<secret:shop>") as caught:
        visit.act("type [{id}] [Blue] [0]", id="List")
    assert "otter" not in str(caught.value)


def test_a_date_is_set_by_name(browser: Browser, pages: Pages) -> None:
    host = f"shop.localhost:{pages.port}"
    with browser.session(hosts=[host], secrets={"day": Secret("1991-02-03", [host])}) as session:
        visit = Visit(session, pages)
        visit.show(FORM)
        page = visit.act("type [{id}] [<secret:day>] [0]", id="Day")
        assert held(visit, "[type=date]") == "1991-02-03"
        assert "1991" not in repr(asdict(page)) and element(page, "Day").value == "<secret:day>"


def test_strict_sessions_type_secrets_as_well(browser: Browser, pages: Pages) -> None:
    host = f"shop.localhost:{pages.port}"
    secrets = {"shop": Secret(VALUE, [host])}
    with browser.session(hosts=[host], secrets=secrets, strict=True) as session:
        visit = Visit(session, pages)
        page = visit.show(FORM)
        session.act(parse(f"type [{element(page, 'User').id}] [<secret:shop>] [0]"))
        assert held(visit, "[name=user]") == VALUE


def test_a_session_without_secrets_types_none(browser: Browser, pages: Pages) -> None:
    with browser.session(hosts=[f"shop.localhost:{pages.port}"]) as session:
        visit = Visit(session, pages)
        visit.show(FORM)
        with pytest.raises(ActionFailed, match="no <secret:shop>; no secret was given"):
            visit.act("type [{id}] [<secret:shop>] [0]", id="User")


@pytest.mark.parametrize(
    ("value", "hosts", "reason"),
    [
        (" ", ["shop.example"], "blank"),
        ("x", [], "expected a list"),
        ("x", "shop.example", "expected a list"),
        ("x", ["http://shop.example/"], "no host name"),
    ],
)
def test_a_secret_that_could_not_be_bound_is_refused(
    value: str, hosts: list[str], reason: str
) -> None:
    with pytest.raises(ValueError, match=reason):
        Secret(value, hosts)


def test_names_and_goals_are_checked() -> None:
    secret = Secret(VALUE, ["shop.example"])
    assert VALUE not in repr(secret)
    with pytest.raises(ValueError, match="expected letters"):
        NamedSecrets({"my shop": secret})
    named = NamedSecrets({"shop": secret})
    named.require("Log in with <secret:shop>; 2 < 3 > 1 <secret:> <b>")
    with pytest.raises(UnknownSecret, match="no <secret:bank>; there are: <secret:shop>"):
        named.require("Log in with <secret:bank>")


def test_a_value_that_is_part_of_a_name_or_of_another_value_masks_neither() -> None:
    named = NamedSecrets(
        {
            name: Secret(value, ["shop.example"])
            for name, value in (("secret-one", "secret-one"), ("b", "secret-one-and-more"))
        }
    )
    said = named.masks.mask("secret-one, secret-one-and-more and <secret:secret-one>")
    assert said == "<secret:secret-one>, <secret:b> and <secret:secret-one>"
