"""Draw the pictures of listings: a photo, most with a card with a text, and a map."""

import io

from PIL import Image

from agentkv_env.sites import images
from agentkv_env.sites.classifieds import places
from agentkv_env.sites.classifieds.content import ClassifiedsContent, Listing
from agentkv_env.sites.region import Region

_WIDTH, _HEIGHT = 360, 260


def picture(region: Region, content: ClassifiedsContent, key: str) -> bytes | None:
    """Draw `photo-<id>`, `small-<id>` (without the card) or `map-<id>`; None for other keys."""
    style, _, number = key.partition("-")
    listings = {str(listing.id): listing for listing in content.listings}
    if number not in listings or style not in ("photo", "small", "map"):
        return None
    listing = listings[number]
    if style == "map":
        return places.picture(listing.spot)
    if style == "small" or listing.photo.kind == "none":
        return images.scene(listing.thing, key=listing.title, width=_WIDTH, height=_HEIGHT)
    return _with_card(listing)


def _with_card(listing: Listing) -> bytes:
    photo = Image.open(
        io.BytesIO(images.scene(listing.thing, key=listing.title, width=_WIDTH, height=_HEIGHT))
    )
    card = Image.open(io.BytesIO(images.label(_words(listing), key=listing.title, width=300)))
    photo.paste(card, ((_WIDTH - card.width) // 2, _HEIGHT - card.height - 12))
    out = io.BytesIO()
    photo.save(out, "PNG")
    return out.getvalue()


def _words(listing: Listing) -> tuple[str, ...]:
    fact = listing.photo.fact
    match listing.photo.kind:
        case "serial":
            return ("SERIAL NUMBER", fact)
        case "phone":
            return ("CALL ME AT", fact)
        case _:
            return ("LOWEST PRICE", f"{fact} DOLLARS")
