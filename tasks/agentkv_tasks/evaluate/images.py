"""Image checks: what the images of a page show at the end of an episode (page_image_query)."""

import io
from collections.abc import Sequence
from urllib.parse import urljoin, urlsplit

from PIL import Image
from playwright.sync_api import Error as PlaywrightError
from playwright.sync_api import Page

from agentkv_tasks.addresses import Addresses
from agentkv_tasks.evaluate.calls import parse_call
from agentkv_tasks.evaluate.graders import Graders
from agentkv_tasks.evaluate.likeness import similarity
from agentkv_tasks.evaluate.pages import visit
from agentkv_tasks.evaluate.strings import CannotScore
from agentkv_tasks.settings import Scoring
from agentkv_tasks.task import ImageCheck

_THRESHOLD = 0.8  # VisualWebArena's, where a task gives none
_TIMEOUT_MS = 20_000
_MAX_BYTES = 32_000_000
_MAX_PIXELS = 16_000_000
_FORMATS = ("PNG", "JPEG", "GIF", "WEBP", "BMP")  # others may start programs
_SOURCES = """selector => {
    const found = selector
        ? [...document.querySelectorAll(selector)].flatMap(
            each => each.tagName === "IMG" ? [each] : [...each.querySelectorAll("img")])
        : [...document.images];
    return found.map(each => each.getAttribute("src") ?? "");
}"""


def page_image_query(
    queries: Sequence[ImageCheck],
    *,
    page: Page,
    url: str,
    addresses: Addresses,
    scoring: Scoring,
    graders: Graders,
) -> tuple[float, str]:
    """Return 1.0 if the images of the pages pass all queries, else 0.0, and the reason for 0.0.

    `compat` scoring asks of all queries but the last only that there are images, as VisualWebArena
    does. An image of another host than the task's sites is not fetched, and counts as missing.

    Args:
        page: the agent's last tab, which is read but never navigated.
        url: public address of `page`.

    Raises:
        CannotScore: a query needs a judge model, or a reference image cannot be fetched.
        playwright.sync_api.Error: the browser has died.
    """
    for number, query in enumerate(queries):
        place = addresses.fill(query.eval_image_url)
        if place.startswith("func:"):
            call = parse_call(place.removeprefix("func:"))
            place = addresses.public(str(call.on(page, last_url=url, graders=graders)))
        if place == "last":
            images = _images(page, query.eval_image_class, addresses)
        else:
            tab = page.context.new_page()
            try:
                found = visit(tab, place, addresses)
                images = _images(tab, query.eval_image_class, addresses) if found else []
            finally:
                tab.close()
        where = f"page_image_query[{number}]: {query.eval_image_class or 'the images'} at {place}"
        if not images:
            return 0.0, f"{where}: no image"
        if scoring == "compat" and number < len(queries) - 1:
            continue
        if failed := _failed(query, images, page, addresses, graders):
            return 0.0, f"{where} {failed}"
    return 1.0, ""


def _failed(
    query: ImageCheck,
    images: Sequence[Image.Image],
    page: Page,
    addresses: Addresses,
    graders: Graders,
) -> str:
    """Describe what the images lack, or return an empty text."""
    if query.eval_vqa:
        judge = graders.the_judge("a question about an image")
        for each in query.eval_vqa:
            said = [judge.describe(image, each.question) for image in images]
            if not any(each.answer.lower() in answer.lower() for answer in said):
                return f'should show "{each.answer}" to: {each.question}'
    if query.eval_fuzzy_image_match is not None:
        threshold = _THRESHOLD if query.ssim_threshold is None else query.ssim_threshold
        names = query.eval_fuzzy_image_match.split(" |OR| ")
        references = [_reference(name, page, addresses) for name in names]
        pairs = [(image, each) for each in references for image in images]
        if any(_joint_pixels(*pair) > _MAX_PIXELS for pair in pairs):
            raise CannotScore("two images are too large to be compared")
        best = max(similarity(*pair) for pair in pairs)
        if best <= threshold:
            return f"should look like {names[0]}: {best:.2f} alike, expected over {threshold:g}"
    return ""


def _joint_pixels(one: Image.Image, other: Image.Image) -> int:
    return max(one.width, other.width) * max(one.height, other.height)


def _images(page: Page, selector: str, addresses: Addresses) -> list[Image.Image]:
    try:
        sources = page.evaluate(_SOURCES, selector.strip())
    except PlaywrightError:
        if page.is_closed():
            raise
        return []
    hosts = addresses.hosts()
    found = []
    for source in sources:
        url = urljoin(page.url, source)
        if urlsplit(addresses.public(url)).netloc in hosts:
            try:
                found.append(_fetch(url, page))
            except (PlaywrightError, _NoImage):
                if page.is_closed():
                    raise
    return found


def _reference(name: str, page: Page, addresses: Addresses) -> Image.Image:
    url = addresses.real(name)
    if not url.startswith(("http://", "https://")):
        raise CannotScore(f"the reference image {name} is a file of VisualWebArena's repository")
    try:
        return _fetch(url, page)
    except (PlaywrightError, _NoImage) as error:
        if page.is_closed():
            raise
        reason = str(error).partition("\n")[0]
        raise CannotScore(f"the reference image {name} cannot be fetched: {reason}") from None


class _NoImage(Exception):
    """What was fetched is no image."""


def _fetch(url: str, page: Page) -> Image.Image:
    answer = page.context.request.get(url, timeout=_TIMEOUT_MS)
    try:
        if not answer.ok:
            raise _NoImage(f"status {answer.status}")
        data = answer.body()
    finally:
        answer.dispose()
    if len(data) > _MAX_BYTES:
        raise _NoImage(f"{len(data)} bytes")
    try:
        image = Image.open(io.BytesIO(data), formats=_FORMATS)
        if image.width * image.height > _MAX_PIXELS:
            raise _NoImage(f"{image.width} by {image.height} pixels")
        return image.convert("RGB")
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise _NoImage(str(error)) from None
