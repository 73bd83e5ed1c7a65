"""Three forms of an address: with a placeholder, public, and real.

A task says `__SHOPPING__/cart`, the agent sees `http://shop.localhost/cart`, and the server listens
at `http://shop.localhost:41233/cart`. Sites that run elsewhere have equal public and real forms.
"""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

PLACEHOLDER = re.compile(r"__[A-Z]+__")


@dataclass(frozen=True, slots=True)
class Addresses:
    """Addresses of the sites of a run."""

    placeholders: Mapping[str, str]
    """Placeholder such as `__SHOPPING__` to public origin, without a final slash."""
    origins: Mapping[str, str]
    """Public origin to real origin, where they differ."""
    settle_s: float = 0.0
    """Seconds to wait after a page check has opened a page; our own sites need none."""

    def fill(self, text: str) -> str:
        """Replace placeholders by public origins; unknown placeholders stay."""
        return PLACEHOLDER.sub(lambda found: self.placeholders.get(found[0], found[0]), text)

    def missing(self, text: str) -> list[str]:
        """Return the placeholders in `text` without a known site."""
        return sorted(set(PLACEHOLDER.findall(text)) - set(self.placeholders))

    def real(self, url: str) -> str:
        """Return the real form of `url`, given in any form."""
        url = self.fill(url)
        for public, real in self.origins.items():
            if url == public or url.startswith((f"{public}/", f"{public}?", f"{public}#")):
                return real + url.removeprefix(public)
        return url

    def public(self, text: str) -> str:
        """Replace real origins in `text` by public ones."""
        for public, real in self.origins.items():
            text = text.replace(real, public)
        return text

    def hosts(self, *urls: str, without: Collection[str] = ()) -> tuple[str, ...]:
        """Return the hosts of all sites and of `urls`, with their ports.

        Args:
            without: addresses of sites that are left out.
        """
        sites = [address for address in self.placeholders.values() if address not in without]
        known = [*sites, *(self.fill(url) for url in urls)]
        names = (urlsplit(url).netloc.rpartition("@")[2] for url in known)
        return tuple(dict.fromkeys(name for name in names if name))
