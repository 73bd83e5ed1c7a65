"""The forum's tables: how they are filled, and the queries the pages share."""

import sqlite3
from datetime import timedelta
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from agentkv_env.sites.world import World

SCHEMA = """
CREATE TABLE forum_member (handle TEXT PRIMARY KEY, bio TEXT NOT NULL, joined INTEGER NOT NULL);
CREATE TABLE forum_subscription (board TEXT PRIMARY KEY);
CREATE TABLE forum_thread (
    id INTEGER PRIMARY KEY, board TEXT NOT NULL, author TEXT NOT NULL, title TEXT NOT NULL,
    body TEXT NOT NULL, score INTEGER NOT NULL, vote INTEGER NOT NULL, posted_at TEXT NOT NULL,
    has_picture INTEGER NOT NULL
);
CREATE TABLE forum_comment (
    id INTEGER PRIMARY KEY, thread INTEGER NOT NULL, parent INTEGER, author TEXT NOT NULL,
    body TEXT NOT NULL, score INTEGER NOT NULL, vote INTEGER NOT NULL, posted_at TEXT NOT NULL
);
"""
# `score` is everybody else's votes, `vote` the signed-in user's: -1, 0 or 1.

_SHOWN = """
SELECT t.*, t.score + t.vote AS points,
    (SELECT count(*) FROM forum_comment c WHERE c.thread = t.id) AS num_comments
FROM forum_thread t
"""

_NEWEST = "posted_at DESC, id DESC"
ORDERS = {
    # Points lose half their weight a day: an hour is 1/24 of a julian day.
    "hot": ("Hot", f"points / (1 + julianday(:now) - julianday(posted_at)) DESC, {_NEWEST}"),
    "new": ("New", _NEWEST),
    "top": ("Top", f"points DESC, {_NEWEST}"),
}
"""Ways to sort threads: what the page calls them, and the SQL; `:now` is the world's time."""


def fill(world: "World", connection: sqlite3.Connection) -> None:
    """Insert the world's members, subscriptions, threads and comments."""
    content = world.forum

    def moment(minutes_ago: int) -> str:
        return (world.now - timedelta(minutes=minutes_ago)).isoformat()

    connection.executemany(
        "INSERT INTO forum_member VALUES (?, ?, ?)",
        [(member.handle, member.bio, member.joined) for member in content.members],
    )
    connection.executemany(
        "INSERT INTO forum_subscription VALUES (?)", [(board,) for board in content.subscribed]
    )
    connection.executemany(
        "INSERT INTO forum_thread VALUES (?, ?, ?, ?, ?, ?, 0, ?, ?)",
        [
            (t.id, t.board, t.author, t.title, t.body, t.score, moment(t.minutes_ago),
             t.poster is not None)
            for t in content.threads
        ],
    )  # fmt: skip
    connection.executemany(
        "INSERT INTO forum_comment VALUES (?, ?, ?, ?, ?, ?, 0, ?)",
        [
            (c.id, c.thread, c.parent, c.author, c.body, c.score, moment(c.minutes_ago))
            for t in content.threads
            for c in t.comments
        ],
    )


def threads(
    connection: sqlite3.Connection,
    *,
    now: str,
    order: str = "hot",
    board: str = "",
    author: str = "",
    text: str = "",
) -> list[sqlite3.Row]:
    """Threads that meet every condition given; `text` must have all its words in the title."""
    wheres, values = ["1"], dict[str, object]({"now": now, "board": board, "author": author})
    wheres += [f"{column} = :{column}" for column in ("board", "author") if values[column]]
    for index, word in enumerate(text.lower().split()):
        wheres.append(f"instr(lower(title), :word{index})")
        values[f"word{index}"] = word
    by = ORDERS.get(order, ORDERS["hot"])[1]
    return connection.execute(
        f"{_SHOWN} WHERE {' AND '.join(wheres)} ORDER BY {by}", values
    ).fetchall()


def thread(connection: sqlite3.Connection, id: int) -> sqlite3.Row | None:
    """The thread with this id, as its row."""
    row: sqlite3.Row | None = connection.execute(f"{_SHOWN} WHERE t.id = ?", (id,)).fetchone()
    return row


def comment(connection: sqlite3.Connection, id: int) -> sqlite3.Row | None:
    """The comment with this id, as its row."""
    row: sqlite3.Row | None = connection.execute(
        "SELECT *, score + vote AS points FROM forum_comment WHERE id = ?", (id,)
    ).fetchone()
    return row


def comments(connection: sqlite3.Connection, thread: int) -> list[tuple[int, sqlite3.Row]]:
    """A thread's comments with their depth: best first, each followed by its answers."""
    answers: dict[int | None, list[sqlite3.Row]] = {}
    for row in connection.execute(
        "SELECT *, score + vote AS points FROM forum_comment WHERE thread = ?"
        " ORDER BY points DESC, id",
        (thread,),
    ):
        answers.setdefault(row["parent"], []).append(row)
    result = []
    open_branches = [(0, row) for row in reversed(answers.get(None, []))]
    while open_branches:
        depth, row = open_branches.pop()
        result.append((depth, row))
        open_branches += [(depth + 1, answer) for answer in reversed(answers.get(row["id"], []))]
    return result
