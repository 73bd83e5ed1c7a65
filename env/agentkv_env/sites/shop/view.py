"""Render pages of the shop, find the requested product, and require sign-in."""

from collections.abc import Awaitable, Callable
from functools import wraps
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import Response

from agentkv_env.sites.shop.catalogue import NO_RATING, ratings
from agentkv_env.sites.shop.content import Product, ShopContent, slug
from agentkv_env.sites.site import database, missing, render, see_other, site_content, whole_number

Handler = Callable[[Request], Awaitable[Response]]


def shop(request: Request) -> ShopContent:
    """Return the content of the shop."""
    return site_content(request, ShopContent)


def show(request: Request, template: str, *, status: int = 200, **values: object) -> Response:
    """Render `template` with `values` and the values that the layout and product cards need."""
    db = database(request)
    rated = ratings(db)
    customer = db.execute("SELECT * FROM shop_customer").fetchone()
    (in_cart,) = db.execute("SELECT coalesce(sum(quantity), 0) FROM shop_cart").fetchone()
    return render(
        request,
        template,
        status=status,
        shop=shop(request),
        customer=customer,
        in_cart=in_cart,
        slug=slug,
        rating=lambda product: rated.get(product.number, NO_RATING),
        **values,
    )


def requested_product(request: Request) -> Product:
    """Return the product in the address.

    Raises:
        HTTPException: 404 when there is none.
    """
    return product_numbered(request, request.path_params["number"])


def product_numbered(request: Request, number: str | int) -> Product:
    """Return the product with `number`, or raise 404."""
    product = shop(request).product(whole_number(str(number), 0))
    if product is None:
        raise missing()
    return product


def signed_in(handler: Handler) -> Handler:
    """Redirect visitors to the sign-in page, which leads back after signing in."""

    @wraps(handler)
    async def guarded(request: Request) -> Response:
        (is_in,) = database(request).execute("SELECT signed_in FROM shop_customer").fetchone()
        if not is_in:
            return see_other(f"/sign-in?next={quote(request.url.path)}")
        return await handler(request)

    return guarded


def local_path(path: str) -> str:
    """Return `path` if it is on this site, else the start page, to prevent open redirects."""
    return path if path.startswith("/") and not path.startswith(("//", "/\\")) else "/"
