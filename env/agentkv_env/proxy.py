"""The door of a browser that we launch: a proxy that knows the allowed hosts and nothing else.

Chromium sends every TCP connection of a browser context through it: those of pages, frames,
windows, workers of every kind, prefetches, reports, sockets. Names are resolved here, so that the
browser resolves none. What Chromium would send beside a proxy (WebRTC over UDP) is switched off at
launch.
"""

import re
import selectors
import socket
import struct
import threading
from collections import deque
from contextlib import suppress
from typing import Self
from urllib.parse import urlsplit

from agentkv_env.allow import AllowList

MAX_HEAD = 1 << 18  # bytes of a request's head; Chromium's own limit for answers
CONNECT_S = 10.0
CHUNK = 1 << 16
MAX_KEPT = 100  # refusals and failures that nobody took yet

_PAGE = re.compile(rb"(?im)^sec-fetch-dest: document|^upgrade-insecure-requests: 1")
_HOP = re.compile(rb"(?im)^(?:proxy-[\w-]+|connection|keep-alive):[^\n]*\n")


class Proxy:
    """Listens on a loopback port of its own, for one browser context; a context manager.

    A refused plain request is answered with 204, which leaves a document where it is; a refused
    tunnel (https, WebSocket) with 403. Each connection carries one request or one tunnel, and has a
    thread.
    """

    def __init__(self, allow: AllowList) -> None:
        """It serves from now on."""
        self.refused_pages: deque[str] = deque(maxlen=MAX_KEPT)
        """Addresses of documents that were refused, until their reader takes them."""
        self.failures: deque[tuple[str, str]] = deque(maxlen=MAX_KEPT)
        """Addresses that did not answer, each with the browser's name for the reason."""
        self._allow = allow
        self._closed = False
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=256)
        self._thread = threading.Thread(target=self._accept, name="proxy", daemon=True)
        self._thread.start()

    @property
    def address(self) -> str:
        """What the browser is told."""
        return f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    def close(self) -> None:
        """Stop listening; safe to call twice. Connections end with the context they belong to."""
        if self._closed:
            return
        self._closed = True
        with suppress(OSError):  # a last connection wakes the thread
            socket.create_connection(self._listener.getsockname()).close()
        self._thread.join()
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                if self._closed:
                    return
                continue  # it gave up before its turn
            if self._closed:
                client.close()
                return
            threading.Thread(target=self._handle, args=(client,), daemon=True).start()

    def _handle(self, client: socket.socket) -> None:
        with client, suppress(OSError, ValueError):
            self._serve(client)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _serve(self, client: socket.socket) -> None:
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        head, rest = _read_head(client)
        method, _, target = head.partition(b"\r\n")[0].decode("latin-1").partition(" ")
        target = target.rpartition(" ")[0]
        tunnel = method == "CONNECT"
        url = f"https://{target}/" if tunnel else target
        # A tunnel is for https or a WebSocket of either kind; its scheme does not show.
        allowed = any(map(self._allow.allows, (url, f"http://{target}/") if tunnel else (url,)))
        if not (allowed and urlsplit(url).hostname):
            if _PAGE.search(head) and b"sec-purpose" not in head.lower():
                self.refused_pages.append(target)
            client.sendall(
                b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
                if tunnel
                else b"HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n"
            )
            return
        parts = urlsplit(url)
        try:
            port = parts.port or (443 if tunnel else 80)
            server = _connect(parts.hostname or "", port)
        except OSError as error:
            self.failures.append((url, _error_name(error)))
            if tunnel:
                client.sendall(b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 0\r\n\r\n")
            else:
                # As a server that is down: an answer of ours would pass for a page of its.
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            return
        with server:
            left = None
            if tunnel:
                client.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
            else:
                length = re.search(rb"(?im)^content-length: *(\d+)", head)
                left = max(0, int(length[1]) - len(rest)) if length else 0
                rest = rest[: int(length[1])] if length else b""
                path = target.partition("://")[2]
                slash = re.search(r"[/?]", path)
                line = f"{method} {path[slash.start() :] if slash else '/'} HTTP/1.1\r\n"
                fields = _HOP.sub(b"", head.partition(b"\r\n")[2])
                rest = line.encode("latin-1") + b"Connection: close\r\n" + fields + b"\r\n" + rest
            server.sendall(rest)
            _relay(client, server, left)


def _read_head(client: socket.socket) -> tuple[bytes, bytes]:
    """A request's head with the line end of its last field, and what came after it."""
    found = b""
    while b"\r\n\r\n" not in found:
        more = client.recv(CHUNK)
        if not more or len(found) > MAX_HEAD:
            raise ConnectionError("no request")
        found += more
    head, _, rest = found.partition(b"\r\n\r\n")
    return head + b"\r\n", rest


def _connect(host: str, port: int) -> socket.socket:
    # As browsers do (RFC 6761): localhost and names below it are loopback.
    name = host.rstrip(".").lower()
    if name == "localhost" or name.endswith(".localhost"):
        try:
            server = socket.create_connection(("127.0.0.1", port), CONNECT_S)
        except ConnectionRefusedError:
            server = socket.create_connection(("::1", port), CONNECT_S)
    else:
        server = socket.create_connection((host, port), CONNECT_S)
    server.settimeout(None)
    server.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return server


def _relay(client: socket.socket, server: socket.socket, left: int | None) -> None:
    """Pass bytes both ways until one side ends.

    Of the client, `left` bytes are passed (None: all). More would be another request, perhaps for
    another host: it ends the connection.
    """
    with selectors.DefaultSelector() as selector:
        selector.register(client, selectors.EVENT_READ, server)
        selector.register(server, selectors.EVENT_READ, client)
        while True:
            for key, _ in selector.select():
                source = key.fileobj
                assert isinstance(source, socket.socket)
                data = source.recv(CHUNK)
                if not data:
                    return
                if source is client and left is not None:
                    if len(data) > left:
                        return
                    left -= len(data)
                key.data.sendall(data)


def _error_name(error: OSError) -> str:
    if isinstance(error, socket.gaierror):
        return "net::ERR_NAME_NOT_RESOLVED"
    if isinstance(error, ConnectionRefusedError):
        return "net::ERR_CONNECTION_REFUSED"
    return "net::ERR_CONNECTION_TIMED_OUT" if isinstance(error, TimeoutError) else str(error)
