"""Attempts to leave the allowed hosts, each with and without our fence.

Every attempt has its own port, on which any connection or datagram counts. Several attempts can
therefore share a page, and late traffic counts for the right one. An attempt proves something only
if it reaches its port in a plain browser without the fence; otherwise its case is unproven.
"""

import html
import http.server
import json
import random
import re
import selectors
import socket
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import Any, Literal, Self
from urllib.parse import quote

from playwright.sync_api import Error

from agentkv_env.browser import Browser, find_executable
from agentkv_env.errors import ActionFailed, BrowserGone
from agentkv_env.session import Session
from tests.soak import escapes
from tests.soak.part import Part, Verdict

BATCH = 10
"""Number of attempts that share a page."""
CALLER_S = 2.0
"""Time limit of each call on a caller's page: a form that was sent off leaves the page mute."""

Place = Literal["page", "alone", "iframe", "srcdoc", "data", "blob", "sandbox", "window"]
Setup = Literal["none", "session", "caller", "idle session", "idle caller"]
"""The fence around the page: none (the control), `Browser.session`, or `Session.on` on a caller's
page. In the idle setups, the session's Python thread makes no browser calls meanwhile."""


class Listeners:
    """Ports of the forbidden host: TCP and UDP on all loopback addresses; any byte counts."""

    def __init__(self) -> None:
        self.touched: dict[int, str] = {}
        """Port to the first protocol that arrived on it."""
        self._open: list[socket.socket] = []
        self._selector = selectors.DefaultSelector()
        self._ended = False
        self._next_port = random.randrange(11_000, 32_000)
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._serve, daemon=True)

    def port(self) -> int:
        while True:
            # No port is reused or from the range of client ports, so that late traffic of an
            # earlier page does not count for a later attempt.
            port = self._next_port
            self._next_port = port + 1 if port < 32_000 else 11_000
            try:
                tcp = _bound(socket.SOCK_STREAM, port)
            except OSError:
                continue
            try:
                udp = _bound(socket.SOCK_DGRAM, port)
            except OSError:
                tcp.close()
                continue
            tcp.listen()
            with self._lock:
                self._selector.register(tcp, selectors.EVENT_READ, (port, "tcp"))
                self._selector.register(udp, selectors.EVENT_READ, (port, "udp"))
                self._open += [tcp, udp]
            return port

    def close_ports(self) -> None:
        """Close all open ports."""
        with self._lock:
            for each in self._open:
                self._selector.unregister(each)
                each.close()
            self._open.clear()

    def _serve(self) -> None:
        while not self._ended:
            for key, _ in self._selector.select(0.05):
                port, kind = key.data
                found: Any = key.fileobj
                with suppress(OSError, ValueError, KeyError):
                    if kind == "udp":
                        found.recvfrom(2048)
                        self.touched.setdefault(port, "udp")
                    elif kind == "tcp":
                        accepted, _ = found.accept()
                        self.touched.setdefault(port, "tcp")
                        accepted.setblocking(False)
                        self._selector.register(accepted, selectors.EVENT_READ, (port, "asked"))
                    else:
                        self._selector.unregister(found)
                        self._answer(found, port)

    def _answer(self, accepted: socket.socket, port: int) -> None:
        request = accepted.recv(4096)
        kind = "text/html"
        if found := re.match(rb"\w+ \S*\.(js|css|png|json)\b", request):
            extension = found[1].decode()
            kind = {"js": "text/javascript", "css": "text/css", "png": "image/png"}.get(
                extension, "application/json"
            )
        body = "" if kind != "text/html" else f"<title>forbidden</title><p>forbidden {port}</p>"
        accepted.setblocking(True)
        accepted.sendall(
            f"HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n"
            "Access-Control-Allow-Origin: *\r\nAccess-Control-Allow-Headers: *\r\n"
            "Access-Control-Allow-Methods: *\r\nCross-Origin-Resource-Policy: cross-origin\r\n"
            "Supports-Loading-Mode: credentialed-prerender\r\nConnection: close\r\n\r\n"
            f"{body}".encode()
        )
        accepted.close()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended = True
        self._thread.join()
        self.close_ports()


def _bound(kind: socket.SocketKind, port: int) -> socket.socket:
    if socket.has_dualstack_ipv6():
        made = socket.socket(socket.AF_INET6, kind)
        made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        made.bind(("::", port))
    else:
        made = socket.socket(socket.AF_INET, kind)
        made.bind(("", port))
    return made


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    headers: dict[str, str]
    body: str


class Site:
    """The allowed host: answers by path, and redirects to any requested address."""

    def __init__(self) -> None:
        self.answers: dict[str, Answer] = {}
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                self.rfile.read(int(self.headers.get("Content-Length", 0)))
                path, _, query = self.path.partition("?")
                answer = outer.answers.get(path) or outer.general(path, query)
                if answer.status == 103:
                    self.send_response_only(103)
                    for name, value in answer.headers.items():
                        self.send_header(name, value)
                    self.end_headers()
                    answer = Answer(200, {}, answer.body)
                self.send_response(answer.status)
                body = answer.body.encode()
                kind = "text/javascript" if path.endswith(".js") else "text/html; charset=utf-8"
                headers = {"Content-Type": kind, "Content-Length": str(len(body)), **answer.headers}
                for name, value in headers.items():
                    self.send_header(name, value)
                self.end_headers()
                with suppress(OSError):
                    self.wfile.write(body)

            do_POST = do_PUT = do_GET

            def log_message(self, format: str, *args: object) -> None:
                pass

            def handle(self) -> None:
                with suppress(OSError):
                    super().handle()

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.host = f"shop.localhost:{self._server.server_port}"
        self.origin = f"http://{self.host}"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    def general(self, path: str, query: str) -> Answer:
        way, _, rest = path.removeprefix("/").partition("/")
        if way == "go":
            return Answer(int(rest), {"Location": query}, "")
        if way == "hop":
            return Answer(302, {"Location": f"http://evil.localhost:{rest}/x.html"}, "")
        if way == "meta":
            return Answer(200, {}, f"<meta http-equiv=refresh content='0;url={query}'>")
        if way == "script":
            return Answer(200, {}, f"<script>location='{query}'</script>")
        if way == "refresh":
            return Answer(200, {"Refresh": f"0;url={query}"}, "")
        return Answer(200, {}, "<p>empty")

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@dataclass(frozen=True, slots=True)
class Attempt:
    """One attempt; texts have the placeholders of `escapes`."""

    name: str
    place: Place
    text: str
    headers: tuple[tuple[str, str], ...] = ()
    status: int = 200
    via: str = ""
    """An address of the page's own host that replaces `@U/x...`."""
    spelling: str = ""


def _filled(text: str, port: int, origin: str) -> str:
    for mark, value in {
        "@U": f"http://evil.localhost:{port}",
        "@W": f"ws://evil.localhost:{port}",
        "@S": f"https://evil.localhost:{port}",
        "@H": f"evil.localhost:{port}",
        "@P": str(port),
        "@G": origin,
    }.items():
        text = text.replace(mark, value)
    return text


_SAMPLED_TEXTS = (
    *("img", "css background", "script", "dynamic import", "fetch", "xhr", "beacon", "WebSocket"),
    *("EventSource", "prefetch", "preconnect", "iframe", "frame form post", "STUN", "TURN tcp"),
    *("speculation prefetch", "WebTransport hashes", "ping"),
)
_PLACES: tuple[Place, ...] = ("iframe", "srcdoc", "data", "blob", "sandbox", "window")
_WORKERS = {
    "worker": "new Worker('@G/@K.js')",
    "module worker": "new Worker('@G/@K.js',{type:'module'})",
    "blob worker": "new Worker(URL.createObjectURL(new Blob([@C])))",
    "data worker": "new Worker('data:text/javascript,'+encodeURIComponent(@C))",
    "shared worker": "new SharedWorker('@G/@K.js')",
    "shared blob worker": "new SharedWorker(URL.createObjectURL(new Blob([@C])))",
    "service worker": "navigator.serviceWorker.register('@G/@K.js',{scope:'/@K'}).catch(()=>0)",
}
_LEADS = {
    **{f"redirect {code}": f"@G/go/{code}?@U/x.html" for code in (301, 302, 303, 307, 308)},
    "two hops": "@G/go/302?/hop/@P",
    "meta": "@G/meta?@U/x.html",
    "script": "@G/script?@U/x.html",
    "Refresh": "@G/refresh?@U/x.html",
    "direct": "@U/x.html",
}


def attempts() -> dict[str, list[Attempt]]:
    """Return all attempts by kind; the attempts of a kind share one session."""
    found: dict[str, list[Attempt]] = {
        "document": [Attempt(name, "page", text) for name, text in escapes.DOCUMENT.items()],
        "document, redirected": [
            Attempt(f"{name}, redirected", "page", re.sub(r"@U(?=/x)", "@G/go/302?@U", text))
            for name, text in escapes.DOCUMENT.items()
            if "@U/x" in text and not name.startswith(("svg use", "Link"))
        ],
    }
    for place in _PLACES:
        found[f"in {place}"] = [
            Attempt(f"{name} in {place}", place, escapes.DOCUMENT[name]) for name in _SAMPLED_TEXTS
        ]
    places: tuple[Place, ...] = ("alone", "iframe", "window")
    for place in places:
        found[f"navigation in {place}"] = [
            Attempt(f"{name} in {place}", place, text) for name, text in escapes.NAVIGATION.items()
        ]
        found[f"answers in {place}"] = [
            Attempt(
                f"{name} in {place}",
                place,
                "<img src='@U/x.png'><img src='/x.png'>" if "img-src" in str(headers) else "<p>a",
                tuple(headers.items()),
                status,
            )
            for name, (status, headers) in escapes.HEADERS.items()
        ]
    for kind in _WORKERS:
        found[kind] = [
            Attempt(f"{name} in {kind}", "page", f"<script>@{kind}@{code}</script>")
            for name, code in escapes.WORKER.items()
        ]
    for lead, address in _LEADS.items():
        found[f"windows: {lead}"] = [
            Attempt(f"{name}: {lead}", "page", text.replace("@R", address))
            for name, text in escapes.WINDOWS.items()
        ]
    found["spelling, fetched"] = [
        Attempt(
            f"{name}, fetched",
            "page",
            f"<script>fetch({json.dumps(address)},{{mode:'no-cors'}}).catch(()=>0)</script>",
        )
        for name, address in escapes.SPELLINGS.items()
    ]
    found["spelling, gone to"] = [
        Attempt(f"{name}, gone to", "alone", f"<script>location={json.dumps(address)}</script>")
        for name, address in escapes.SPELLINGS.items()
    ]
    return found


class Harness:
    """Both hosts and both browsers; runs attempts."""

    def __init__(self, *, patience_s: float = 1.5) -> None:
        """`patience_s` limits the time of an attempt to escape without the fence."""
        self._patience_s = patience_s
        self._stack = ExitStack()
        self._number = 0

    def __enter__(self) -> Self:
        self.listeners = self._stack.enter_context(Listeners())
        self.site = self._stack.enter_context(Site())
        self._own = self._stack.enter_context(Browser.launch())
        with self._own.session(hosts=[]) as session:
            browser = session.page.context.browser
        assert browser is not None
        self.plain = browser.browser_type.launch(executable_path=find_executable())
        self._stack.callback(self.plain.close)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @property
    def own(self) -> Browser:
        """A browser of ours; a new one after the watchdog killed the last."""
        if not self._own.is_alive:
            self._own = self._stack.enter_context(Browser.launch())
        return self._own

    def run(
        self, chosen: Sequence[Attempt], setups: Iterable[Setup]
    ) -> dict[Setup, dict[str, str]]:
        """Return, by setup, what each attempt reached ("" for nothing)."""
        result: dict[Setup, dict[str, str]] = {}
        seconds: dict[int, float] = {}
        for setup in setups:
            ports = {each: self.listeners.port() for each in chosen}
            with ExitStack() as stack:
                shown = self._run(chosen, setup, ports, seconds, stack)
            touched = self.listeners.touched
            result[setup] = {
                each.name: touched.get(port, "") or ("shown" if str(port) in shown else "")
                for each, port in ports.items()
            }
        self.listeners.close_ports()
        self.site.answers.clear()
        return result

    def _run(
        self,
        chosen: Sequence[Attempt],
        setup: Setup,
        ports: dict[Attempt, int],
        seconds: dict[int, float],
        stack: ExitStack,
    ) -> set[str]:
        session: Session | None = None
        if setup.endswith("session"):
            session = stack.enter_context(self.own.session(hosts=[self.site.host]))
            page = session.page
        else:
            context = self.plain.new_context(service_workers="allow")
            stack.callback(context.close)
            page = context.new_page()
            if setup != "none":
                page.goto(self.site.origin + "/start")
                session = stack.enter_context(
                    Session.on(page, hosts=[self.site.host], timeout_s=CALLER_S)
                )
        shown: set[str] = set()
        step = 1 if chosen[0].place == "alone" else BATCH
        for start in range(0, len(chosen), step):
            batch = chosen[start : start + step]
            address = self._written([(each, ports[each]) for each in batch])
            started = time.monotonic()
            with suppress(Error):
                page.goto(address, wait_until="commit", timeout=3000)
            patience = seconds.get(start, self._patience_s)
            if setup.startswith("idle"):
                time.sleep(patience)
            while time.monotonic() < started + patience + (0.3 if setup.startswith("idle") else 0):
                try:
                    page.wait_for_timeout(20)
                except Error:
                    return shown  # the browser is dead, so nothing can escape
                if setup == "none" and all(ports[each] in self.listeners.touched for each in batch):
                    seconds[start] = 0.25 + 1.5 * (time.monotonic() - started)
                    break
            if session is not None:
                shown |= _shown(session)
            for other in page.context.pages:
                if other != page:
                    with suppress(Error):
                        # A page that reloads itself forever never reports that it is closed.
                        other.close(run_before_unload=True)
        return shown

    def _serve(self, answer: Answer, extension: str = "") -> str:
        self._number += 1
        key = f"k{self._number}"
        self.site.answers[f"/{key}{extension}"] = answer
        return key

    def _written(self, batch: Sequence[tuple[Attempt, int]]) -> str:
        """Return the address of a page with these attempts."""
        alone = batch[0][0].place == "alone"
        parts: list[str] = []
        for each, port in batch:
            text = self._with_worker(each.text, port)
            body = _filled(text, port, self.site.origin)
            headers = {name: _filled(value, port, self.site.origin) for name, value in each.headers}
            answer = Answer(each.status, headers, body)
            if alone:
                return f"{self.site.origin}/{self._serve(answer)}"
            parts.append(self._placed(each.place, answer))
        return f"{self.site.origin}/{self._serve(Answer(200, {}, _whole(parts)))}"

    def _placed(self, place: Place, answer: Answer) -> str:
        if place == "page":
            return answer.body
        if place == "srcdoc":
            return f'<iframe srcdoc="{html.escape(answer.body)}"></iframe>'
        if place == "data":
            return f'<iframe src="data:text/html,{quote(answer.body)}"></iframe>'
        if place == "blob":
            return (
                "<script>{const f=document.createElement('iframe');f.src=URL.createObjectURL(new "
                f"Blob([{_script_text(answer.body)}],{{type:'text/html'}}));"
                "document.body.append(f)}</script>"
            )
        key = self._serve(answer)
        if place == "window":
            return f"<script>window.open('/{key}')</script>"
        if place == "sandbox":
            return f"<iframe sandbox=allow-scripts src=/{key}></iframe>"
        return f"<iframe src=/{key}></iframe>"

    def _with_worker(self, text: str, port: int) -> str:
        found = re.fullmatch(r"<script>@([\w ]+)@(.*)</script>", text, re.DOTALL)
        if not found:
            return text
        code = _filled(found[2].replace("'/go", "'@G/go"), port, self.site.origin)
        key = self._serve(Answer(200, {}, "self.onfetch=()=>{};" + code))
        self.site.answers[f"/{key}.js"] = self.site.answers.pop(f"/{key}")
        start = _WORKERS[found[1]].replace("@K", key).replace("@C", _script_text(code))
        return f"<script>{start}</script>"


def _script_text(text: str) -> str:
    return json.dumps(text).replace("</", "<\\/")


def _whole(parts: Iterable[str]) -> str:
    return "<!doctype html><meta charset=utf-8><title>attempts</title><body>" + "\n".join(parts)


def _shown(session: Session) -> set[str]:
    """Return the ports whose page `session` shows in either of two observations."""
    found: set[str] = set()
    for _ in range(2):
        with suppress(BrowserGone, ActionFailed, Error):
            page = session.observe()
            for node in page.nodes:
                found |= set(re.findall(r"forbidden (\d+)", node.name))
    return found


NOT_HELD_FOR_CALLERS = (
    *("speculation in a shadow tree", "speculation in a closed shadow tree"),
    *(f"speculation in a {kind}shadow tree, redirected" for kind in ("", "closed ")),
)
"""Chromium cannot prevent these attempts in a caller's browser, see `Session.on`. They are run only
in a browser of ours."""

SETUPS: tuple[Setup, ...] = ("none", "session", "caller")


def _setups(kind: str) -> tuple[Setup, ...]:
    if kind.startswith("windows") or kind.endswith(" in window"):
        return (*SETUPS, "idle session", "idle caller")
    return SETUPS


def verdicts(
    kind: str, chosen: Sequence[Attempt], harness: Harness, setups: Iterable[Setup]
) -> Iterator[Verdict]:
    """Yield the verdicts of the attempts of one kind, by setup."""
    reached = harness.run(chosen, setups)
    control = reached.pop("none")
    for setup, found in reached.items():
        for name, what in found.items():
            if setup.endswith("caller") and name in NOT_HELD_FOR_CALLERS:
                continue
            case = f"{setup}: {kind}: {name}"
            if what:
                yield Verdict(case, "broken", what)
            elif control[name]:
                yield Verdict(case, "held")
            else:
                yield Verdict(case, "unproven", "not reached without the fence either")


def run() -> Iterator[Verdict]:
    with Harness() as harness:
        for kind, chosen in attempts().items():
            yield from verdicts(kind, chosen, harness, _setups(kind))


PART = Part(
    name="fence",
    about="No attempt reaches a disallowed host by any protocol, and no page of one is shown.",
    run=run,
)
