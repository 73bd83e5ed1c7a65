"""Serve a help desk with ten open tickets on the given port; POST /reset opens them again.

    python serve.py 8123

The tickets are in memory and belong to nobody.
"""

import html
import sys
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs

TEAM = ("Anna", "Ben", "Carla", "David")
FIRST = (
    ("Printer jams on the second floor", "Olga Brandt", "4105", "It takes two sheets at a time."),
    ("Projector shows no picture", "Hugo Steiner", "4230", "The lamp is on, the wall stays dark."),
    ("Laptop does not charge", "Irene Falk", "4377", "Another power supply does not help."),
    ("New keyboard for the reception", "Paula Winter", "4001", "Three keys are worn out."),
    ("No sound in room 12", "Emil Sander", "4412", "The loudspeakers are plugged in."),
    ("Mailbox is full", "Rosa Lindner", "4156", "No letter arrived since Monday."),
    ("Door card is refused", "Viktor Hahn", "4290", "The side door only; the main door opens."),
    ("Wireless network is slow", "Clara Munk", "4338", "In the library, in the afternoon."),
    ("Screen flickers", "Jonas Weber", "4084", "It began after the desk was moved."),
    ("Old invoices cannot be opened", "Marta Quist", "4265", "Those before 2019 ask for a key."),
)
"""Title, reporter, extension and text of each ticket after a reset."""


@dataclass(slots=True)
class Ticket:
    """One report, which is assigned to a member of the team or to nobody, and open or closed."""

    title: str
    reporter: str
    extension: str
    text: str
    assignee: str = "nobody"
    state: str = "open"


class Desk(ThreadingHTTPServer):
    """The site on a port of 127.0.0.1."""

    daemon_threads = True

    def __init__(self, port: int) -> None:
        super().__init__(("127.0.0.1", port), _Page)
        self.tickets: list[Ticket] = []
        self.reset()

    def reset(self) -> None:
        """Restore the first tickets, all open and assigned to nobody."""
        self.tickets = [Ticket(*ticket) for ticket in FIRST]


class _Page(BaseHTTPRequestHandler):
    server: Desk

    def do_GET(self) -> None:
        match self.path.strip("/").split("/"):
            case [""]:
                self._show_list()
            case ["ticket", number] if (ticket := self._ticket(number)) is not None:
                self._show_ticket(number, ticket)
            case _:
                self._show("No such page", "", status=404)

    def do_POST(self) -> None:
        form = parse_qs(self.rfile.read(int(self.headers.get("Content-Length") or 0)).decode())
        match self.path.strip("/").split("/"):
            case ["reset"]:
                self.server.reset()
                self._show("Reset", "")
            case ["ticket", number, "close"] if (ticket := self._ticket(number)) is not None:
                ticket.state = "closed"
                self._lead_to(f"/ticket/{number}")
            case ["ticket", number, "assign"] if (ticket := self._ticket(number)) is not None:
                (member,) = form.get("member", [""])
                ticket.assignee = member if member in TEAM else ticket.assignee
                self._lead_to(f"/ticket/{number}")
            case _:
                self._show("No such page", "", status=404)

    def _ticket(self, number: str) -> Ticket | None:
        tickets = self.server.tickets
        is_known = number.isdecimal() and int(number) < len(tickets)
        return tickets[int(number)] if is_known else None

    def _show_list(self) -> None:
        lines = (
            f'<li><a href="/ticket/{number}">{html.escape(ticket.title)}</a></li>'
            for number, ticket in enumerate(self.server.tickets)
            if ticket.state == "open"
        )
        self._show("Open tickets", f"<ul>{''.join(lines)}</ul>")

    def _show_ticket(self, number: str, ticket: Ticket) -> None:
        options = "".join(f"<option>{member}</option>" for member in TEAM)
        self._show(
            ticket.title,
            f"<p>{html.escape(ticket.text)}</p>"
            f"<p>Reported by {ticket.reporter}, extension {ticket.extension}</p>"
            f"<p>Assigned to <b>{ticket.assignee}</b>, <i>{ticket.state}</i></p>"
            f'<form method="post" action="/ticket/{number}/assign"><p>'
            f'<label>Member <select name="member">{options}</select></label> '
            "<button>Assign</button></p></form>"
            f'<form method="post" action="/ticket/{number}/close">'
            "<p><button>Close ticket</button></p></form>",
        )

    def _show(self, title: str, body: str, *, status: int = 200) -> None:
        page = (
            f"<!doctype html><html lang='en'><title>{html.escape(title)}</title>"
            f"<p><a href='/'>All tickets</a></p><h1>{html.escape(title)}</h1>{body}</html>"
        ).encode()
        self.send_response(status)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.send_header("Content-Length", str(len(page)))
        self.end_headers()
        self.wfile.write(page)

    def _lead_to(self, path: str) -> None:
        self.send_response(303)
        self.send_header("Location", path)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *args: object) -> None:
        pass


if __name__ == "__main__":
    Desk(int(sys.argv[1])).serve_forever()
