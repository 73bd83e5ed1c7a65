"""The tables of the forum, their initial rows, and queries that pages share."""

import sqlite3
from datetime import timedelta

from agentkv_env.sites.forum.content import ForumContent
from agentkv_env.sites.region import Region

SCHEMA = """
CREATE TABLE forum_member (
    handle TEXT PRIMARY KEY, bio TEXT NOT NULL, joined INTEGER NOT NULL, flair TEXT NOT NULL
);
CREATE TABLE forum_subscription (board TEXT PRIMARY KEY);
CREATE TABLE forum_thread (
    id INTEGER PRIMARY KEY, board TEXT NOT NULL, author TEXT NOT NULL, title TEXT NOT NULL,
    body TEXT NOT NULL, score INTEGER NOT NULL, vote INTEGER NOT NULL, posted_at TEXT NOT NULL,
    has_picture INTEGER NOT NULL, flair TEXT NOT NULL DEFAULT '', spoiler TEXT NOT NULL DEFAULT ''
);
CREATE TABLE forum_comment (
    id INTEGER PRIMARY KEY, thread INTEGER NOT NULL, parent INTEGER, author TEXT NOT NULL,
    body TEXT NOT NULL, score INTEGER NOT NULL, vote INTEGER NOT NULL, posted_at TEXT NOT NULL,
    is_edited INTEGER NOT NULL DEFAULT 0
);
CREATE TABLE forum_poll (thread INTEGER PRIMARY KEY, question TEXT NOT NULL);
CREATE TABLE forum_answer (
    id INTEGER PRIMARY KEY, thread INTEGER NOT NULL, words TEXT NOT NULL, votes INTEGER NOT NULL
);
CREATE TABLE forum_ballot (thread INTEGER PRIMARY KEY, answer INTEGER NOT NULL);
CREATE TABLE forum_saved (thread INTEGER PRIMARY KEY);
CREATE TABLE forum_letter (
    id INTEGER PRIMARY KEY, is_sent INTEGER NOT NULL, person TEXT NOT NULL, subject TEXT NOT NULL,
    body TEXT NOT NULL, sent_at TEXT NOT NULL, is_read INTEGER NOT NULL
);
"""
# `score` and `votes` exclude the signed-in user's vote; `vote` is that vote: -1, 0 or 1. A ballot
# is the signed-in user's vote in a poll. `person` is the sender or receiver of a message.

_SHOWN = """
SELECT t.*, t.score + t.vote AS points,
    (SELECT count(*) FROM forum_comment c WHERE c.thread = t.id) AS num_comments
FROM forum_thread t
"""

_NEWEST = "posted_at DESC, id DESC"
ORDERS = {
    # The weight of points halves after one day; julianday counts in days.
    "hot": ("Hot", f"points / (1 + julianday(:now) - julianday(posted_at)) DESC, {_NEWEST}"),
    "new": ("New", _NEWEST),
    "top": ("Top", f"points DESC, {_NEWEST}"),
}
"""Sort orders of threads: the label on the page and the SQL; `:now` is the world's time."""

COMMENT_ORDERS = {
    "best": ("Best first", "points DESC, id"),
    "newest": ("Newest first", _NEWEST),
    "oldest": ("Oldest first", "posted_at, id"),
}
"""Sort orders of comments."""

_KEPT = {
    "subscribed": "board IN (SELECT board FROM forum_subscription)",
    "saved": "t.id IN (SELECT thread FROM forum_saved)",
}


def fill(region: Region, content: ForumContent, connection: sqlite3.Connection) -> None:
    """Insert members, subscriptions, threads, comments, polls and messages."""

    def moment(minutes_ago: int) -> str:
        return (region.now - timedelta(minutes=minutes_ago)).isoformat()

    connection.executemany(
        "INSERT INTO forum_member VALUES (?, ?, ?, ?)",
        [(member.handle, member.bio, member.joined, member.flair) for member in content.members],
    )
    connection.executemany(
        "INSERT INTO forum_subscription VALUES (?)", [(board,) for board in content.subscribed]
    )
    connection.executemany(
        "INSERT INTO forum_thread VALUES (?, ?, ?, ?, ?, ?, 0, ?, ?, ?, ?)",
        [
            (t.id, t.board, t.author, t.title, t.body, t.score, moment(t.minutes_ago),
             t.poster is not None, t.extras.flair, t.extras.spoiler)
            for t in content.threads
        ],
    )  # fmt: skip
    connection.executemany(
        "INSERT INTO forum_comment VALUES (?, ?, ?, ?, ?, ?, 0, ?, 0)",
        [
            (c.id, c.thread, c.parent, c.author, c.body, c.score, moment(c.minutes_ago))
            for t in content.threads
            for c in t.comments
        ],
    )
    polls = [(t.id, t.extras.poll) for t in content.threads if t.extras.poll is not None]
    connection.executemany(
        "INSERT INTO forum_poll VALUES (?, ?)", [(id, poll.question) for id, poll in polls]
    )
    connection.executemany(
        "INSERT INTO forum_answer (thread, words, votes) VALUES (?, ?, ?)",
        [
            (id, words, votes)
            for id, poll in polls
            for words, votes in zip(poll.answers, poll.votes, strict=True)
        ],
    )
    connection.executemany("INSERT INTO forum_saved VALUES (?)", [(id,) for id in content.saved])
    connection.executemany(
        "INSERT INTO forum_letter (is_sent, person, subject, body, sent_at, is_read)"
        " VALUES (0, ?, ?, ?, ?, ?)",
        [(x.sender, x.subject, x.body, moment(60 * x.hours_ago), x.is_read)
         for x in content.letters],
    )  # fmt: skip


def threads(
    connection: sqlite3.Connection,
    *,
    now: str,
    order: str = "hot",
    board: str = "",
    author: str = "",
    text: str = "",
    flair: str = "",
    kept: str = "",
) -> list[sqlite3.Row]:
    """Return the threads that meet all conditions.

    Args:
        text: all its words are in the title.
        kept: "subscribed" for threads of the user's boards, "saved" for saved threads.
    """
    equal = {"board": board, "author": author, "flair": flair}
    wheres, values = ["1"], dict[str, object]({"now": now, **equal})
    wheres += [f"{column} = :{column}" for column, value in equal.items() if value]
    if kept:
        wheres.append(_KEPT[kept])
    for index, word in enumerate(text.lower().split()):
        wheres.append(f"instr(lower(title), :word{index})")
        values[f"word{index}"] = word
    by = ORDERS.get(order, ORDERS["hot"])[1]
    return connection.execute(
        f"{_SHOWN} WHERE {' AND '.join(wheres)} ORDER BY {by}", values
    ).fetchall()


def thread(connection: sqlite3.Connection, id: int) -> sqlite3.Row | None:
    """Return the row of the thread with this id, or None."""
    row: sqlite3.Row | None = connection.execute(f"{_SHOWN} WHERE t.id = ?", (id,)).fetchone()
    return row


def comment(connection: sqlite3.Connection, id: int) -> sqlite3.Row | None:
    """Return the row of the comment with this id, or None."""
    row: sqlite3.Row | None = connection.execute(
        "SELECT *, score + vote AS points FROM forum_comment WHERE id = ?", (id,)
    ).fetchone()
    return row


def comments(
    connection: sqlite3.Connection, thread: int, order: str = "best"
) -> list[tuple[int, sqlite3.Row]]:
    """Return a thread's comments in one of `COMMENT_ORDERS`, with depth, parents before replies."""
    by = COMMENT_ORDERS.get(order, COMMENT_ORDERS["best"])[1]
    answers: dict[int | None, list[sqlite3.Row]] = {}
    for row in connection.execute(
        f"SELECT *, score + vote AS points FROM forum_comment WHERE thread = ? ORDER BY {by}",
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
