"""A site for tests: it puts passwords into addresses and shows them, and counts visits.

    python diary.py PORT

The environment variable DIARY_PASSWORD is the password of every account.
"""

import html
import http.server
import os
import sys
from http.cookies import SimpleCookie
from urllib.parse import parse_qs, urlsplit

LOGIN = """<form action="/enter"><label>Name <input name="name"></label>
<label>Password <input name="password" type="password"></label><button>Enter</button></form>"""


class Diary(http.server.BaseHTTPRequestHandler):
    visits = 0

    def do_GET(self) -> None:
        parts = urlsplit(self.path)
        query = {name: found[0] for name, found in parse_qs(parts.query).items()}
        cookies = SimpleCookie(self.headers.get("Cookie", ""))
        name = cookies["name"].value if "name" in cookies else ""
        password = os.environ["DIARY_PASSWORD"]
        match parts.path:
            case "/login":
                self.show(f"<h1>Diary</h1>{LOGIN}")
            case "/enter" if query.get("password") == password:
                self.show("<p>Leave the diary</p>", cookie=query["name"])
            case "/reset":
                Diary.visits = 0
                self.show("reset")
            case "/end":
                os._exit(0)
            case "/broken":
                self.send_error(500)
            case "/" if name:
                Diary.visits += 1
                shown = html.escape(password)
                print(f"visited by {name} with {shown}", flush=True)
                self.show(f"<h1>Diary of {name}</h1><p>Leave</p><p>{Diary.visits}: {shown}</p>")
            case _:
                self.show(f"<h1>Closed</h1>{LOGIN}")

    def show(self, body: str, *, cookie: str = "") -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        if cookie:
            self.send_header("Set-Cookie", f"name={cookie}; Path=/; HttpOnly")
        self.end_headers()
        self.wfile.write(f"<title>Diary</title>{body}".encode())

    def log_message(self, *_: object) -> None:
        pass


if __name__ == "__main__":
    http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Diary).serve_forever()
