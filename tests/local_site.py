"""Small web servers for tests: answers in a thread of this process."""

import contextlib
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Handler(BaseHTTPRequestHandler):
    """A handler that logs nothing, with a shortcut for whole answers."""

    def send(self, body: bytes, kind: str = "text/html; charset=utf-8", status: int = 200) -> None:
        with contextlib.suppress(BrokenPipeError):  # a page that was left does not wait
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.end_headers()
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


@contextlib.contextmanager
def served(handler: type[BaseHTTPRequestHandler], host: str = "127.0.0.1") -> Iterator[str]:
    """Serve on a free port, and yield the origin."""
    with ThreadingHTTPServer((host, 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        yield f"http://{host}:{server.server_port}"
        server.shutdown()
        thread.join()
