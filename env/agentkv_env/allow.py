"""Which addresses an agent may visit, and by which names it knows them."""

import re
from collections.abc import Iterable, Mapping
from urllib.parse import urlsplit


class AllowList:
    """The hosts an agent may reach, over http and https only.

    A host is a name, optionally with a port: `shop.localhost` allows every port of it,
    `127.0.0.1:8080` that one. `*.localhost` allows every name below localhost.
    """

    def __init__(self, hosts: Iterable[str]) -> None:
        self.hosts = tuple(host.strip().lower() for host in hosts)
        for host in self.hosts:
            if not re.fullmatch(r"(\*\.)?[\w.\-]+(:\d+)?|\[[0-9a-f:.]+\](:\d+)?", host):
                raise ValueError(f"host {host!r} is no host name; expected such as shop.localhost")
        names = "|".join(map(_pattern, self.hosts)) or r"(?!)"
        # The same rule twice: on parsed addresses, and as the pattern of what to stop, which is
        # all that Playwright's routes take.
        self._host = re.compile(rf"(?:{names})", re.IGNORECASE)
        self.refused = re.compile(
            rf"^(?!(?:https?|wss?)://(?:{names})(?:[/?#]|$))(?!data:|blob:|about:)", re.IGNORECASE
        )
        """Matches every address that no request may go to."""

    def allows(self, url: str) -> bool:
        """Whether a navigation to `url` stays on the list; about:blank always does."""
        if url in ("", "about:blank", "about:srcdoc"):
            return True
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError:
            return False
        if parts.scheme not in ("http", "https") or not parts.hostname or "@" in parts.netloc:
            return False
        host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
        return bool(self._host.fullmatch(host if port is None else f"{host}:{port}"))

    def __str__(self) -> str:
        return ", ".join(self.hosts)


def is_web_address(url: str) -> bool:
    """Whether `url` is an address of http or https, with a host and perhaps a port that can be."""
    try:
        parts = urlsplit(url)
        AllowList([host_of(url)])
        return parts.scheme in ("http", "https") and parts.port != 0
    except ValueError:
        return False


def host_of(url: str) -> str:
    """The host of `url` without its port, in brackets where it is a number of version 6; or ''.

    Raises:
        ValueError: `url` cannot be taken apart.
    """
    name = urlsplit(url).hostname or ""
    return f"[{name}]" if ":" in name else name


def split_port(host: str) -> tuple[str, str]:
    """Name and port of a host; the port is empty if it has none."""
    found = re.search(r":(\d+)$", host)  # an address of version 6 ends in a bracket
    return (host[: found.start()], found[1]) if found else (host, "")


def _pattern(host: str) -> str:
    name, port = split_port(host)
    label = r"(?:[\w\-]+\.)+" if name.startswith("*.") else ""
    return label + re.escape(name.removeprefix("*.")) + (f":{port}" if port else r"(?::\d+)?")


class Addresses:
    """Public origins and the real ones behind them: `http://shop.localhost` is on some port."""

    def __init__(self, real: Mapping[str, str]) -> None:
        """`real` maps each public origin (no trailing slash) to the real one."""
        self._real = {public.rstrip("/"): origin.rstrip("/") for public, origin in real.items()}

    def to_real(self, url: str) -> str:
        """`url` as the browser must ask for it; a bare host gets http:// in front."""
        url = url.strip()
        if not re.match(r"^[a-zA-Z][\w+.\-]*:(?!\d)", url):
            url = "http://" + url
        for public, real in self._real.items():
            if _starts(url, public):
                return real + url[len(public) :]
        return url

    def to_public(self, url: str) -> str:
        """`url` as the agent sees it."""
        for public, real in self._real.items():
            if _starts(url, real):
                return public + url[len(real) :]
        return url


def _starts(url: str, origin: str) -> bool:
    return url.lower().startswith(origin.lower()) and url[len(origin) :][:1] in ("", "/", "?", "#")
