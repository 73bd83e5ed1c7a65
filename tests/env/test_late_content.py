"""What a page shows some time after an action, in a real browser."""

import pytest

from agentkv_env.actions import parse
from agentkv_env.browser import Browser
from agentkv_env.page import Page
from tests.env.conftest import Pages, Visit

pytestmark = pytest.mark.browser

BUTTON = "<button onclick=go()>Go</button><p id=out></p><script>const show = () => {"
BUTTON += "out.textContent = 'came late' }; function go() { %s }</script>"
SLEEP = "const sleep = (ms) => new Promise((done) => setTimeout(done, ms)); (async () => { %s })()"
FADE = "<p style='transition: opacity .2s' ontransitionend='show()'>old</p>"
FADES = "const old = document.querySelector('p'); old.style.opacity = 0"
DRAWER = "<div style='position:fixed; left:-400px; transition: left .2s'>came late</div>"


def texts(page: Page) -> list[str]:
    return [node.name for node in page.nodes]


LATE = {
    "timer": BUTTON % "out.textContent = 'Wait'; setTimeout(show, 300)",
    "chain": BUTTON % "setTimeout(() => setTimeout(() => setTimeout(show, 90), 90), '90')",
    "interval": BUTTON
    % "let n = 0, i = setInterval(() => { if (++n > 3) { clearInterval(i); show() } }, 50)",
    "idle": BUTTON % "setTimeout(() => requestIdleCallback(() => requestIdleCallback(show)), 100)",
    "sleep": BUTTON % (SLEEP % "await sleep(100); await sleep(100); show()"),
    "fetch": BUTTON % "setTimeout(async () => { await fetch('/x'); setTimeout(show, 99) }, 99)",
    "task": BUTTON % "scheduler.postTask(show, { delay: 150 })",
    "transition": FADE + BUTTON % FADES,
    "drawer": DRAWER + BUTTON % "document.querySelector('div').style.left = 0",
    "frame": "<iframe src=/x></iframe>",
}


def test_what_an_action_causes_is_in_the_next_observation(visit: Visit) -> None:
    missed = []
    for name, html in LATE.items():
        visit.show(html, x=BUTTON % "setTimeout(show, 150)")
        missed += [name] if "came late" not in texts(visit.act("click [{go}]", go="Go")) else []
    assert missed == []


def test_suggestions_come_for_the_second_text_too(visit: Visit) -> None:
    visit.show("""<input aria-label=City><p></p><script>let timer;
        const [field, list] = document.querySelectorAll("input,p"); field.oninput = () => {
        clearTimeout(timer); timer = setTimeout(() => { list.textContent = field.value + "!" },
        150) }
        </script>""")
    assert "Oslo!" in texts(visit.act("type [{f}] [Oslo] [0]", f="City"))
    assert "Rome!" in texts(visit.act("type [{f}] [Rome] [0]", f="City"))


def test_a_page_that_moves_by_itself_holds_no_action_up(visit: Visit) -> None:
    visit.show(f"""<p id=clock></p><script>const sleep = (ms) => new Promise((done) =>
        setTimeout(done, ms)); let n = 0; const tick = () => {{ clock.textContent = n++;
        setTimeout(tick, 40) }}; tick(); setInterval(() => {{}}, 30); (async () => {{ for (;;) await
        sleep(50) }})()</script>{BUTTON % "show()"}""")
    visit.session.page.wait_for_function("n > 9")
    tab = visit.session._tabs.current
    tab.begin_action()
    assert not tab.wait_late()
    visit.session.page.wait_for_function("n > 19")
    assert "came late" in texts(visit.act("click [{go}]", go="Go"))
    assert not tab.wait_late()


def test_an_action_without_a_late_effect_is_not_waited_for(visit: Visit) -> None:
    for script in ("show()", "setTimeout(show, 60000)"):
        visit.show(BUTTON % script)
        tab = visit.session._tabs.current
        tab.begin_action()
        visit.session.page.click("button")
        assert not tab.wait_late(), script


def test_timers_of_a_page_that_loads_are_waited_for_only_if_it_is_not_finished(
    visit: Visit,
) -> None:
    bone = "<style>@keyframes k { to { opacity: 0.5 } }</style><div style='height:20px; "
    bone += "animation: k 1s infinite'></div>"
    late = (
        "<p>%s</p><script>setTimeout(() => { document.body.innerHTML = 'came late' }, %d)</script>"
    )
    for unfinished in (bone, "<div aria-busy=true>Loading</div>", "<progress></progress>", ""):
        assert texts(visit.show(unfinished + late % ("", 150))) == ["came late"]
    page = visit.show(late % ("Here", 1400))
    assert texts(page) == ["Here"] and not page.may_change


def test_a_text_without_end_is_read_in_between_and_may_be_waited_for(visit: Visit) -> None:
    visit.show(BUTTON % "setInterval(() => out.append('word '), 40)")
    page = visit.act("click [{go}]", go="Go")
    assert any("word word" in text for text in texts(page))
    assert page.may_change


@pytest.mark.parametrize("frame_ms", [0, pytest.param(120, marks=pytest.mark.slow)])
def test_a_page_that_draws_frame_after_frame_may_be_waited_for(
    browser: Browser, pages: Pages, frame_ms: int
) -> None:
    busy = f"const at = performance.now(); while (performance.now() < at + {frame_ms});"
    draw = f"const f = () => {{ out.append('.'); {busy} requestAnimationFrame(f) }}; f()"
    hosts = [f"shop.localhost:{pages.port}"]
    with browser.session(hosts=hosts, timeout_s=2) as session:
        visit = Visit(session, pages)
        visit.show(BUTTON % draw)
        assert visit.act("click [{go}]", go="Go").may_change
        assert visit.act("wait").may_change
        visit.show(
            f"<p id=out></p><p id=done></p><script>{draw}</script>"
            "<button onclick='done.append(1)'>Go</button>"
        )
        session.page.wait_for_function("performance.now() > 1000")  # it was seen to move
        assert not visit.act("click [{go}]", go="Go").may_change


def test_a_page_may_count_frames_before_it_answers(visit: Visit) -> None:
    count = "let n = 0; const f = () => ++n < 30 ? requestAnimationFrame(f) : show(); f()"
    visit.show(BUTTON % count)
    assert "came late" in texts(visit.act("click [{go}]", go="Go"))


def test_what_takes_longer_than_an_action_comes_by_a_wait(visit: Visit) -> None:
    page = visit.show(BUTTON % "setTimeout(show, 2200)")
    assert not page.may_change
    page = visit.act("click [{go}]", go="Go")
    assert page.may_change and "came late" not in texts(page)
    page = visit.act("wait")
    assert "came late" in texts(page) and not page.may_change


def test_a_wait_is_of_use_where_an_action_changed_nothing_yet(visit: Visit) -> None:
    """The answer may come from elsewhere, such as from a worker."""
    source = "onmessage = () => setTimeout(() => postMessage(1), 1500)"
    visit.show(
        BUTTON
        % f"""const url = URL.createObjectURL(new Blob(['{source}']));
        const worker = new Worker(url); worker.onmessage = show; worker.postMessage(1)"""
    )
    assert visit.act("click [{go}]", go="Go").may_change
    page = visit.act("wait")
    assert "came late" in texts(page) and not page.may_change
    visit.show("<button>Go</button>")
    assert not visit.act("click [{go}]", go="Go").may_change


def test_a_wait_is_not_over_because_a_clock_moves(visit: Visit) -> None:
    visit.show("""<p id=clock></p><p id=out></p><script>let n = 0; const tick = () => {
        clock.textContent = n++; setTimeout(tick, 300) }; tick();</script>""")
    visit.session.page.wait_for_function("n > 2")
    visit.session.page.evaluate("void setTimeout(() => { out.textContent = 'came late' }, 900)")
    assert "came late" in texts(visit.act("wait"))


def test_a_message_that_came_and_went_is_told(visit: Visit) -> None:
    toast = "<div role=status>Saved to drafts</div>"
    visit.show(BUTTON % f"out.innerHTML = '{toast}'; setTimeout(() => out.replaceChildren(), 400)")
    page = visit.act("click [{go}]", go="Go")
    assert page.notices == ("shown for a moment: Saved to drafts",)
    assert visit.session.observe().notices == ()
    # however long ago the page was read
    whole = {"x": 0, "y": 0}
    visit.session._tabs.current.script.call("walk", 2, None, whole, None, 0)  # its time is over
    visit.session.page.focus("button")
    visit.session.act(parse("press [Enter]", strict=False))
    assert visit.session.observe().notices == ("shown for a moment: Saved to drafts",)


def test_a_message_that_stays_is_read_where_it_is(visit: Visit) -> None:
    toast = "<div role=status>Saved to drafts</div>"
    visit.show(BUTTON % f"out.innerHTML = '{toast}'; setTimeout(() => out.replaceChildren(), 4000)")
    page = visit.act("click [{go}]", go="Go")
    assert page.notices == () and "Saved to drafts" in texts(page)


def test_the_timers_of_a_page_work_as_without_us(visit: Visit) -> None:
    visit.show("<p>Text</p>")
    found = visit.session.page.evaluate("""async () => {
        const heard = []; const stopped = setTimeout(() => heard.push("stopped"), 10);
        clearTimeout(stopped); clearTimeout(undefined); clearTimeout({}); setTimeout("", 5);
        const late = (...given) => new Promise((done) => setTimeout.call(window, () =>
          setTimeout((...all) => { heard.push(...all); done() }, ...given), 10));
        await late("20", 1, 2); await late(); await late(undefined, 3);
        let threw = ""; try { setTimeout(Symbol()) } catch (error) { threw = error.name }
        return [heard, threw, setTimeout.name, String(setTimeout).includes("[native code]"),
          Object.keys(window).filter((name) => /agentkv|timer/i.test(name))] }""")
    assert found == [[1, 2, 3], "TypeError", "setTimeout", True, []]


def test_a_page_that_arms_countless_timers_is_read(visit: Visit) -> None:
    visit.show(BUTTON % "for (let n = 0; n < 9999; n++) setTimeout(() => n, 4 + n % 50); show()")
    assert "came late" in texts(visit.act("click [{go}]", go="Go"))


def test_a_strict_session_waits_for_no_timer(browser: Browser, pages: Pages) -> None:
    pages.set({"/": BUTTON % "setTimeout(show, 4000)"})
    with browser.session(hosts=[f"shop.localhost:{pages.port}"], strict=True) as session:
        session.open(pages.origin() + "/")
        session.observe()
        session.act(parse("click [1]"))
        assert not session.observe().may_change
