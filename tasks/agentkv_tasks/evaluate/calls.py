"""Helper calls in VisualWebArena's task files, such as `get_query_text(__page__, '.price')`.

Upstream hands these strings to Python's `eval`. Here a call is parsed, its name must stand in a
table, and its arguments must be literals.
"""

import ast
import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, cast
from urllib.parse import urlsplit

from playwright.sync_api import Error as PlaywrightError
from playwright.sync_api import Page

from agentkv_tasks.evaluate.strings import Unjudged

_PAGE = "__page__"


@dataclass(frozen=True, slots=True)
class Call:
    """One parsed call; `arguments` are literals, and the page where the text says `__page__`."""

    name: str
    arguments: tuple[object, ...]

    def on(self, page: Page, *, last_url: str = "__last_url__") -> str | int | float:
        """Carry it out on `page`.

        Args:
            last_url: stands in for `__last_url__` inside texts.

        Raises:
            Unjudged: the helper needs an interface that the sites here do not have.
        """
        given: list[object] = []
        for argument in self.arguments:
            if isinstance(argument, str) and argument is not _PAGE:
                # After parsing: an address may hold a quotation mark.
                argument = argument.replace("__last_url__", last_url)
            given.append(page if argument is _PAGE else argument)
        return TABLE[self.name](*given)


def parse_call(text: str) -> Call:
    """Read `name(arguments)`, without the `func:` before it.

    Raises:
        ValueError: it is no call, the name is unknown, an argument is no literal, or the helper
            does not take these.
    """
    try:
        node = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, RecursionError, MemoryError):  # what the parser raises for deep nesting
        raise ValueError(f"'{text[:80]}' is no call; expected name(arguments)") from None
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name) or node.keywords:
        raise ValueError(f"'{text}' is no plain call; expected name(arguments)")
    if node.func.id not in TABLE:
        raise ValueError(f"unknown helper '{node.func.id}'; known: {', '.join(sorted(TABLE))}")
    arguments = tuple(_argument(argument, text) for argument in node.args)
    _require_taken(node.func.id, arguments)
    return Call(node.func.id, arguments)


def _argument(node: ast.expr, text: str) -> object:
    if isinstance(node, ast.Name) and node.id == _PAGE:
        return _PAGE
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        raise ValueError(f"'{text}': arguments must be literals or __page__") from None


def _require_taken(name: str, arguments: tuple[object, ...]) -> None:
    """Refuse arguments of other number or kind than the helper's. Raises ValueError."""
    function = TABLE[name]
    if function is _needs_admin:
        return
    parameters = inspect.signature(function).parameters.values()
    taken = ", ".join(_PAGE if each.annotation is Page else each.name for each in parameters)
    fits = len(parameters) == len(arguments) and all(
        argument is _PAGE
        if parameter.annotation is Page
        else argument is not _PAGE and isinstance(argument, parameter.annotation)
        for parameter, argument in zip(parameters, arguments, strict=True)
    )
    if not fits:
        raise ValueError(f"{name} takes ({taken}); found {len(arguments)} arguments, {arguments!r}")


# ---- what the helpers do --------------------------------------------------------------------


def get_query_text(page: Page, selector: str) -> str:
    """Text of the first element that `selector` finds, empty if there is none."""
    script = "s => { try { return document.querySelector(s).textContent } catch { return '' } }"
    return str(_run(page, script, selector, otherwise=""))


def get_query_text_lowercase(page: Page, selector: str) -> str:
    return get_query_text(page, selector).lower()


def reddit_get_post_url(url: str) -> str:
    """The address of the post that `url` (a post, or a comment on it) belongs to."""
    parts = urlsplit(url)
    path = parts.path.split("/")
    if len(path) < 4 or path[1] != "f":
        return url
    return f"{parts.scheme}://{parts.netloc}/f/{path[2]}/{path[3]}/"


_COMMENTS = """() => {
    const read = (node, level) => ({
        username: node.querySelector(".fg-inherit")?.innerText ?? "",
        content: node.querySelector(".comment__content")?.innerText ?? "",
        time: Date.parse(
            node.querySelector(".comment__main > header > h1 > span > time")?.dateTime) || 0,
        children: [...node.querySelectorAll(".comment")]
            .filter(child => +child.dataset.level === level + 1)
            .map(child => read(child, level + 1)),
    });
    return read(document.querySelector("#main"), 0);
}"""  # Postmill's markup


def _latest_comment(page: Page, username: str) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """The newest comment by `username` below the post, and what it answers; empty if none."""
    tree = _run(page, _COMMENTS, None, otherwise=None)
    found: list[tuple[float, Mapping[str, Any], Mapping[str, Any]]] = []
    open_nodes = [cast(dict[str, Any], tree)] if tree else []
    while open_nodes:
        node = open_nodes.pop()
        for child in node["children"]:
            open_nodes.append(child)
            if child["username"] == username:
                found.append((child["time"], child, node))
    if not found:
        return {}, {}
    newest = max(found, key=lambda entry: entry[0])
    return newest[1], newest[2]


def reddit_get_latest_comment_content_by_username(page: Page, username: str) -> str:
    return str(_latest_comment(page, username)[0].get("content", ""))


def reddit_get_parent_comment_username_of_latest_comment_by_username(
    page: Page, username: str
) -> str:
    return str(_latest_comment(page, username)[1].get("username", ""))


_ORDER = """() => [...document.querySelectorAll("#my-orders-table tbody")].map(body => {
    const row = {};
    for (const cell of body.querySelectorAll("td")) {
        const key = cell.className.split(" ")[1];
        row[key] = cell.innerText;
        const list = key === "name" && cell.querySelector("dl");
        if (list) {
            row.options = {};
            const items = [...list.children];
            for (let i = 0; i + 1 < items.length; i += 2)
                row.options[items[i].innerText] = items[i + 1].innerText;
        }
    }
    return row;
})"""  # Magento's markup


def _ordered(page: Page) -> list[dict[str, Any]]:
    return cast(list[dict[str, Any]], _run(page, _ORDER, None, otherwise=[]))


def shopping_get_order_product_name_list(page: Page) -> str:
    return " |OR| ".join(str(row.get("name", "")) for row in _ordered(page))


def shopping_get_order_product_quantity(page: Page, sku: str) -> int:
    for row in _ordered(page):
        if str(row.get("sku", "")).strip() in sku.split(" |OR| "):
            amount = str(row.get("qty", "")).removeprefix("Ordered").strip()
            return int(amount) if re.fullmatch("[0-9]{1,18}", amount) else 0
    return 0


def shopping_get_order_product_option(page: Page, sku: str, option_name: str) -> str:
    for row in _ordered(page):
        if str(row.get("sku", "")).strip() == sku:
            return str(row.get("options", {}).get(option_name, ""))
    return ""


def shopping_get_product_attributes(page: Page, attribute: str) -> str:
    """Values of the rows in the product's detail table whose head holds one of the |OR| names."""
    script = """names => [...document.querySelectorAll(
        "#productDetails_detailBullets_sections1 > tbody > tr")]
        .filter(row => names.some(n => row.children[0].innerText.toLowerCase().includes(n)))
        .map(row => row.children[1].innerText).join(", ")"""
    return str(_run(page, script, attribute.lower().split(" |or| "), otherwise=""))


def shopping_get_product_price(page: Page) -> float:
    script = """() => parseFloat(document.querySelector(
        ".product-info-main .price-box.price-final_price span span").innerText.slice(1)) || 0"""
    return float(cast(float, _run(page, script, None, otherwise=0)))


def shopping_get_num_reviews(page: Page) -> int:
    script = """() => parseInt(
        document.querySelector("#tab-label-reviews-title").innerText.split(" ")[1]) || 0"""
    return int(cast(int, _run(page, script, None, otherwise=0)))


def shopping_get_rating_as_percentage(page: Page) -> int:
    script = "() => parseFloat(document.querySelector('.rating-result').title) || 0"
    return int(cast(int, _run(page, script, None, otherwise=0)))


def _needs_admin(*arguments: object) -> str:
    raise Unjudged("this check reads Magento's admin interface, which is not set up here")


def _run(page: Page, script: str, argument: object, *, otherwise: object) -> object:
    try:
        return page.evaluate(script, argument)
    except PlaywrightError:
        if page.is_closed():
            raise
        return otherwise  # the page is another one than the check expects


TABLE: Mapping[str, Callable[..., str | int | float]] = {
    function.__name__: function
    for function in (
        get_query_text,
        get_query_text_lowercase,
        reddit_get_latest_comment_content_by_username,
        reddit_get_parent_comment_username_of_latest_comment_by_username,
        reddit_get_post_url,
        shopping_get_num_reviews,
        shopping_get_order_product_name_list,
        shopping_get_order_product_option,
        shopping_get_order_product_quantity,
        shopping_get_product_attributes,
        shopping_get_product_price,
        shopping_get_rating_as_percentage,
    )
} | {
    name: _needs_admin
    for name in (
        "shopping_get_latest_order_url",
        "shopping_get_sku_latest_review_author",
        "shopping_get_sku_latest_review_rating",
        "shopping_get_sku_latest_review_text",
    )
}
