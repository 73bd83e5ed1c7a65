"""Helper calls in VisualWebArena's task files, such as `get_query_text(__page__, '.price')`.

VisualWebArena passes these strings to Python's `eval`. This module parses them instead: the name
must be in `TABLE` and the arguments must be literals.
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

from agentkv_tasks.evaluate.graders import NOBODY, Graders
from agentkv_tasks.evaluate.magento import MagentoAdmin
from agentkv_tasks.task import Task

_PAGE = "__page__"


@dataclass(frozen=True, slots=True)
class GraderCall:
    """A parsed call; an argument is a literal, or the page in place of `__page__`."""

    name: str
    arguments: tuple[object, ...]

    def on(
        self, page: Page, *, last_url: str = "__last_url__", graders: Graders = NOBODY
    ) -> str | int | float:
        """Call the helper on `page`.

        Args:
            last_url: replaces `__last_url__` inside string arguments.

        Raises:
            CannotScore: the helper needs an interface that `graders` lacks, or that does not
                answer.
        """
        function = TABLE[self.name]
        values: list[object] = [graders.the_admin()] if _asks_admin(function) else []
        for argument in self.arguments:
            if isinstance(argument, str) and argument is not _PAGE:
                # Replaced after parsing, because an address may contain a quotation mark.
                argument = argument.replace("__last_url__", last_url)
            values.append(page if argument is _PAGE else argument)
        return function(*values)


def parse_call(text: str) -> GraderCall:
    """Parse `name(arguments)`, without a `func:` prefix.

    Raises:
        ValueError: `text` is not a call, the name is unknown, an argument is not a literal, or the
            helper does not accept the arguments.
    """
    try:
        node = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, RecursionError, MemoryError):  # deep nesting raises the last two
        raise ValueError(f"'{text[:80]}' is not a call; expected name(arguments)") from None
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name) or node.keywords:
        raise ValueError(f"'{text}' is not a plain call; expected name(arguments)")
    if node.func.id not in TABLE:
        raise ValueError(f"unknown helper '{node.func.id}'; known: {', '.join(sorted(TABLE))}")
    arguments = tuple(_argument(argument, text) for argument in node.args)
    _check_arguments(node.func.id, arguments)
    return GraderCall(node.func.id, arguments)


def _argument(node: ast.expr, text: str) -> object:
    if isinstance(node, ast.Name) and node.id == _PAGE:
        return _PAGE
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        raise ValueError(f"'{text}': arguments must be literals or __page__") from None


def _check_arguments(name: str, arguments: tuple[object, ...]) -> None:
    """Raise ValueError if the number or types of `arguments` do not match the helper."""
    function = TABLE[name]
    parameters = list(inspect.signature(function).parameters.values())[_asks_admin(function) :]
    expected = ", ".join(_PAGE if each.annotation is Page else each.name for each in parameters)
    fits = len(parameters) == len(arguments) and all(
        argument is _PAGE
        if parameter.annotation is Page
        else argument is not _PAGE and isinstance(argument, parameter.annotation)
        for parameter, argument in zip(parameters, arguments, strict=True)
    )
    if not fits:
        raise ValueError(f"{name} takes ({expected}); found {len(arguments)}: {arguments!r}")


# ---- helpers --------------------------------------------------------------------------------


def get_query_text(page: Page, selector: str) -> str:
    """Return the text of the first element that matches `selector`, or an empty string."""
    script = "s => { try { return document.querySelector(s).textContent } catch { return '' } }"
    return str(_run(page, script, selector, otherwise=""))


def get_query_text_lowercase(page: Page, selector: str) -> str:
    """Return the text of the first element that matches `selector`, in lower case."""
    return get_query_text(page, selector).lower()


def reddit_get_post_url(url: str) -> str:
    """Return the address of the post for `url`, the address of a post or of a comment on it."""
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
    """Return the newest comment by `username` and its parent; both are empty if there is none."""
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
    """Return the text of the newest comment by `username`, or an empty string."""
    return str(_latest_comment(page, username)[0].get("content", ""))


def reddit_get_parent_comment_username_of_latest_comment_by_username(
    page: Page, username: str
) -> str:
    """Return the author of the comment or post that the newest comment by `username` answers."""
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


def _order_items(page: Page) -> list[dict[str, Any]]:
    return cast(list[dict[str, Any]], _run(page, _ORDER, None, otherwise=[]))


def shopping_get_order_product_name_list(page: Page) -> str:
    """Return the names of all products of the order, joined by ` |OR| `."""
    return " |OR| ".join(str(row.get("name", "")) for row in _order_items(page))


def shopping_get_order_product_quantity(page: Page, sku: str) -> int:
    """Return the ordered quantity of the first product whose SKU is in `sku`, or 0.

    Args:
        sku: one SKU, or several joined by ` |OR| `.
    """
    for row in _order_items(page):
        if str(row.get("sku", "")).strip() in sku.split(" |OR| "):
            amount = str(row.get("qty", "")).removeprefix("Ordered").strip()
            return int(amount) if re.fullmatch("[0-9]{1,18}", amount) else 0
    return 0


def shopping_get_order_product_option(page: Page, sku: str, option_name: str) -> str:
    """Return the value of an option of the ordered product `sku`, or an empty string."""
    for row in _order_items(page):
        if str(row.get("sku", "")).strip() == sku:
            return str(row.get("options", {}).get(option_name, ""))
    return ""


def shopping_get_product_attributes(page: Page, attribute: str) -> str:
    """Return the values in the detail table whose heading contains a name of `attribute`.

    Args:
        attribute: one name, or several joined by ` |OR| `; upper and lower case are equal.
    """
    script = """names => [...document.querySelectorAll(
        "#productDetails_detailBullets_sections1 > tbody > tr")]
        .filter(row => names.some(n => row.children[0].innerText.toLowerCase().includes(n)))
        .map(row => row.children[1].innerText).join(", ")"""
    return str(_run(page, script, attribute.lower().split(" |or| "), otherwise=""))


def shopping_get_product_price(page: Page) -> float:
    """Return the price on a product page, or 0."""
    script = """() => parseFloat(document.querySelector(
        ".product-info-main .price-box.price-final_price span span").innerText.slice(1)) || 0"""
    return float(cast(float, _run(page, script, None, otherwise=0)))


def shopping_get_num_reviews(page: Page) -> int:
    """Return the number of reviews on a product page, or 0."""
    script = """() => parseInt(
        document.querySelector("#tab-label-reviews-title").innerText.split(" ")[1]) || 0"""
    return int(cast(int, _run(page, script, None, otherwise=0)))


def shopping_get_rating_as_percentage(page: Page) -> int:
    """Return the rating on a product page in percent, or 0."""
    script = "() => parseFloat(document.querySelector('.rating-result').title) || 0"
    return int(cast(int, _run(page, script, None, otherwise=0)))


def shopping_get_latest_order_url(admin: MagentoAdmin) -> str:
    """Return the address of the page of the newest order, of whichever account."""
    return admin.latest_order_url()


def shopping_get_sku_latest_review_author(admin: MagentoAdmin, sku: str) -> str:
    """Return the author of the newest review of the product `sku`, or an empty string."""
    return str(admin.latest_review(sku).get("nickname", ""))


def shopping_get_sku_latest_review_rating(admin: MagentoAdmin, sku: str) -> str:
    """Return the rating of the newest review of the product `sku` in percent, or an empty
    string."""
    for rating in admin.latest_review(sku).get("ratings") or ():
        if isinstance(rating, dict) and rating.get("rating_name") == "Rating":
            return str(rating.get("percent", ""))
    return ""


def shopping_get_sku_latest_review_text(admin: MagentoAdmin, sku: str) -> str:
    """Return the text of the newest review of the product `sku`, or an empty string."""
    return str(admin.latest_review(sku).get("detail", ""))


def asks_admin(task: Task) -> bool:
    """Return True if a check of `task` asks the admin interface of a shop."""
    names = "|".join(name for name, function in TABLE.items() if _asks_admin(function))
    asks = re.compile(rf"func:\s*(?:{names})\b")
    places = [(target.url, target.locator) for target in task.eval.program_html or ()]
    places += [(query.eval_image_url, "") for query in task.eval.page_image_query or ()]
    return any(asks.match(text) for pair in places for text in pair)


def _asks_admin(function: Callable[..., object]) -> bool:
    parameters = list(inspect.signature(function).parameters.values())
    return bool(parameters) and parameters[0].annotation is MagentoAdmin


def _run(page: Page, script: str, argument: object, *, otherwise: object) -> object:
    try:
        return page.evaluate(script, argument)
    except PlaywrightError:
        if page.is_closed():
            raise
        return otherwise  # not the page that the check expects


TABLE: Mapping[str, Callable[..., str | int | float]] = {
    function.__name__: function
    for function in (
        get_query_text,
        get_query_text_lowercase,
        reddit_get_latest_comment_content_by_username,
        reddit_get_parent_comment_username_of_latest_comment_by_username,
        reddit_get_post_url,
        shopping_get_latest_order_url,
        shopping_get_num_reviews,
        shopping_get_order_product_name_list,
        shopping_get_order_product_option,
        shopping_get_order_product_quantity,
        shopping_get_product_attributes,
        shopping_get_product_price,
        shopping_get_rating_as_percentage,
        shopping_get_sku_latest_review_author,
        shopping_get_sku_latest_review_rating,
        shopping_get_sku_latest_review_text,
    )
}
