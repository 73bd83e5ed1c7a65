"""The addresses that an agent may visit, and their public names."""

import re
from collections.abc import Iterable, Mapping
from urllib.parse import urlsplit


class AllowList:
    """The hosts that an agent may reach, over http, https and WebSockets only.

    A host is a name, optionally with a port. `shop.localhost` allows the ports 80 and 443,
    `127.0.0.1:8080` allows that port, `shop.localhost:*` allows every port. `*.localhost` allows
    every name below localhost; its ports are written in the same three forms.
    """

    def __init__(self, hosts: Iterable[str], *, addresses: Mapping[str, str] | None = None) -> None:
        """Allow `hosts`, and the real origin of every allowed public origin in `addresses`.

        Raises:
            ValueError: an entry of `hosts` is not a host.
        """
        self.hosts = tuple(host.strip().lower() for host in hosts)
        """The hosts as given, in lower case; messages show these."""
        for host in self.hosts:
            if not re.fullmatch(r"((\*\.)?[\w.\-]+|\[[0-9a-f:.]+\])(:(\d+|\*))?", host):
                raise ValueError(f"host {host!r} is no host name; expected such as shop.localhost")
        self._compile(self.hosts)
        behind = [real for public, real in (addresses or {}).items() if self.allows(public)]
        self._all = (*self.hosts, *(urlsplit(real).netloc.rpartition("@")[2] for real in behind))
        self._compile(self._all)

    def _compile(self, hosts: Iterable[str]) -> None:
        entries = [split_port(host) for host in hosts]
        # The same rule in two forms: for parsed addresses, and as a pattern of what to refuse,
        # because Playwright's routes take patterns. Browsers omit the default port of a scheme.
        self._host = re.compile("|".join(_name(n) + _port(p) for n, p in entries) or r"(?!)", re.I)
        plain, tls = (
            "|".join(_name(n) + _port(p, default) for n, p in entries) or r"(?!)"
            for default in ("80", "443")
        )
        self.refused = re.compile(
            rf"^(?!(?:http|ws)://(?:{plain})(?:[/?#]|$))(?!(?:https|wss)://(?:{tls})(?:[/?#]|$))"
            r"(?!data:|blob:|about:)",
            re.I,
        )
        """Matches every address that is not allowed."""

    def allows(self, url: str) -> bool:
        """Return whether a navigation to `url` is allowed; about:blank always is."""
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
        default = 80 if parts.scheme == "http" else 443
        return bool(self._host.fullmatch(f"{host}:{default if port is None else port}"))

    @property
    def sources(self) -> str:
        """The hosts as sources of a Content-Security-Policy."""
        found = []
        for host in self._all:
            name, port = split_port(host)
            for scheme, default in (("http", "80"), ("https", "443"), ("ws", "80"), ("wss", "443")):
                found.append(f"{scheme}://{name}:{port or default}")
        return " ".join(found)

    def __str__(self) -> str:
        return ", ".join(self.hosts) or "none"


def is_web_address(url: str) -> bool:
    """Return whether `url` is a valid http or https address with a host."""
    try:
        parts = urlsplit(url)
        AllowList([host_of(url)])
        return parts.scheme in ("http", "https") and parts.port != 0
    except ValueError:
        return False


def host_of(url: str) -> str:
    """Return the host of `url` without its port, or ''; an IPv6 address keeps its brackets.

    Raises:
        ValueError: `url` cannot be parsed.
    """
    name = urlsplit(url).hostname or ""
    return f"[{name}]" if ":" in name else name


def split_port(host: str) -> tuple[str, str]:
    """Split a host into name and port; the port is '' if absent, and `*` if any is allowed."""
    found = re.search(r":(\d+|\*)$", host)  # an IPv6 address ends in a bracket
    return (host[: found.start()], found[1]) if found else (host, "")


def _name(name: str) -> str:
    label = r"(?:[\w\-]+\.)+" if name.startswith("*.") else ""
    return label + re.escape(name.removeprefix("*."))


def _port(port: str, default: str | None = None) -> str:
    """Return the pattern of a port with its colon; the port `default` is optional."""
    pattern = {"": ":(?:80|443)", "*": r":\d+"}.get(port, f":{port}")
    return f"(?:{pattern})?" if default is not None and port in ("", "*", default) else pattern


class HostAddresses:
    """Translates between public origins such as http://shop.localhost and the real ones."""

    def __init__(self, real: Mapping[str, str]) -> None:
        """`real` maps each public origin to the real one."""
        self._real = {public.rstrip("/"): origin.rstrip("/") for public, origin in real.items()}

    def to_real(self, url: str) -> str:
        """Return the address to request for `url`; a bare host gets the scheme http."""
        url = url.strip()
        if not re.match(r"^[a-zA-Z][\w+.\-]*:(?!\d)", url):
            url = "http://" + url
        for public, real in self._real.items():
            if _has_origin(url, public):
                return real + url[len(public) :]
        return url

    def to_public(self, url: str) -> str:
        """Return the address that the agent sees for `url`."""
        for public, real in self._real.items():
            if _has_origin(url, real):
                return public + url[len(real) :]
        return url


def _has_origin(url: str, origin: str) -> bool:
    return url.lower().startswith(origin.lower()) and url[len(origin) :][:1] in ("", "/", "?", "#")
