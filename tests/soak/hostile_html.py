"""Pages that attack a browser, and the outcome of a visit to each."""

import http.server
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Self

from agentkv_env.actions import parse
from agentkv_env.browser import Browser
from agentkv_env.errors import ActionFailed, BrowserGone
from agentkv_env.page import Page

TIMEOUT_S = 3.0
MOST_S = 10 * TIMEOUT_S
"""Maximum seconds of one call of a session; a call waits for several things, one after another."""

GO = "<button>Go</button>"
FORM_FIELDS = (
    "childNodes getAttribute nodeType localName parentNode ownerDocument shadowRoot getClientRects "
    "getBoundingClientRect querySelector matches labels title hasAttribute textContent children "
    "checkVisibility isConnected tagName parentElement firstElementChild innerText tabIndex host "
    "assignedSlot addEventListener getRootNode scrollIntoView focus select type alt"
).split()
DOCUMENT_NAMES = (
    "title documentElement body scrollingElement defaultView createElement elementFromPoint "
    "activeElement createRange getElementById querySelector querySelectorAll location nodeType"
).split()
CLOBBERING = (
    "<form role=button aria-label=F>"
    + "".join(f"<input name={name} value=v>" for name in FORM_FIELDS)
    + "<button>Inner</button></form><p>after</p>"
    + "".join(f"<form name={name}></form><img name={name}>" for name in DOCUMENT_NAMES)
)


def nested(tag: str, depth: int, inside: str = "document.body") -> str:
    return (
        f"{GO}<script>let e = {inside}; for (let i = 0; i < {depth}; i++) {{ const d = document"
        f".createElement('{tag}'); e.appendChild(d); e = d }} e.textContent = 'bottom'</script>"
    )


def repeated(what: str, every_ms: int = 0) -> str:
    return f"{GO}<script>setInterval(() => {{ {what} }}, {every_ms})</script>"


CASES: dict[str, tuple[str, str]] = {
    "surrogates": (
        "<input id=i aria-label=x><p id=p></p><script>i.value = 'a\\ud800b';"
        "p.textContent = 't\\udfff'; document.title = 'T\\ud800'</script>",
        "click [1]",
    ),
    "slow link": ("<a href=/slow>Go</a>", "click [1]"),
    "slow by script": (
        f"{GO}<script>setTimeout(() => location = '/slow', 99)</script>",
        "hover [1]",
    ),
    "closes itself": (
        "<button onclick='window.close()'>Go</button><script>window.close()</script>",
        "click [1]",
    ),
    "tab closes itself": (
        "<a href='data:text/html,x' target=_blank>Go</a><script>onfocus = () => close()</script>",
        "click [1]",
    ),
    "windows": (repeated("open('/other')", 20), "click [1]"),
    "windows by links": (
        "<a id=a href=/other target=_blank>t</a>" + repeated("a.click()", 20),
        "click [1]",
    ),
    "windows by click": ("<button onclick='for (;;) if (!open()) break'>Go</button>", "click [1]"),
    "clobbering": (CLOBBERING, "click [1]"),
    "reload": (f"{GO}<script>setTimeout(() => location.reload())</script>", "click [1]"),
    "reload at once": (f"{GO}<script>location.reload()</script>", "click [1]"),
    "hanging style": (f"<link rel=stylesheet href=/slow>{GO}", "click [1]"),
    "hanging import": (f"<style>@import '/slow';</style>{GO}", "click [1]"),
    "hanging script": (f"{GO}<script src=/slow></script>", "click [1]"),
    "hanging font": (
        f"<style>@font-face{{font-family:X;src:url(/slow)}}*{{font-family:X}}</style>{GO}",
        "click [1]",
    ),
    "hanging image": (f"<img src=/slow width=99 height=99>{GO}", "click [1]"),
    "deep spans": (nested("span", 3000), "click [1]"),
    "deep boxes": (nested("div", 3000), "click [1]"),
    "deep button": (
        nested("span", 2000, "document.querySelector('button')"),
        "click [1]",
    ),
    "deep shadows": (
        f"{GO}<div id=d></div><script>let e = d; for (let i = 0; i < 1000; i++) {{ "
        "const n = document.createElement('div'); e.appendChild(n);"
        "e = n.attachShadow({mode: 'open'}) }</script>",
        "click [1]",
    ),
    "huge canvas": (
        f"<canvas id=c width=16384 height=16384></canvas>{GO}"
        "<script>c.getContext('2d').fillText('x', 9, 9)</script>",
        "click [1]",
    ),
    "alerts": (repeated("alert(Math.random())"), "click [1]"),
    "endless alerts": ("<button onclick='for (;;) alert(1)'>Go</button>", "click [1]"),
    "dialogs": (
        "<button onclick='for (let i = 0; i < 99; i++) { prompt(i); confirm(-i) }'>Go</button>",
        "click [1]",
    ),
    "beforeunload": (
        "<button>Go</button><a href=/other>Leave</a><script>onbeforeunload = () => 'stay'</script>",
        "click [2]",
    ),
    "endless loop": ("<button onclick='for (;;) {}'>Go</button>", "click [1]"),
    "endless microtasks": (
        "<button onclick='(function f() { Promise.resolve().then(f) })()'>Go</button>",
        "click [1]",
    ),
    "own prototypes": (
        f"{GO}<script>JSON.parse = JSON.stringify = () => {{ throw 1 }}; Promise.prototype.then ="
        "Array.prototype.map = Array.prototype.push = Array.prototype[Symbol.iterator] = null;"
        "Map.prototype.get = WeakMap.prototype.get = null; Function.prototype.call = null;"
        "window.Promise = window.setTimeout = window.requestAnimationFrame = null</script>",
        "click [1]",
    ),
    "many lines": (
        f"{GO}<script>let s = ''; for (let i = 0; i < 40000; i++) s += '<p>line ' + i;"
        "document.body.insertAdjacentHTML('beforeend', s)</script>",
        "scroll [down]",
    ),
    "many boxes in view": (
        f"{GO}<script>let s = ''; for (let i = 0; i < 20000; i++) s += '<b style=position:absolute;"
        "top:0>x' + i + '</b>'; document.body.insertAdjacentHTML('beforeend', s)</script>",
        "click [1]",
    ),
    "long text": (f"{GO}<p id=p></p><script>p.append('word '.repeat(4e5))</script>", "click [1]"),
    "many options": (
        f"{GO}<select id=s></select><script>let o = ''; for (let i = 0; i < 3e4; i++) o += "
        "'<option>' + i; s.innerHTML = o</script>",
        "click [1]",
    ),
    "many frames": (f"{GO}{'<iframe srcdoc=x width=20 height=20></iframe>' * 200}", "click [1]"),
    "foreign frames": (
        f"{GO}{'<iframe sandbox srcdoc=x width=20 height=20></iframe>' * 100}",
        "click [1]",
    ),
    "frames in frames": (
        f"{GO}<iframe srcdoc=\"{GO}<iframe srcdoc='<p>deep' height=50></iframe>\"></iframe>" * 60,
        "click [1]",
    ),
    "fifty thousand nodes": (
        f"{GO}<ul id=u></ul><script>u.innerHTML = '<li><a href=/other>x</a> y'.repeat(25000)"
        "</script>",
        "click [1]",
    ),
    "frame of itself": (f"{GO}<iframe src='?x' width=400 height=300></iframe>", "click [1]"),
    "history": (repeated("history.pushState(0, '', '?' + Math.random())"), "click [1]"),
    "hashes": (repeated("location.hash = Math.random()"), "click [1]"),
    "polling": (repeated("fetch('/other?' + Math.random())", 5), "click [1]"),
    "replaced root": (
        repeated("const r = document.documentElement; r.replaceWith(r.cloneNode(true))"),
        "click [1]",
    ),
    "no root": (
        f"{GO}<script>setTimeout(() => document.documentElement.remove())</script>",
        "hover [1]",
    ),
    "written anew": (
        repeated("document.open(); document.write('<button>W</button>'); document.close()", 5),
        "click [1]",
    ),
    "never closed": (f"{GO}<script>onload = () => document.write('<p>open')</script>", "click [1]"),
    "escapes": (
        "<title>\x1b[31mred\x07</title><button>\x1b[2J\u202eGo\u200b</button>",
        "click [1]",
    ),
    "many dialogs": (
        f"{GO}<p id=p></p><script>p.innerHTML = '<i aria-modal=true style=position:absolute>x</i>'"
        ".repeat(50000)</script>",
        "click [1]",
    ),
    "covered by a dialog": (
        f"{GO}<div id=d></div><div aria-modal=true style='position:fixed;inset:9px'>Sure?</div>"
        "<script>let e = d; for (let i = 0; i < 400; i++) e = e.appendChild(document.createElement("
        "'div')); e.innerHTML = '<b style=position:absolute;top:9px>x</b> '.repeat(4900)</script>",
        "click [1]",
    ),
    "many animations": (
        f"{GO}<p id=p></p><script>p.innerHTML = '<i>x</i> '.repeat(20000); const frames = "
        "Array.from({length: 50}, (_, i) => ({left: i + 'px'}));"
        "for (const e of p.children) e.animate(frames, 1e6)</script>",
        "click [1]",
    ),
    "many areas of a map": (
        f"{GO}<img usemap=#m width=300 height=300><map name=m id=m></map><script>m.innerHTML = "
        "'<area href=#x coords=0,0,9,9>'.repeat(20000)</script><p>"
        + "<img usemap=#n width=9 height=9>"
        * 2000,
        "click [1]",
    ),
    "forged listeners": (
        f"{GO}<b id=b>Fold</b><script>b.addEventListener('click', () => 1);"
        "window.$$ = () => ({ length: 'x'.repeat(5e8) });"
        "window.getEventListeners = () => { for (;;) {} }</script>",
        "click [1]",
    ),
    "downloads": (
        repeated(
            "const a = document.createElement('a'); a.href = 'data:application/x,x';"
            "a.download = '\\x1b[2J x' + Math.random(); a.click()",
            20,
        ),
        "click [1]",
    ),
}
"""Name to document and action on it."""


class Served:
    """A loopback server with one document, and a browser that is relaunched if it is lost."""

    def __init__(self) -> None:
        self.html = ""
        self._released = threading.Event()
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                path = self.path.partition("?")[0]
                if path == "/slow":
                    outer._released.wait(14)
                body = outer.html if path == "/" else "<title>Other</title>other"
                try:
                    self.send_response(200)
                    self.send_header("Content-Type", "text/html; charset=utf-8")
                    self.end_headers()
                    self.wfile.write(body.encode())
                except OSError:
                    pass  # the page did not wait for the answer

            def log_message(self, *args: object) -> None:
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._browser: Browser | None = None

    @property
    def origin(self) -> str:
        return f"http://shop.localhost:{self._server.server_port}"

    @property
    def browser(self) -> Browser:
        if self._browser is None or not self._browser.is_alive:
            if self._browser is not None:
                self._browser.close()
            self._browser = Browser.launch()
        return self._browser

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._released.set()
        if self._browser is not None:
            self._browser.close()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class TooLate(Exception):
    """A call took more than `MOST_S`."""


@contextmanager
def _limited(call: str) -> Iterator[None]:
    begun = time.monotonic()
    try:
        yield
    finally:
        if (took_s := time.monotonic() - begun) > MOST_S:
            raise TooLate(f"{call} took {took_s:.0f} s")


def visited(served: Served, html: str, action: str) -> tuple[Page | None, str]:
    """Open `html`, observe, act and observe; return the last page and any unexpected error.

    ActionFailed and BrowserGone are expected, because the agent loop handles them. An error is also
    unexpected if it comes late: none of the calls may take more than `MOST_S`.
    """
    served.html = html
    page: Page | None = None
    try:
        with served.browser.session(hosts=["shop.localhost:*"], timeout_s=TIMEOUT_S) as session:
            session.open(served.origin + "/")
            for text in ("", action):
                try:
                    if text:
                        with _limited("act"):
                            session.act(parse(text))
                except ActionFailed:
                    pass
                with _limited("observe"):
                    page = session.observe()
                with _limited("screenshot"):
                    session.screenshot()
                if len(page.tabs) > 10:
                    return page, f"{len(page.tabs)} tabs"
    except (ActionFailed, BrowserGone):
        return page, ""
    except Exception as error:  # any other error is a finding
        return page, f"{type(error).__name__}: {error}"
    return page, ""
