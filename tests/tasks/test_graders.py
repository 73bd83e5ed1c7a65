"""Graders: a shop's admin interface, a judge model, and the likeness of images."""

import io
import json
from collections.abc import Iterator
from typing import Any, cast

import pytest
from PIL import Image, ImageDraw
from playwright.sync_api import Page

from agentkv_env.browser import Browser
from agentkv_tasks.addresses import Addresses
from agentkv_tasks.evaluate import (
    NOBODY,
    CannotScore,
    Final,
    Graders,
    Judge,
    JudgeError,
    MagentoAdmin,
    Score,
    Scoring,
    asks_admin,
    evaluate,
)
from agentkv_tasks.evaluate.likeness import similarity
from agentkv_tasks.task import Task
from tests.local_site import Handler, served

PASSWORD = "admin-77-word"
TOKEN = "t0ken"
REVIEWS = [
    {"nickname": "Ann", "detail": "old", "ratings": []},
    {
        "nickname": "Emma",
        "detail": "It is fine.",
        "ratings": [{"rating_name": "Rating", "percent": 80}],
    },
]


def picture(shift: int = 0, size: tuple[int, int] = (60, 48)) -> Image.Image:
    """Return a red disc on a box; `shift` moves the disc and changes the box."""
    image = Image.new("RGB", size, (200, 220, 240))
    draw = ImageDraw.Draw(image)
    draw.ellipse((5 + shift, 6, 35 + shift, 40), fill=(200, 30, 60))
    draw.rectangle((30, 20, 55, 44), fill=(20, 90 + shift, 30))
    return image


def png(image: Image.Image) -> bytes:
    data = io.BytesIO()
    image.save(data, "PNG")
    return data.getvalue()


class Shop(Handler):
    """A shop with Magento's admin interface, two pages with images, and a chat model.

    The chat model says `yes` to whatever holds the word `right`, `a red disc` to images, and
    something else to whatever holds `dither`.
    """

    orders: list[dict[str, Any]]
    token = TOKEN
    asked: list[str]
    """Texts that the chat model was asked."""

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if path.startswith("/rest/"):
            if self.headers["Authorization"] != f"Bearer {Shop.token}":
                return self._json({"message": "no"}, 401)
            if path == "/rest/V1/orders":
                return self._json({"items": self.orders})
            return self._json(REVIEWS if path == "/rest/V1/products/B%2F1/reviews" else [])
        if path == "/item.png":
            return self.send(png(picture()), "image/png")
        if path == "/other.png":
            return self.send(png(picture(12)), "image/png")
        if path.startswith("/sales/order/view/order_id/"):
            return self.send(b"<p class=items>B0983XCYK6 Red</p>")
        if path == "/photos":
            away = b"<img src='http://127.0.0.2:9/item.png'><img src=/item.png>"
            return self.send(b"<div class=photos>" + away + b"</div>")
        if path == "/others":
            return self.send(b"<div class=photos><img src=/other.png></div>")
        return self.send(b"<title>Start</title>")

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path == "/rest/default/V1/integration/admin/token":
            is_right = body == {"username": "admin", "password": PASSWORD}
            return self._json(
                Shop.token if is_right else {"message": "no"}, 200 if is_right else 401
            )
        if self.path.startswith("/away"):
            self.send_response(302)
            self.send_header("Location", "/v1/chat/completions")
            self.send_header("Content-Length", "0")
            return self.end_headers()
        content = body["messages"][0]["content"]
        Shop.asked.append(str(content))
        if isinstance(content, list):
            is_image = content[0]["image_url"]["url"].startswith("data:image/png;base64,")
            said = "A red disc." if is_image else ""
        elif "dither" in content:
            said = "It depends."
        else:
            said = "Yes." if "right" in content or content.endswith("word: yes.") else "no"
        return self._json({"choices": [{"message": {"content": said}}]})

    def _json(self, value: object, status: int = 200) -> None:
        self.send(json.dumps(value).encode(), "application/json", status)


@pytest.fixture(scope="module")
def origin() -> Iterator[str]:
    with served(Shop) as found:
        yield found


@pytest.fixture(autouse=True)
def _fresh() -> None:
    Shop.orders = [{"increment_id": "000000189"}]
    Shop.token, Shop.asked = TOKEN, []


@pytest.fixture(scope="module")
def page(browser: Browser, origin: str) -> Iterator[Page]:
    with browser.session(hosts=["127.0.0.1:*"]) as session:
        yield session.page


@pytest.fixture
def addresses(origin: str) -> Addresses:
    return Addresses({"__SHOPPING__": "http://shop.test"}, {"http://shop.test": origin})


@pytest.fixture
def graders(origin: str) -> Graders:
    return Graders(Judge(f"{origin}/v1", "judge"), MagentoAdmin(origin, "admin", PASSWORD))


def task(check: dict[str, Any]) -> Task:
    return Task(
        sites=("shopping",),
        task_id=0,
        start_url="__SHOPPING__",
        intent_template="",
        intent_template_id=0,
        intent="Buy a boat.",
        eval=cast(Any, check),
    )


def scored(
    page: Page,
    addresses: Addresses,
    check: dict[str, Any],
    graders: Graders = NOBODY,
    answer: str = "",
    scoring: Scoring = "compat",
) -> Score:
    final = Final.of(page, answer, addresses)
    return evaluate(
        task(check), final, page=page, addresses=addresses, graders=graders, scoring=scoring
    )


def shows(url: str, locator: str, **contents: Any) -> dict[str, Any]:
    target = {"url": url, "locator": locator, "required_contents": contents}
    return {"eval_types": ["program_html"], "program_html": [target]}


# ---- the admin interface

NEWEST = shows(
    "func:shopping_get_latest_order_url()",
    "document.querySelector('.items').outerText",
    must_include=["B0983XCYK6", "Red"],
)
REVIEWED = {
    "author": "Emma",
    "rating": "80",
    "text": "it is fine.",
}


@pytest.mark.browser
def test_a_check_of_the_newest_order_visits_its_page(
    page: Page, addresses: Addresses, graders: Graders
) -> None:
    assert scored(page, addresses, NEWEST, graders) == Score(1.0, "")
    wrong = shows(NEWEST["program_html"][0]["url"], "", must_include=["B1"])
    reason = scored(page, addresses, wrong, graders).reason
    assert "http://shop.test/sales/order/view/order_id/189/ should include" in reason


@pytest.mark.browser
@pytest.mark.parametrize("part", REVIEWED)
def test_checks_of_reviews_read_the_newest_one(
    page: Page, addresses: Addresses, graders: Graders, part: str
) -> None:
    for sku, wanted in (("B/1", REVIEWED[part]), ("B2", "")):
        locator = f"func:shopping_get_sku_latest_review_{part}('{sku}')"
        check = shows("last", locator, exact_match=wanted)
        assert scored(page, addresses, check, graders).value == 1.0
        check = shows("last", locator, exact_match="something else")
        assert scored(page, addresses, check, graders).value == 0.0


@pytest.mark.browser
def test_a_check_without_an_admin_interface_cannot_be_scored(
    page: Page, addresses: Addresses
) -> None:
    assert asks_admin(task(NEWEST)) and not asks_admin(task(shows("last", "", must_include=["x"])))
    with pytest.raises(CannotScore, match="needs an `admin` in the file of sites"):
        scored(page, addresses, NEWEST)


@pytest.mark.browser
@pytest.mark.parametrize(
    ("password", "orders", "reason"),
    [
        ("wrong", [{"increment_id": "1"}], "answers with status 401"),
        (PASSWORD, [], "names no order"),
        (PASSWORD, [{"increment_id": "x"}], "names no order"),
    ],
)
def test_an_admin_interface_that_refuses_scores_nothing_and_tells_no_password(
    page: Page, addresses: Addresses, origin: str, password: str, orders: Any, reason: str
) -> None:
    Shop.orders = orders
    admin = MagentoAdmin(origin, "admin", password)
    with pytest.raises(CannotScore, match=reason) as caught:
        scored(page, addresses, NEWEST, Graders(admin=admin))
    assert password not in str(caught.value) and password not in repr(admin)


def test_an_expired_token_is_asked_for_again(origin: str) -> None:
    admin = MagentoAdmin(origin, "admin", PASSWORD)
    assert admin.latest_order_url().endswith("/189/")
    Shop.token = "another"
    assert admin.latest_order_url().endswith("/189/")


# ---- the judge


@pytest.mark.browser
@pytest.mark.parametrize(("answer", "value"), [("the right boat", 1.0), ("a car", 0.0)])
def test_the_judge_decides_about_meanings_in_answers_and_on_pages(
    page: Page, addresses: Addresses, graders: Graders, answer: str, value: float
) -> None:
    said = {
        "eval_types": ["string_match"],
        "reference_answers": {"fuzzy_match": ["a fine boat"]},
    }
    assert scored(page, addresses, said, graders, answer).value == value
    shown = shows("last", f"lambda:() => '{answer}'", fuzzy_match="a fine boat")
    assert scored(page, addresses, shown, graders).value == value


@pytest.mark.browser
@pytest.mark.parametrize(
    ("answer", "scoring", "value"),
    [
        ("N/A", "compat", 1.0),
        ("the right reason", "compat", 1.0),
        ("no idea", "compat", 0.0),
        ("the right reason", "mended", 0.0),
    ],
)
def test_the_judge_decides_about_reasons_of_impossible_tasks(
    page: Page, addresses: Addresses, graders: Graders, answer: str, scoring: Scoring, value: float
) -> None:
    check = {
        "eval_types": ["string_match"],
        "reference_answers": {"fuzzy_match": "N/A"},
        "string_note": "There are no boats.",
    }
    assert scored(page, addresses, check, graders, answer, scoring).value == value


def test_a_judge_that_says_neither_yes_nor_no_decides_nothing(origin: str) -> None:
    judge = Judge(f"{origin}/v1", "judge")
    with pytest.raises(CannotScore, match=r"said 'It depends\.'; expected yes or no"):
        judge.means_the_same("q", "r", "dither")


def test_an_answer_is_asked_for_once_in_an_episode(origin: str) -> None:
    judge = Judge(f"{origin}/v1", "judge")
    for _ in range(2):
        assert judge.means_the_same("q", "r", "right")
    assert len(Shop.asked) == 1
    judge.forget()
    assert judge.means_the_same("q", "r", "right") and len(Shop.asked) == 2


def test_a_key_is_sent_to_no_other_address(origin: str) -> None:
    with pytest.raises(CannotScore, match="answers with status 302"):
        Judge(f"{origin}/away", "judge", "the-key").means_the_same("q", "r", "right")
    assert not Shop.asked


def test_an_unreachable_judge_is_named_with_its_address(origin: str) -> None:
    Judge(f"{origin}/v1", "judge").check()
    with pytest.raises(JudgeError, match=r"--judge: http://127\.0\.0\.1:9/v1/chat/completions"):
        Judge("http://127.0.0.1:9/v1", "judge").check()


# ---- images

ITEM = "__SHOPPING__/item.png"


def looks(url: str, **changes: Any) -> dict[str, Any]:
    query = {"eval_image_url": url, "eval_image_class": ".photos", **changes}
    return {"eval_types": ["page_image_query"], "page_image_query": [query]}


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [  # scikit-image 0.26 on the same pixels
        (picture(), picture(), 1.0),
        (picture(), picture(1), 0.8987964720361753),
        (picture(), picture(12), 0.5408995347377697),
        (picture(), picture(0, (90, 70)), 0.45080753985510347),
    ],
)
def test_images_are_as_alike_as_scikit_image_finds_them(
    one: Image.Image, other: Image.Image, expected: float
) -> None:
    assert similarity(one, other) == pytest.approx(expected, abs=1e-12)
    assert similarity(other, one) == pytest.approx(expected, abs=1e-12)


@pytest.mark.browser
@pytest.mark.parametrize(
    ("place", "changes", "value"),
    [
        ("/photos", {"eval_fuzzy_image_match": ITEM}, 1.0),
        ("/others", {"eval_fuzzy_image_match": ITEM}, 0.0),
        ("/others", {"eval_fuzzy_image_match": ITEM, "ssim_threshold": 0.5}, 1.0),
        ("/others", {"eval_fuzzy_image_match": f"{ITEM} |OR| __SHOPPING__/other.png"}, 1.0),
        ("/photos", {"eval_fuzzy_image_match": ITEM, "eval_image_class": ".none"}, 0.0),
        ("/photos", {"eval_fuzzy_image_match": ITEM, "eval_image_class": ""}, 1.0),
    ],
)
def test_images_of_a_page_are_compared_with_a_reference(
    page: Page, origin: str, addresses: Addresses, place: str, changes: Any, value: float
) -> None:
    page.goto(origin + place)
    assert scored(page, addresses, looks("last", **changes)).value == value
    page.goto(origin)
    assert scored(page, addresses, looks(f"__SHOPPING__{place}", **changes)).value == value
    assert page.url == f"{origin}/"


@pytest.mark.browser
def test_a_question_about_an_image_is_asked_of_the_judge(
    page: Page, origin: str, addresses: Addresses, graders: Graders
) -> None:
    page.goto(f"{origin}/photos")
    ask = looks("last", eval_vqa=[{"question": "What is it?", "answer": "disc"}])
    assert scored(page, addresses, ask, graders).value == 1.0
    ask = looks("last", eval_vqa=[{"question": "What is it?", "answer": "boat"}])
    assert scored(page, addresses, ask, graders).value == 0.0
    with pytest.raises(CannotScore, match="a question about an image, which needs a judge model"):
        scored(page, addresses, ask)


@pytest.mark.browser
def test_upstream_forgets_all_queries_but_the_last(
    page: Page, origin: str, addresses: Addresses
) -> None:
    queries = [
        {"eval_image_url": f"__SHOPPING__{place}", "eval_image_class": "", **match}
        for place, match in (
            ("/others", {"eval_fuzzy_image_match": ITEM}),
            ("/photos", {"eval_fuzzy_image_match": ITEM}),
        )
    ]
    check = {"eval_types": ["page_image_query"], "page_image_query": queries}
    assert scored(page, addresses, check).value == 1.0
    assert scored(page, addresses, check, scoring="mended").value == 0.0


@pytest.mark.browser
@pytest.mark.parametrize("name", ["images/boat.png", "__SHOPPING__/photos", "http://127.0.0.1:9/x"])
def test_a_reference_image_that_is_not_there_leaves_the_task_unjudged(
    page: Page, origin: str, addresses: Addresses, name: str
) -> None:
    page.goto(f"{origin}/photos")
    with pytest.raises(CannotScore, match="the reference image"):
        scored(page, addresses, looks("last", eval_fuzzy_image_match=name))
