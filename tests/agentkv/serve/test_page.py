"""The page at `/` shows sessions and chats with them, and nothing that a conversation says runs."""

import json
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

from agentkv.dialog.messages import Chat, MessageTemplate
from agentkv.models.local import LocalModel
from agentkv_env.browser import find_executable
from tests.agentkv.serve.conftest import CHATML, Served, serving
from tests.agentkv.serve.reciting import add_pieces, reciting_model
from tests.agentkv.serve.test_requests import erase_all
from tests.agentkv.serve.test_sessions import WORDS, ask, cached, user, with_reply

HOSTILE = (
    "</p></script><script>window.hit = 1</script><img src=x onerror='window.hit = 1'>"
    "<a href='javascript:window.hit = 1'>x</a>"
)
"""Text that runs wherever it becomes markup."""
Look = Callable[[Callable[[Page], None]], list[str]]


@pytest.fixture(scope="module")
def local(chat_model: Callable[[str], LocalModel]) -> LocalModel:
    return chat_model(CHATML)


@pytest.fixture(scope="module")
def shared(local: LocalModel) -> Iterator[Served]:
    with serving(local, policies=("window", "lookback-int8", "full")) as served:
        yield served


@pytest.fixture
def served(shared: Served) -> Iterator[Served]:
    """A server without sessions and keys."""
    yield shared
    shared.idle()
    shared.engine.call(lambda: erase_all(shared)).result()


@pytest.fixture(scope="module")
def guarded(local: LocalModel) -> Iterator[Served]:
    """A server with the keys of ann and bob."""
    with serving(local, keys=("ann", "bob")) as served:
        yield served


@pytest.fixture(scope="module")
def look() -> Iterator[Look]:
    """A function that calls another one with a page in a thread that owns the browser, and returns
    the requests, dialogs and errors of the page."""
    with ThreadPoolExecutor(1) as pool:  # another test may hold Playwright's loop in this thread
        playwright = pool.submit(sync_playwright().start).result()
        browser = pool.submit(
            playwright.chromium.launch, executable_path=find_executable()
        ).result()

        def see(do: Callable[[Page], None]) -> list[str]:
            return pool.submit(_see, browser, do).result()

        yield see
        pool.submit(browser.close).result()
        pool.submit(playwright.stop).result()


def answer_briefly(route: Any) -> None:
    """Let a request of the page through that wants a short reply; a random model may write long."""
    route.continue_(post_data={**route.request.post_data_json, "max_tokens": 5})


def answer_long(route: Any) -> None:
    """Let a request of the page through whose reply does not end by itself."""
    route.continue_(post_data={**route.request.post_data_json, "ignore_eos": True})


def _see(browser: Browser, do: Callable[[Page], None]) -> list[str]:
    noted: list[str] = []
    with browser.new_context() as context:
        page = context.new_page()
        page.set_default_timeout(15_000)
        page.on("request", lambda asked: noted.append(asked.url))
        page.on("pageerror", lambda error: noted.append(f"error: {error}"))
        do(page)
    return noted


def get(url: str, key: str = "", body: Any = None) -> tuple[int, Any, Any]:
    """Return the status of an answer, its headers, and what its JSON says."""
    headers = {"Content-Type": "application/json"} | (
        {"Authorization": f"Bearer {key}"} if key else {}
    )
    data = None if body is None else json.dumps(body).encode()
    try:
        with urllib.request.urlopen(urllib.request.Request(url, data, headers)) as answer:
            content = answer.read()
            return answer.status, answer.headers, json.loads(content) if key or data else content
    except urllib.error.HTTPError as error:
        return error.code, error.headers, json.loads(error.read())


def tokens(served: Served, slot: int = 0, query: str = "") -> Any:
    status, _, content = get(f"{served.url}/slots/{slot}/tokens{query}")
    assert status == 200, content
    return json.loads(content)


def change(served: Served, action: str, label: str) -> tuple[int, Any]:
    status, _, said = get(f"{served.url}/slots/0?action={action}", body={"label": label})
    return status, said


def states(shown: Any, label: str) -> set[tuple[float, bool]]:
    """What is held of the tokens with a label."""
    (span,) = (each for each in shown["spans"] if each["label"] == label)
    inside = (each for each in shown["pieces"] if span["start"] <= each["start"] < span["stop"])
    return {(each["hot"], each["cold"]) for each in inside}


@pytest.mark.browser
def test_a_chat_is_written_into_the_page_and_its_session_appears_with_its_bytes(
    served: Served, look: Look
) -> None:
    def chat(page: Page) -> None:
        page.goto(served.url)
        page.get_by_label("Name").fill("mine")
        page.get_by_role("button", name="Begin").click()
        page.route("**/chat/completions", answer_long)
        page.get_by_label("Message", exact=True).fill(WORDS)
        page.get_by_role("button", name="Send").click()
        expect(page.locator("#messages .assistant p").last).not_to_be_empty()
        page.get_by_role("button", name="Stop").click()
        expect(page.get_by_role("button", name="Send")).to_be_enabled()
        expect(page.locator("#sessions strong")).to_have_text("mine")
        expect(page.locator("#sessions li")).to_contain_text("hot")
        expect(page.locator("#spans")).to_contain_text("Add to cart")
        page.unroute("**/chat/completions")
        page.route("**/chat/completions", answer_briefly)
        page.get_by_label("Message", exact=True).fill("more")
        page.get_by_role("button", name="Send").click()
        expect(page.locator("#messages .use")).to_have_count(2)
        # the server goes on after all that it wrote of the reply that was stopped
        expect(page.locator("#messages .use").last).to_contain_text("continued: kept")

    noted = look(chat)
    assert all(each.startswith(f"{served.url}/") for each in noted), noted
    (session,) = json.loads(get(f"{served.url}/slots")[2])
    assert session["name"] == "mine" and session["hot_bytes"] > 0
    parts = ("hot_bytes", "cold_bytes", "snapshot_bytes")
    assert session["bytes"] == sum(session[each] for each in parts)


@pytest.mark.browser
def test_a_session_of_another_program_is_picked_and_says_what_was_reused(
    served: Served, look: Look
) -> None:
    ask(served, [user(WORDS)], prompt_cache_key="theirs")

    def chat(page: Page) -> None:
        page.route("**/chat/completions", answer_briefly)
        page.goto(served.url)
        page.get_by_role("button", name="theirs").click()
        expect(page.locator("#messages li")).to_have_count(2)
        page.get_by_label("Message", exact=True).fill("more")
        page.get_by_role("button", name="Send").click()
        expect(page.locator("#messages .use")).to_contain_text("continued: kept")

    look(chat)
    assert len(json.loads(get(f"{served.url}/slots")[2])) == 1


@pytest.mark.browser
def test_a_fork_that_is_made_on_the_page_goes_on_by_itself(served: Served, look: Look) -> None:
    ask(served, [user(WORDS)], prompt_cache_key="theirs")

    def fork(page: Page) -> None:
        page.route("**/chat/completions", answer_briefly)
        page.goto(served.url)
        page.get_by_role("button", name="theirs").click()
        page.get_by_role("button", name="Fork session").click()
        expect(page.locator("#sessions strong")).to_have_text(["theirs", "theirs (fork)"])
        expect(page.get_by_role("status")).to_contain_text("go on by themselves")
        expect(page.locator("#messages li")).to_have_count(2)
        page.get_by_label("Message", exact=True).fill("more")
        page.get_by_role("button", name="Send").click()
        expect(page.locator("#messages .use")).to_contain_text("continued: kept")

    look(fork)
    source, made = json.loads(get(f"{served.url}/slots")[2])
    assert source["n_tokens"] < made["n_tokens"] and made["name"] == "theirs (fork)"


@pytest.mark.browser
def test_hostile_text_is_shown_as_written_and_runs_nothing(served: Served, look: Look) -> None:
    ask(
        served,
        [user(HOSTILE)],
        prompt_cache_key=HOSTILE,
        extra_body={"agentkv": {"policy": "full"}},
    )

    def read(page: Page) -> None:
        page.goto(served.url)
        page.locator("#sessions button").click()
        expect(page.locator("#sessions strong")).to_have_text(HOSTILE)
        expect(page.locator("#messages li p").first).to_have_text(HOSTILE)
        expect(page.locator("#spans")).to_contain_text("<img src=x onerror=")
        assert page.evaluate("window.hit") is None
        assert page.locator("main img, main script, main a").count() == 0

    noted = look(read)
    assert all(each.startswith(f"{served.url}/") and "/x" not in each for each in noted), noted


@pytest.mark.browser
def test_tokens_of_a_reply_show_their_confidence_and_looks_to_eyes_and_keyboards(
    served: Served, look: Look
) -> None:
    options: Any = {"ignore_eos": True, "agentkv": {"policy": "lookback-int8"}}
    ask(
        served,
        [user(WORDS * 2)],
        max_tokens=30,
        temperature=1,
        seed=1,
        prompt_cache_key="sure",
        extra_body=options,
    )
    pieces = [each for each in tokens(served)["pieces"] if "confidence" in each and each["text"]]
    unsure = [each["confidence"] < 0.9 for each in pieces]
    looked = ["look" in each for each in pieces]
    assert any(unsure) and any(looked)

    def read(page: Page) -> None:
        page.goto(served.url)
        page.get_by_role("button", name="sure").click()
        reply = page.get_by_role("group", name="Text of reply 0")
        spans = reply.locator("span")
        expect(spans.first).to_be_visible()
        shown = spans.evaluate_all(
            """all => all.map((each) => {
              const mark = getComputedStyle(each, "::after").content.includes("?");
              return [each.title, mark, getComputedStyle(each).borderTopStyle !== "none"];
            })"""
        )[: len(pieces)]  # the last token of the reply is not read yet
        assert [mark for _, mark, _ in shown] == unsure
        assert [line for _, _, line in shown] == looked
        for (title, *_), piece in zip(shown, pieces, strict=True):
            assert f"confidence {100 * piece['confidence']:.1f} %" in title
            assert ("looked back and fetched" in title) == ("look" in piece)
        expect(page.locator("#spans .about")).to_contain_text("30 tokens written")
        # one stop of the Tab key per text, and arrows inside it
        assert reply.locator("[tabindex='0']").count() == 1
        spans.first.focus()
        detail = page.locator("#held-detail")
        expect(detail).to_contain_text("confidence")
        page.keyboard.press("End")
        expect(detail).to_contain_text("not read yet")
        page.keyboard.press("Home")
        page.keyboard.press("ArrowRight")
        assert spans.nth(1).evaluate("each => each === document.activeElement")
        expect(detail).to_contain_text(spans.nth(1).get_attribute("title") or "?")
        page.keyboard.press("Shift+Tab")
        assert not page.evaluate(
            "document.activeElement.closest('[aria-label=\"Text of reply 0\"]')"
        )
        page.keyboard.press("Tab")
        page.evaluate("look(true)")  # draws everything anew, and leaves the keyboard where it was
        assert page.evaluate("document.activeElement.dataset.does") == (
            spans.nth(1).get_attribute("data-does")
        )

    look(read)


@pytest.mark.browser
def test_a_hostile_reply_is_shown_as_written_token_by_token(
    chat_tokenizer: Callable[..., Any], look: Look
) -> None:
    tokenizer = chat_tokenizer(CHATML)
    pieces = add_pieces(tokenizer, HOSTILE)
    template = MessageTemplate(tokenizer)
    prompt = sum(template.opening(Chat([user("x")])), [])
    local = reciting_model(tokenizer, len(prompt), [*pieces, min(template.end_ids)])
    with serving(local, policies=("full",), budget=None) as served:
        ask(served, [user("x")], max_tokens=len(pieces) + 1, prompt_cache_key="hostile")

        def read(page: Page) -> None:
            page.goto(served.url)
            page.get_by_role("button", name="hostile").click()
            shown = page.get_by_role("group", name="Text of reply 0")
            expect(shown).to_have_text(HOSTILE)
            assert shown.locator("span").count() > 5 and shown.locator("*:not(span)").count() == 0
            shown.locator("span").nth(1).click()
            expect(page.locator("#held-detail")).to_contain_text("confidence")
            assert page.evaluate("window.hit") is None

        noted = look(read)
        assert all(each.startswith(f"{served.url}/") and "/x" not in each for each in noted), noted


@pytest.mark.browser
def test_a_server_with_keys_asks_for_one_and_shows_no_session_of_another(
    guarded: Served, look: Look
) -> None:
    ask(guarded, [user(WORDS)], prompt_cache_key="of ann")
    ask(guarded, [user(WORDS)], key="bob", prompt_cache_key="of bob")

    def sign_in(page: Page) -> None:
        page.goto(guarded.url)
        expect(page.get_by_role("main")).to_be_hidden()
        page.get_by_label("API key").fill("wrong")
        page.get_by_role("button", name="Open").click()
        expect(page.get_by_role("status")).to_have_text("This key is wrong.")
        page.get_by_label("API key").fill("bob")
        page.get_by_role("button", name="Open").click()
        expect(page.locator("#sessions strong")).to_have_text(["of bob"])

    look(sign_in)
    for path in ("tokens", "messages"):
        assert get(f"{guarded.url}/slots/0/{path}")[0] == 401
    (mine,) = get(f"{guarded.url}/slots", "ann")[2]
    assert mine["name"] == "of ann"


@pytest.mark.parametrize("policy", ["window", "lookback-int8"])
def test_evicted_tokens_are_gone_unless_they_may_come_back(served: Served, policy: str) -> None:
    ask(served, [user(WORDS + "☃ ü")], extra_body={"agentkv": {"policy": policy}})
    shown = tokens(served)
    assert WORDS + "☃ ü" in "".join(each["text"] for each in shown["pieces"])
    assert sum(each["n_tokens"] for each in shown["pieces"]) == shown["n_tokens"]
    found = {(each["hot"], each["cold"]) for each in shown["pieces"]}
    assert (1.0, False) in found and (0.0, policy == "lookback-int8") in found
    assert (0.0, policy == "window") not in found
    newest = tokens(served, query="?newest=10")
    assert sum(each["n_tokens"] for each in newest["pieces"]) == 10
    assert newest["first"] == newest["n_tokens"] - 10


@pytest.mark.parametrize("policy", ["full", "lookback-int8"])
def test_a_session_goes_on_after_a_drop_and_what_was_dropped_stays_away(
    served: Served, policy: str
) -> None:
    ours: Any = {"extra_body": {"agentkv": {"policy": policy}}}
    messages = [user("one")]
    messages = [*with_reply(messages, ask(served, messages, **ours)), user(WORDS)]
    messages = with_reply(messages, ask(served, messages, **ours))
    label = tokens(served)["spans"][2]["label"]
    status, dropped = change(served, "drop", label)
    assert status == 200
    assert states(tokens(served), label) == {(0.0, False)}
    more = ask(served, [*messages, user("more")], **ours)
    assert more.usage.agentkv["reuse"]["how"] == "continued"
    assert cached(more) + dropped["n_tokens"] >= tokens(served)["spans"][3]["start"]
    # an earlier state would bring it back
    again = ask(served, [*messages, user("else")], **ours)
    assert again.usage.agentkv["reuse"]["how"] == "returned"
    assert states(tokens(served), label) == {(0.0, False)}


def test_a_label_is_pinned_and_unpinned_and_an_unknown_one_is_refused(served: Served) -> None:
    ask(served, [user("Add to cart")])
    label = tokens(served)["spans"][0]["label"]
    assert change(served, "pin", label)[0] == 200
    assert tokens(served)["pins"][0]["start"] == 0
    assert change(served, "unpin", label)[0] == 200
    assert tokens(served)["pins"] == []
    status, said = change(served, "drop", "nothing")
    assert status == 400 and "no token that was fed has the label" in said["error"]["message"]


def test_the_files_of_the_page_let_a_browser_run_nothing_else(served: Served) -> None:
    for path in ("/", "/page.css", "/page.js", "/page.svg", "/held.css", "/held.js"):
        status, headers, content = get(served.url + path)
        assert status == 200
        policy = headers["Content-Security-Policy"]
        assert "default-src 'none'" in policy and "frame-ancestors 'none'" in policy
        assert "unsafe" not in policy
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert headers["Referrer-Policy"] == "no-referrer"
        assert b"innerHTML" not in content and b"style=" not in content
    for path in ("/page.html", "/static/page.js", "/../page.py", "/page.js/../page.py"):
        assert get(served.url + path)[0] == 404


def test_a_server_without_the_page_shows_no_text_either(local: LocalModel) -> None:
    with serving(local, page=False) as served:
        ask(served, [user("one")])
        for path in ("/", "/page.js", "/slots/0/tokens", "/slots/0/messages"):
            assert get(served.url + path)[0] == 404
        assert get(f"{served.url}/slots")[0] == 200
