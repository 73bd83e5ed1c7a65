"""Secrets that an agent types by name: it writes `<secret:name>` and never sees the value.

A value is put in place of its name when a field of a page takes it, and nowhere before. Each is
bound to hosts: no page of another host gets it. Where a page shows a value, the agent reads the
name.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from agentkv_env.errors import ActionFailed
from agentkv_env.hosts import AllowList, HostAddresses
from agentkv_env.masking import Secrets
from agentkv_env.page import Page

_NAME = r"[\w.+-]{1,100}"
_PLACEHOLDER = re.compile(rf"<secret:({_NAME})>", re.ASCII)


class UnknownSecret(ValueError):
    """A goal names a secret that nobody gave; the message lists those that were given."""


@dataclass(frozen=True, slots=True)
class Secret:
    """A text that is typed on pages of some hosts only.

    Raises:
        ValueError: the value is blank, there are no hosts, or one of them is no host name.
    """

    value: str = field(repr=False)
    """The text. One of fewer than 8 characters is recognized on a page only as an entire word, and
    one of fewer than 4 only as an entire text."""
    hosts: Sequence[str]
    """Hosts as in `AllowList`: `shop.example` allows its ports 80 and 443, `shop.example:8080` that
    port, `shop.example:*` all ports."""

    def __post_init__(self) -> None:
        if not self.value.strip():
            raise ValueError("the value of a secret is blank; give the text to type")
        if isinstance(self.hosts, str) or not self.hosts:
            raise ValueError(
                f"a secret has the hosts {self.hosts!r}; expected a list such as ['shop.example']"
            )
        AllowList(self.hosts)


class NamedSecrets:
    """Secrets by name.

    Args:
        secrets: each secret by its name, of letters, digits and `_.+-`.
        addresses: maps public origins to real origins, as in `Browser.session`.

    Raises:
        ValueError: a name has other characters.
    """

    def __init__(
        self,
        secrets: Mapping[str, Secret] | None = None,
        *,
        addresses: Mapping[str, str] | None = None,
    ) -> None:
        self._secrets = dict(secrets or {})
        self._addresses = HostAddresses(addresses or {})
        self._allowed: dict[str, AllowList] = {}
        self.masks = Secrets()
        """Shows the name of each secret in place of its value."""
        for name, secret in self._secrets.items():
            if not is_name(name):
                raise ValueError(
                    f"a secret has the name {name!r}; expected letters, digits and any of _ . + -"
                )
            self._allowed[name] = AllowList(secret.hosts, addresses=addresses)
            self.masks.add(secret.value, shown=placeholder(name))

    def __len__(self) -> int:
        return len(self._secrets)

    def require(self, text: str) -> None:
        """Check that a goal names no secret that nobody gave.

        Raises:
            UnknownSecret: it does.
        """
        for name in names_in(text):
            if name not in self._secrets:
                raise UnknownSecret(self._unknown(name))

    def fill(self, text: str, places: Sequence[str]) -> str:
        """Return `text`, with values in place of names, for a field that may have all of them.

        Args:
            places: origins of the field's document and of all pages around it; "null" for one that
                has none.

        Raises:
            ActionFailed: a name is unknown, or its secret is not for one of `places`.
        """
        for name in names_in(text):
            if name not in self._secrets:
                raise ActionFailed(self._unknown(name))
            for place in places:
                # an empty document has no host of its own, and is allowed everywhere
                if not place.startswith("http") or not self._allowed[name].allows(place):
                    shown = self._addresses.to_public(place).partition("://")[2]
                    shown = shown or "a page without a host"
                    raise ActionFailed(
                        f"{placeholder(name)} is not typed on {shown}; it is for "
                        f"{self._allowed[name]} only"
                    )
        return _PLACEHOLDER.sub(lambda found: self._secrets[found[1]].value, text)

    def hide(self, page: Page) -> Page:
        """Return `page` with names in place of all values that it shows."""
        if not self._secrets:
            return page
        mask = self.masks.mask
        return replace(page.with_texts(mask), url=mask(page.url))

    def _unknown(self, name: str) -> str:
        known = ", ".join(map(placeholder, self._secrets))
        return f"there is no {placeholder(name)}; " + (
            f"there are: {known}" if known else "no secret was given"
        )


def placeholder(name: str) -> str:
    """Return what stands for the secret `name` in goals and in text to type."""
    return f"<secret:{name}>"


def is_name(text: str) -> bool:
    """Return whether a secret can have this name."""
    return bool(re.fullmatch(_NAME, text, re.ASCII))


def names_in(text: str) -> list[str]:
    """Return the names of all secrets that `text` names."""
    return _PLACEHOLDER.findall(text)


def without_names(text: str) -> list[str]:
    """Return what stands between the names of secrets in `text`."""
    return [part for part in _PLACEHOLDER.sub("\0", text).split("\0") if part]
