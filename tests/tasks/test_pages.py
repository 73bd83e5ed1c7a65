"""program_html on real pages: locators, helper calls and checks of other pages."""

from collections.abc import Iterator

import pytest
from playwright.sync_api import Page

from agentkv_env.browser import Browser
from agentkv_tasks.addresses import Addresses
from agentkv_tasks.evaluate import CannotScore, Final, Score, Scoring, evaluate
from agentkv_tasks.evaluate.calls import parse_call
from agentkv_tasks.run.played_task import EpisodeEnd, score_of
from agentkv_tasks.task import Task
from agentkv_tasks.template import all_of, reaches, says, shows
from tests.local_site import Handler, served

pytestmark = pytest.mark.browser

PAGES = {
    "/": "<title>Start</title><p class=price>$12.50</p><a href='/cart'>cart</a>",
    "/cart": "<title>Cart</title><p id=count>3</p><ul><li>Blue Kayak</li></ul>",
    "/delete": "<script>document.title = confirm('Delete all?') ? 'deleted' : 'kept'</script>",
    "/script": "<title>Script</title><script>setInterval(() => location = '/', 1)</script>",
    "/f/boats/12/": """<div id=main><article><a class=fg-inherit>ann</a>
        <p class=comment__content>post</p>
        <div class=comment data-level=1><a class=fg-inherit>bob</a><p class=comment__content>old</p>
          <article class=comment__main><header><h1><span><time datetime="2024-01-01T00:00:00Z">
          </time></span></h1></header></article>
          <div class=comment data-level=2><a class=fg-inherit>cy</a>
          <p class=comment__content>new</p><article class=comment__main><header><h1><span>
          <time datetime="2024-02-01T00:00:00Z"></time></span></h1></header></article></div>
        </div></article></div>""",
    "/order": """<table id=my-orders-table><tbody><tr><td class="col name">Bars<dl><dt>Size</dt>
        <dd>Large</dd></dl></td><td class="col sku">B00</td><td class="col qty">Ordered2</td></tr>
        </tbody></table>""",
}


class Site(Handler):
    def do_GET(self) -> None:
        body = PAGES.get(self.path)
        self.send((body or "missing").encode(), status=200 if body else 404)


@pytest.fixture(scope="module")
def origin() -> Iterator[str]:
    with served(Site) as found:
        yield found


@pytest.fixture(scope="module")
def page(browser: Browser) -> Iterator[Page]:
    with browser.session(hosts=["127.0.0.1:*"]) as session:
        yield session.page


@pytest.fixture
def addresses(origin: str) -> Addresses:
    return Addresses({"__SHOPPING__": "http://shop.test"}, {"http://shop.test": origin})


def task_with(check: object) -> Task:
    return Task(
        sites=("shopping",),
        task_id=0,
        start_url="__SHOPPING__",
        intent_template="",
        intent_template_id=0,
        intent="",
        eval=check,  # type: ignore[arg-type]
    )


def evaluated(
    page: Page, addresses: Addresses, check: object, answer: str = "", scoring: Scoring = "compat"
) -> Score:
    final = Final.of(page, answer, addresses)
    return evaluate(task_with(check), final, page=page, addresses=addresses, scoring=scoring)


def score(
    page: Page, addresses: Addresses, check: object, answer: str = "", scoring: Scoring = "compat"
) -> float:
    return evaluated(page, addresses, check, answer, scoring).value


@pytest.mark.parametrize(
    ("locator", "wanted", "expected"),
    [
        ("", "$12.50", 1.0),
        ("", "http://shop.test", 0.0),
        ("document.querySelector('.price').innerText", "12.50", 1.0),
        ("document.querySelector('.prize').innerText", "12.50", 0.0),  # throws
        ("[...document.querySelectorAll('p')].length", "1", 1.0),
        ("lambda:() => document.title", "start", 1.0),
        ("lambda:() => ''", "", 0.0),  # an empty result never matches
        ("lambda:() => { throw 1 }", "", 0.0),
        ("func:get_query_text(__page__, '.price')", "12.50", 1.0),
        ('func:get_query_text(__page__, ".pr\'ice")', "12.50", 0.0),
        ("func:get_query_text_lowercase(__page__, 'title')", "start", 1.0),
    ],
)
def test_locators_select_a_part_of_the_last_page(
    page: Page, origin: str, addresses: Addresses, locator: str, wanted: str, expected: float
) -> None:
    page.goto(origin)
    assert score(page, addresses, shows("last", locator, must_include=[wanted])) == expected


def test_checks_of_other_pages_leave_the_last_page_in_place(
    page: Page, origin: str, addresses: Addresses
) -> None:
    page.goto(origin)
    num_tabs = len(page.context.pages)
    check = all_of(
        shows("__SHOPPING__/cart", "document.title", exact_match="Cart"),
        shows("last", "document.title", exact_match="Start"),
        reaches("__SHOPPING__/"),
    )
    assert score(page, addresses, check) == 1.0
    assert page.url == f"{origin}/"
    assert len(page.context.pages) == num_tabs


def test_a_dialog_that_nobody_answered_is_dismissed_before_the_score(
    browser: Browser, origin: str, addresses: Addresses
) -> None:
    task = task_with(shows("last", "document.title", exact_match="kept"))
    with browser.session(hosts=["127.0.0.1:*"]) as session:
        session.open(f"{origin}/delete")
        assert session.observe().nodes[0].name == "Delete all?"
        end = EpisodeEnd.of(session, "", browser, addresses)
        assert score_of(task, end, browser, addresses).value == 1.0


def test_a_helper_call_can_derive_an_address_from_the_last_one(
    page: Page, origin: str, addresses: Addresses
) -> None:
    page.goto(f"{origin}/f/boats/12/")
    newest = "func:reddit_get_latest_comment_content_by_username(__page__, 'cy')"
    parent = "func:reddit_get_parent_comment_username_of_latest_comment_by_username(__page__, 'cy')"
    place = "func:reddit_get_post_url('__last_url__')"
    check = all_of(
        shows(place, newest, exact_match="new"), shows("last", parent, exact_match="bob")
    )
    assert score(page, addresses, check) == 1.0


def test_helpers_read_an_order_by_sku(page: Page, origin: str, addresses: Addresses) -> None:
    page.goto(f"{origin}/order")
    amount = "func:shopping_get_order_product_quantity(__page__, 'A00 |OR| B00')"
    option = "func:shopping_get_order_product_option(__page__, 'B00', 'Size')"
    check = all_of(
        shows("last", amount, required_values=["== 2"]), shows("last", option, exact_match="Large")
    )
    assert score(page, addresses, check) == 1.0


def test_only_mended_scoring_applies_more_than_the_first_comparison(
    page: Page, origin: str, addresses: Addresses
) -> None:
    page.goto(f"{origin}/cart")
    check = shows("last", "", must_include=["kayak"], must_exclude=["blue"])
    assert score(page, addresses, check, scoring="compat") == 1.0
    assert score(page, addresses, check, scoring="mended") == 0.0


def test_a_number_on_a_page_satisfies_inequalities(
    page: Page, origin: str, addresses: Addresses
) -> None:
    page.goto(f"{origin}/cart")
    count = "document.querySelector('#count').innerText"
    assert score(page, addresses, shows("last", count, required_values=[">= 3", "< 5"])) == 1.0
    assert score(page, addresses, shows("last", count, required_values=["> 4"])) == 0.0


def test_a_failure_is_explained_in_a_sentence(
    page: Page, origin: str, addresses: Addresses
) -> None:
    page.goto(f"{origin}/cart")
    count = "document.querySelector('#count').innerText"
    for check, reason in (
        (
            shows("last", "", must_include=["Red Kayak"]),
            'the last page, http://shop.test/cart, should include "Red Kayak"',
        ),
        (
            shows("__SHOPPING__/cart", count, exact_match="4"),
            f'{count} at http://shop.test/cart should be "4"; it is "3"',
        ),
    ):
        assert evaluated(page, addresses, check).reason == f"program_html[0]: {reason}"
    assert evaluated(page, addresses, says(must_include=["red", "blue"]), "grey").reason == (
        'string_match: the answer "grey" should include "red" and "blue"'
    )


def test_checks_read_the_page_as_it_was_captured(
    page: Page, origin: str, addresses: Addresses
) -> None:
    page.goto(origin)
    final = Final.of(page, "", addresses)
    page.goto(f"{origin}/cart")
    task_check = shows("last", "", must_include=["12.50"])
    task = Task(
        sites=(),
        task_id=0,
        start_url="x",
        intent_template="",
        intent_template_id=0,
        intent="",
        eval=task_check,
    )
    assert evaluate(task, final, page=page, addresses=addresses).value == 1.0


def test_a_check_of_an_unreachable_page_fails(
    page: Page, origin: str, addresses: Addresses
) -> None:
    page.goto(origin)
    assert score(page, addresses, shows("http://127.0.0.1:9/", "", must_include=["x"])) == 0.0


def test_a_missing_interface_matters_only_if_no_other_check_fails(
    page: Page, origin: str, addresses: Addresses
) -> None:
    page.goto(origin)
    newest = shows("func:shopping_get_latest_order_url()", "", must_include=["x"])
    assert score(page, addresses, all_of(newest, says(exact_match="no")), answer="yes") == 0.0
    with pytest.raises(CannotScore, match="Magento"):
        score(page, addresses, all_of(newest, says(exact_match="yes")), answer="yes")


@pytest.mark.parametrize(
    "text",
    [
        "__import__('os').system('true')",
        "get_query_text(__page__, open('/etc/passwd').read())",
        "get_query_text(__page__, selector='x')",
        "get_query_text",
        "eval('1')",
        "(lambda: 1)()",
        "get_query_text(__page__, 'x'",
    ],
)
def test_only_known_helpers_with_literal_arguments_are_parsed(text: str) -> None:
    with pytest.raises(ValueError):
        parse_call(text)


@pytest.mark.parametrize(
    "text",
    [
        "get_query_text()",
        "get_query_text(__page__, 3)",
        "get_query_text('.price', __page__)",
        "reddit_get_post_url(__page__)",
        "get_query_text(__page__, {[]: 1})",
        "get_query_text(__page__, " + "-" * 5000 + "1)",
        "(" * 5000,
    ],
    ids=lambda text: text[:40],
)
def test_arguments_that_a_helper_does_not_accept_are_rejected(text: str) -> None:
    with pytest.raises(ValueError, match=r"takes \(|arguments must be|is not a call"):
        parse_call(text)


def test_the_last_address_may_contain_quotation_marks(page: Page) -> None:
    call = parse_call("reddit_get_post_url('__last_url__')")
    assert call.on(page, last_url="http://a.test/x'y") == "http://a.test/x'y"
