"""Serve a new django-oscar shop on the given port; POST /reset restores its first state.

    SHOP_PASSWORD=... python serve.py 8123

The shop has four products and the accounts of Anna and Ben. It is removed at the end.
"""

import os
import signal
import sqlite3
import sys
import tempfile
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from typing import Any

import django
import oscar
from django.apps import apps
from django.conf import settings
from django.contrib.staticfiles.handlers import StaticFilesHandler
from django.core.cache import cache
from django.core.management import call_command
from django.core.servers.basehttp import run
from django.core.wsgi import get_wsgi_application
from django.db import connection
from django.urls import include, path
from django.views.static import serve
from oscar import defaults

PRODUCTS = {
    "Copper Kettle": ("34.50", "A kettle for two litres of water, with a lid of oak."),
    "Linen Apron": ("19.00", "A blue apron with two pockets."),
    "Walnut Board": ("27.25", "A board for bread, 40 centimetres long."),
    "Stone Mortar": ("22.75", "A mortar of grey granite, with a pestle."),
}
JOINED = datetime(2026, 1, 1, tzinfo=UTC)
CONTEXTS = (
    "django.template.context_processors.request",
    "django.contrib.auth.context_processors.auth",
    "django.contrib.messages.context_processors.messages",
    "oscar.apps.search.context_processors.search_form",
    "oscar.apps.checkout.context_processors.checkout",
    "oscar.apps.communication.notifications.context_processors.notifications",
    "oscar.core.context_processors.metadata",
)
Application = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]


def configure(folder: str) -> None:
    """Set up Django with the shop, whose data is in `folder`."""
    settings.configure(
        **{name: value for name, value in vars(defaults).items() if name.startswith("OSCAR_")},
        SECRET_KEY=os.urandom(20).hex(),
        ALLOWED_HOSTS=["*"],
        ROOT_URLCONF=__name__,
        INSTALLED_APPS=[*oscar.INSTALLED_APPS, "sorl.thumbnail"],
        DATABASES={
            "default": {"ENGINE": "django.db.backends.sqlite3", "NAME": f"{folder}/shop.sqlite3"}
        },
        MIDDLEWARE=[
            "django.contrib.sessions.middleware.SessionMiddleware",
            "django.middleware.csrf.CsrfViewMiddleware",
            "django.contrib.auth.middleware.AuthenticationMiddleware",
            "django.contrib.messages.middleware.MessageMiddleware",
            "oscar.apps.basket.middleware.BasketMiddleware",
        ],
        TEMPLATES=[
            {
                "BACKEND": "django.template.backends.django.DjangoTemplates",
                "APP_DIRS": True,
                "OPTIONS": {"context_processors": CONTEXTS},
            }
        ],
        AUTHENTICATION_BACKENDS=["oscar.apps.customer.auth_backends.EmailBackend"],
        HAYSTACK_CONNECTIONS={
            "default": {
                "ENGINE": "haystack.backends.whoosh_backend.WhooshEngine",
                "PATH": f"{folder}/index",
            }
        },
        EMAIL_BACKEND="django.core.mail.backends.dummy.EmailBackend",
        DEFAULT_AUTO_FIELD="django.db.models.BigAutoField",
        STATIC_URL="/static/",
        MEDIA_URL="/media/",
        MEDIA_ROOT=folder,
        TIME_ZONE="UTC",
        SITE_ID=1,
    )
    django.setup()
    # Migrations would take most of a minute; without them, the tables are there in seconds.
    settings.MIGRATION_MODULES = {app.label: None for app in apps.get_app_configs()}


def fill() -> None:
    """Create the tables, the products and the accounts."""
    from django.contrib.auth.models import User
    from oscar.apps.address.models import Country
    from oscar.apps.catalogue.models import Category, Product, ProductClass
    from oscar.apps.partner.models import Partner, StockRecord

    call_command("migrate", run_syncdb=True, verbosity=0)
    Country.objects.create(
        iso_3166_1_a2="GB", printable_name="United Kingdom", is_shipping_country=True
    )
    goods = ProductClass.objects.create(name="Goods")
    kitchen = Category.objects.add_root({"name": "Kitchen"})
    partner = Partner.objects.create(name="Smith")
    for title, (price, description) in PRODUCTS.items():
        product = Product.objects.create(title=title, description=description, product_class=goods)
        product.categories.add(kitchen)
        StockRecord.objects.create(
            product=product, partner=partner, partner_sku=title, price=price, num_in_stock=20
        )
    call_command("rebuild_index", interactive=False, verbosity=0)
    # Ben's password is no secret: a task says it. Anna's is known to the log-in alone.
    passwords = {"anna": os.environ["SHOP_PASSWORD"], "ben": "tea and toast"}
    for name, password in passwords.items():
        User.objects.create_user(name, f"{name}@shop.localhost", password, date_joined=JOINED)


def with_reset(shop: Application, file: str) -> Application:
    """Return `shop` with a path that restores the present state of its database."""
    first = sqlite3.connect(":memory:", check_same_thread=False)
    connection.connection.backup(first)

    def application(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        if (environ["REQUEST_METHOD"], environ["PATH_INFO"]) != ("POST", "/reset"):
            return shop(environ, start_response)
        live = sqlite3.connect(file)
        first.backup(live)
        live.close()
        cache.clear()
        start_response("200 OK", [("Content-Type", "text/plain")])
        return [b"reset"]

    return application


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    with tempfile.TemporaryDirectory() as folder:
        configure(folder)
        fill()
        urlpatterns = [
            path("media/<path:path>", serve, {"document_root": folder}),
            path("", include(apps.get_app_config("oscar").urls[0])),
        ]
        shop = StaticFilesHandler(get_wsgi_application())
        shop = with_reset(shop, f"{folder}/shop.sqlite3")
        run("127.0.0.1", int(sys.argv[1]), shop, threading=True)
