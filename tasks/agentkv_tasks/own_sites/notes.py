"""A small site to begin with: the notes of one account, behind a log-in, in memory.

    python -m agentkv_tasks.own_sites.notes --port 8123

`agentkv tasks new` writes a file of sites that starts it. The password is the first line of the
file that the environment variable NOTES_PASSWORD_FILE names.
"""

import argparse
import hmac
import html
import http.server
import os
import secrets
from http.cookies import SimpleCookie
from pathlib import Path
from urllib.parse import parse_qs

NAME = "anna"
FIRST = (
    ("Bees", "The beekeeper comes on Thursday and brings two hives."),
    ("Library", "The card has the number 4711. Open until six."),
    ("Bread", "Two loaves of rye bread, and butter."),
)
"""Title and text of each note after a reset."""

_MAX_FORM_BYTES = 100_000
_LOGIN = """<form method="post" action="/login">
<p><label>Name <input name="name"></label></p>
<p><label>Password <input name="password" type="password"></label></p>
<p><button>Log in</button></p></form>"""
_NEW = """<form method="post" action="/new">
<p><label>Title <input name="title"></label></p>
<p><label>Text <textarea name="text"></textarea></label></p>
<p><button>Save</button></p></form>"""


class Notes(http.server.ThreadingHTTPServer):
    """The site on a port of 127.0.0.1; port 0 takes a free one."""

    daemon_threads = True

    def __init__(self, port: int, password: str) -> None:
        super().__init__(("127.0.0.1", port), _Page)
        self.password = password
        self.notes: list[tuple[str, str]] = []
        self.log_ins: set[str] = set()
        self.reset()

    def reset(self) -> None:
        """Restore the first notes, and log everybody out."""
        self.notes = list(FIRST)
        self.log_ins = set()


class _Page(http.server.BaseHTTPRequestHandler):
    server: Notes

    def do_GET(self) -> None:
        site = self.server
        is_logged_in = self._log_in() in site.log_ins
        match self.path.strip("/").split("/"):
            case ["about"]:
                self._show("About", "<p>Notes of one person.</p>", is_logged_in)
            case ["login"]:
                self._show("Log in", _LOGIN, is_logged_in)
            case _ if not is_logged_in:
                self._lead_to("/login")
            case [""]:
                lines = (
                    f'<li><a href="/note/{number}">{html.escape(title)}</a></li>'
                    for number, (title, _) in enumerate(site.notes)
                )
                self._show("Notes", f"<ul>{''.join(lines)}</ul>", is_logged_in)
            case ["new"]:
                self._show("New note", _NEW, is_logged_in)
            case ["note", number] if number.isdecimal() and int(number) < len(site.notes):
                title, text = site.notes[int(number)]
                self._show(title, f'<p class="text">{html.escape(text)}</p>', is_logged_in)
            case _:
                self._show("No such page", "", is_logged_in, status=404)

    def do_POST(self) -> None:
        site = self.server
        length = int(self.headers.get("Content-Length") or 0)
        if length > _MAX_FORM_BYTES:
            self.close_connection = True
            self._show("Too long", "", False, status=413)
            return
        form = parse_qs(self.rfile.read(length).decode(errors="replace"))
        values = {name: found[0].strip() for name, found in form.items()}
        match self.path:
            case "/reset":
                site.reset()
                self._show("Reset", "", False)
            case "/login":
                password = values.get("password", "")
                if values.get("name") == NAME and hmac.compare_digest(
                    password.encode(), site.password.encode()
                ):
                    site.log_ins.add(token := secrets.token_urlsafe())
                    self._lead_to("/", cookie=f"log_in={token}; HttpOnly; SameSite=Lax; Path=/")
                else:
                    self._show("Log in", f"<p>Wrong name or password.</p>{_LOGIN}", False)
            case "/logout":
                site.log_ins.discard(self._log_in())
                self._lead_to("/login")
            case "/new" if self._log_in() in site.log_ins:
                site.notes.append((values.get("title", "Untitled"), values.get("text", "")))
                self._lead_to(f"/note/{len(site.notes) - 1}")
            case _:
                self._lead_to("/login")

    def _log_in(self) -> str:
        cookies = SimpleCookie(self.headers.get("Cookie", ""))
        return cookies["log_in"].value if "log_in" in cookies else ""

    def _show(self, title: str, body: str, is_logged_in: bool, *, status: int = 200) -> None:
        links = '<a href="/about">About</a> '
        if is_logged_in:
            links += '<a href="/">Notes</a> <a href="/new">New note</a> '
            links += '<form method="post" action="/logout"><button>Log out</button></form>'
        else:
            links += '<a href="/login">Log in</a>'
        title = html.escape(title)
        page = (
            f'<!doctype html><html lang="en"><title>{title}</title><nav>{links}</nav>'
            f"<h1>{title}</h1>{body}</html>"
        ).encode()
        self.send_response(status)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.send_header("Content-Length", str(len(page)))
        self.end_headers()
        self.wfile.write(page)

    def _lead_to(self, path: str, *, cookie: str = "") -> None:
        self.send_response(303)
        self.send_header("Location", path)
        self.send_header("Content-Length", "0")
        if cookie:
            self.send_header("Set-Cookie", cookie)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


def main() -> None:
    """Serve until the process is ended."""
    parser = argparse.ArgumentParser(description="Serve a small site with notes.")
    parser.add_argument("--port", type=int, required=True)
    port = parser.parse_args().port
    password = Path(os.environ["NOTES_PASSWORD_FILE"]).read_text(encoding="utf-8").splitlines()[0]
    with Notes(port, password) as site:
        site.serve_forever()


if __name__ == "__main__":
    main()
