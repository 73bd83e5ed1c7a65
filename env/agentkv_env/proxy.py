"""An HTTP proxy that connects only to allowed hosts, for browsers that we launch.

Chromium sends every TCP connection of a browser context through the proxy: those of pages, frames,
windows, all kinds of workers, prefetches, reports and sockets. The proxy also resolves names, so
the browser resolves none. Traffic that would bypass a proxy (WebRTC over UDP) is disabled at
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

from agentkv_env.hosts import AllowList

MAX_HEAD = 1 << 18  # bytes of a request's head; Chromium's own limit for responses
CONNECT_S = 10.0
CHUNK = 1 << 16
MAX_KEPT = 100  # refusals and failures kept until they are read

_PAGE = re.compile(rb"(?im)^sec-fetch-dest: document|^upgrade-insecure-requests: 1")
_HOP = re.compile(rb"(?im)^(?:proxy-[\w-]+|connection|keep-alive):[^\n]*\n")


class Proxy:
    """A proxy for one browser context, on its own loopback port; a context manager.

    A refused plain request is answered with 204, which keeps the current document; a refused tunnel
    (https, WebSocket) with 403. Each connection carries one request or one tunnel, in a thread of
    its own.
    """

    def __init__(self, allow: AllowList) -> None:
        """Start to serve."""
        self.refused_pages: deque[str] = deque(maxlen=MAX_KEPT)
        """Addresses of refused documents; the reader removes them."""
        self.failures: deque[tuple[str, str]] = deque(maxlen=MAX_KEPT)
        """Addresses that did not answer, each with Chromium's name of the error."""
        self._allow = allow
        self._closed = False
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=256)
        self._thread = threading.Thread(target=self._accept, name="proxy", daemon=True)
        self._thread.start()

    @property
    def address(self) -> str:
        """The proxy server's URL."""
        return f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    def close(self) -> None:
        """Stop listening; connections end with their context. Closing twice does nothing."""
        if self._closed:
            return
        self._closed = True
        with suppress(OSError):  # this connection wakes the thread
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
                continue  # the client disconnected before it was accepted
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
        # A tunnel carries https or a WebSocket; a CONNECT request does not show which.
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
                # Reset like a server that is down; a response would look like the server's page.
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
    """Return the head of a request, with its last line end, and the bytes after the head."""
    found = b""
    while b"\r\n\r\n" not in found:
        more = client.recv(CHUNK)
        if not more or len(found) > MAX_HEAD:
            raise ConnectionError("no request")
        found += more
    head, _, rest = found.partition(b"\r\n\r\n")
    return head + b"\r\n", rest


def _connect(host: str, port: int) -> socket.socket:
    # As in browsers (RFC 6761), localhost and all names below it are loopback addresses.
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
    """Relay bytes in both directions until one side closes.

    Passes at most `left` bytes of the client (None: all). More bytes would be another request,
    perhaps to another host, and end the connection.
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
