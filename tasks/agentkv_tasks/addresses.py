"""Three ways to write one address: with a placeholder, in public form, and where it really is.

A task says `__SHOPPING__/cart`, the agent sees `http://shop.localhost/cart`, and the server listens
at `http://shop.localhost:41233/cart`. For sites that stand elsewhere the last two are the same.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

PLACEHOLDER = re.compile(r"__[A-Z]+__")


@dataclass(frozen=True, slots=True)
class Addresses:
    """Where the sites of a run are."""

    placeholders: Mapping[str, str]
    """`__SHOPPING__` -> public origin, without a slash at the end."""
    origins: Mapping[str, str]
    """Public origin -> real origin, for those where the two differ."""
    settle_s: float = 0.0
    """Seconds to wait after a page check has opened a page; our own sites need none."""

    def fill(self, text: str) -> str:
        """`text` with placeholders replaced by public origins; unknown ones stay."""
        return PLACEHOLDER.sub(lambda found: self.placeholders.get(found[0], found[0]), text)

    def missing(self, text: str) -> list[str]:
        """Placeholders in `text` for which no site is known."""
        return sorted(set(PLACEHOLDER.findall(text)) - set(self.placeholders))

    def real(self, url: str) -> str:
        """Where `url`, given in any of the three forms, is served."""
        url = self.fill(url)
        for public, real in self.origins.items():
            if url == public or url.startswith((f"{public}/", f"{public}?", f"{public}#")):
                return real + url.removeprefix(public)
        return url

    def public(self, text: str) -> str:
        """`text` (an address, or a page with addresses in it) with real origins made public."""
        for public, real in self.origins.items():
            text = text.replace(real, public)
        return text

    def hosts(self, *urls: str) -> tuple[str, ...]:
        """Hosts an agent needs, with their ports: those of all sites and of `urls`."""
        known = [*self.placeholders.values(), *(self.fill(url) for url in urls)]
        names = (urlsplit(url).netloc.rpartition("@")[2] for url in known)
        return tuple(dict.fromkeys(name for name in names if name))
