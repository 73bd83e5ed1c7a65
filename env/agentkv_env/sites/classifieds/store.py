"""The tables of the classifieds, their initial rows, and queries that pages share."""

import sqlite3
from datetime import timedelta

from agentkv_env.sites.classifieds.content import ClassifiedsContent
from agentkv_env.sites.region import Region

SCHEMA = """
CREATE TABLE classifieds_listing (
    id INTEGER PRIMARY KEY, title TEXT NOT NULL, category TEXT NOT NULL, price INTEGER NOT NULL,
    condition TEXT NOT NULL, town TEXT NOT NULL, seller TEXT NOT NULL, description TEXT NOT NULL,
    delivery INTEGER NOT NULL, posted_at TEXT NOT NULL, has_photo INTEGER NOT NULL,
    is_sold INTEGER NOT NULL DEFAULT 0
);
CREATE TABLE classifieds_remark (
    id INTEGER PRIMARY KEY, listing INTEGER NOT NULL, author TEXT NOT NULL, body TEXT NOT NULL
);
CREATE TABLE classifieds_message (
    id INTEGER PRIMARY KEY, listing INTEGER NOT NULL, receiver TEXT NOT NULL, phone TEXT NOT NULL,
    body TEXT NOT NULL
);
CREATE TABLE classifieds_saved (listing INTEGER PRIMARY KEY);
CREATE TABLE classifieds_fact (
    listing INTEGER NOT NULL, key TEXT NOT NULL, value TEXT NOT NULL, UNIQUE (listing, key)
);
CREATE TABLE classifieds_rating (
    id INTEGER PRIMARY KEY, seller TEXT NOT NULL, author TEXT NOT NULL, stars INTEGER NOT NULL,
    body TEXT NOT NULL, UNIQUE (seller, author)
);
CREATE TABLE classifieds_offer (
    id INTEGER PRIMARY KEY, listing INTEGER NOT NULL, buyer TEXT NOT NULL,
    dollars INTEGER NOT NULL, note TEXT NOT NULL, state TEXT NOT NULL DEFAULT 'waiting'
);
CREATE TABLE classifieds_alert (
    id INTEGER PRIMARY KEY, text TEXT NOT NULL, category TEXT NOT NULL, town TEXT NOT NULL,
    condition TEXT NOT NULL, most INTEGER
);
CREATE TABLE classifieds_report (listing INTEGER PRIMARY KEY, reason TEXT NOT NULL);
CREATE TABLE classifieds_consent (choice TEXT NOT NULL);
"""

ORDERS = {
    "newest": ("Newest first", "posted_at DESC, id DESC"),
    "cheapest": ("Price: low to high", "price, id"),
    "dearest": ("Price: high to low", "price DESC, id"),
}
"""Sort orders: the label on the page and the SQL."""


def fill(region: Region, content: ClassifiedsContent, connection: sqlite3.Connection) -> None:
    """Insert the listings with their remarks, facts, ratings, offers and alerts."""
    connection.executemany(
        "INSERT INTO classifieds_listing VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, 1, ?)",
        [
            (x.id, x.title, x.category, x.price, x.condition, x.town, x.seller, x.description,
             x.delivery, (region.now - timedelta(days=x.days_ago)).isoformat(), x.is_sold)
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
    connection.executemany(
        "INSERT INTO classifieds_fact VALUES (?, ?, ?)",
        [(x.id, key, value) for x in content.listings for key, value in x.facts],
    )
    connection.executemany(
        "INSERT INTO classifieds_rating (seller, author, stars, body) VALUES (?, ?, ?, ?)",
        [(x.handle, y.author, y.stars, y.body) for x in content.sellers for y in x.ratings],
    )
    connection.executemany(
        "INSERT INTO classifieds_offer (listing, buyer, dollars, note) VALUES (?, ?, ?, ?)",
        [(x.listing, x.buyer, x.dollars, x.note) for x in content.offers],
    )
    connection.executemany(
        "INSERT INTO classifieds_alert (text, category, town, condition, most)"
        " VALUES ('', ?, ?, '', ?)",
        [(x.category, x.town, x.most) for x in content.alerts],
    )


def listing(connection: sqlite3.Connection, id: int) -> sqlite3.Row | None:
    """Return the row of the listing with this id, or None."""
    row: sqlite3.Row | None = connection.execute(
        "SELECT * FROM classifieds_listing WHERE id = ?", (id,)
    ).fetchone()
    return row


def facts(connection: sqlite3.Connection, id: int) -> dict[str, str]:
    """Return the facts of a listing, in the order of insertion."""
    rows = connection.execute(
        "SELECT key, value FROM classifieds_fact WHERE listing = ? ORDER BY rowid", (id,)
    )
    return {row["key"]: row["value"] for row in rows}


def set_facts(connection: sqlite3.Connection, id: int, facts: dict[str, str]) -> None:
    """Replace the facts of a listing by `facts`."""
    connection.execute("DELETE FROM classifieds_fact WHERE listing = ?", (id,))
    connection.executemany(
        "INSERT INTO classifieds_fact VALUES (?, ?, ?)",
        [(id, key, value) for key, value in facts.items()],
    )


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
    """Return the listings that meet all conditions; the title must contain all words of `text`."""
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
