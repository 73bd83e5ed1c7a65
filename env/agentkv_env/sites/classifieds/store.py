"""The classifieds' tables: how they are filled, and the queries the pages share."""

import sqlite3
from datetime import timedelta
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from agentkv_env.sites.world import World

SCHEMA = """
CREATE TABLE classifieds_listing (
    id INTEGER PRIMARY KEY, title TEXT NOT NULL, category TEXT NOT NULL, price INTEGER NOT NULL,
    condition TEXT NOT NULL, town TEXT NOT NULL, seller TEXT NOT NULL, description TEXT NOT NULL,
    delivery INTEGER NOT NULL, posted_at TEXT NOT NULL, has_photo INTEGER NOT NULL
);
CREATE TABLE classifieds_remark (
    id INTEGER PRIMARY KEY, listing INTEGER NOT NULL, author TEXT NOT NULL, body TEXT NOT NULL
);
CREATE TABLE classifieds_message (
    id INTEGER PRIMARY KEY, listing INTEGER NOT NULL, receiver TEXT NOT NULL, phone TEXT NOT NULL,
    body TEXT NOT NULL
);
CREATE TABLE classifieds_saved (listing INTEGER PRIMARY KEY);
"""

ORDERS = {
    "newest": ("Newest first", "posted_at DESC, id DESC"),
    "cheapest": ("Price: low to high", "price, id"),
    "dearest": ("Price: high to low", "price DESC, id"),
}
"""Ways to sort: what the page calls them, and the SQL."""


def fill(world: "World", connection: sqlite3.Connection) -> None:
    """Insert the world's listings, remarks and saved listings."""
    content = world.classifieds
    connection.executemany(
        "INSERT INTO classifieds_listing VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, 1)",
        [
            (x.id, x.title, x.category, x.price, x.condition, x.town, x.seller, x.description,
             x.delivery, (world.now - timedelta(days=x.days_ago)).isoformat())
            for x in content.listings
        ],
    )  # fmt: skip
    connection.executemany(
        "INSERT INTO classifieds_remark (listing, author, body) VALUES (?, ?, ?)",
        [(x.id, remark.author, remark.body) for x in content.listings for remark in x.remarks],
    )
    connection.executemany(
        "INSERT INTO classifieds_saved VALUES (?)", [(id,) for id in content.saved]
    )


def listing(connection: sqlite3.Connection, id: int) -> sqlite3.Row | None:
    """The listing with this id, as its row."""
    row: sqlite3.Row | None = connection.execute(
        "SELECT * FROM classifieds_listing WHERE id = ?", (id,)
    ).fetchone()
    return row


def find(
    connection: sqlite3.Connection,
    *,
    text: str = "",
    category: str = "",
    town: str = "",
    condition: str = "",
    most: int | None = None,
    seller: str = "",
    order: str = "newest",
) -> list[sqlite3.Row]:
    """Listings that meet every condition given; `text` must have all its words in the title."""
    wheres, values = ["1"], list[object]()
    for word in text.lower().split():
        wheres.append("instr(lower(title), ?)")
        values.append(word)
    equal = {"category": category, "town": town, "condition": condition, "seller": seller}
    for column, value in equal.items():
        if value:
            wheres.append(f"{column} = ?")
            values.append(value)
    if most is not None:
        wheres.append("price <= ?")
        values.append(most)
    by = ORDERS.get(order, ORDERS["newest"])[1]
    return connection.execute(
        f"SELECT * FROM classifieds_listing WHERE {' AND '.join(wheres)} ORDER BY {by}", values
    ).fetchall()
