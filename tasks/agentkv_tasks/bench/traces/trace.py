"""Traces of agents: requests of several conversations, as hosts send them.

Made traces have the shape that public figures of coding agents give (our choice where they say
nothing): a median of 43 turns, a subagent with the same instructions in 44 of 100 sessions, outputs
of tools that are pruned once there are many, and in some sessions a line of the instructions that
changes.
"""

import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from agentkv.dialog.rendering import Message
from agentkv_tasks.bench.errors import BenchError

Kind = Literal["plain", "removed", "noted", "rolling", "dated", "file"]
"""What a host does with earlier messages: nothing; it removes the oldest turns now and then; it
puts a short note in place of outputs now and then, or after every turn; it changes a line of the
instructions; whatever a file says."""
MADE: tuple[Kind, ...] = ("plain", "removed", "noted", "rolling", "dated")
PRUNING: tuple[Kind, ...] = ("removed", "noted", "rolling")
"""Kinds whose hosts prune."""

TURNS, SUBAGENTS = 43, 0.44
KEPT_OUTPUTS, PRUNED_AT = 6, 14
"""Latest outputs that stay, and outputs at which a host prunes."""
DATED_EVERY = 10
"""Turns after which a line of the instructions changes."""
NOTE = "[output removed]"
_WORDS = (
    "account address basket button cart category change city color count date delivery detail "
    "discount entry field filter first form image item label last link list menu message number "
    "offer open order page pay place price product public question rate result review row sale "
    "search seller send shop show size sort stock store table tax text total user value view"
).split()


@dataclass(frozen=True, slots=True)
class TraceRequest:
    """One request of a conversation."""

    session: str
    kind: Kind
    messages: Sequence[Message]
    """All messages; a reply of the model's is the `reply` of the request before it."""
    reply: str
    """The recorded reply. Where it occurs as a later message, the server's own stands for it."""


def made(
    sessions: range, *, seed: int, num_turns: int = TURNS, num_words: int = 30
) -> Iterator[TraceRequest]:
    """Yield the requests of made sessions, those of four sessions in turn.

    Args:
        sessions: numbers of the sessions; each number and seed has a session of its own.
        num_turns: median number of turns of a session.
        num_words: median number of words in an output.
    """
    waiting = [_session(number, seed, num_turns, num_words) for number in sessions]
    running: list[Iterator[TraceRequest]] = []
    while waiting or running:
        while waiting and len(running) < 4:
            running.append(waiting.pop(0))
        for session in list(running):
            if (request := next(session, None)) is None:
                running.remove(session)
            else:
                yield request


def _session(number: int, seed: int, num_turns: int, num_words: int) -> Iterator[TraceRequest]:
    draw, kind = random.Random(f"{seed} {number}"), MADE[number % len(MADE)]

    def text(median: int) -> str:
        count = max(3, round(median * draw.lognormvariate(0, 0.5)))
        return " ".join(draw.choice(_WORDS) for _ in range(count))

    rules, turns = text(5 * num_words), max(2, round(num_turns * draw.lognormvariate(0, 0.4)))
    subagent_at = draw.randrange(1, turns) if draw.random() < SUBAGENTS else None

    def instructions(turn: int) -> Message:
        dated = f"It is the {turn // DATED_EVERY + 1}. of the month. " if kind == "dated" else ""
        return {"role": "system", "content": f"You work on web pages. {dated}{rules}"}

    def conversation(name: str, turns: int) -> Iterator[TraceRequest]:
        said: list[Message] = []
        for turn in range(turns):
            said.append({"role": "user", "content": f"Output {turn} of {name}: {text(num_words)}"})
            if kind in PRUNING:
                said = _pruned(said, kind)
            reply = f"<reply {turn} of {name}>"
            yield TraceRequest(name, kind, [instructions(turn), *said], reply)
            said.append({"role": "assistant", "content": reply})
            if name == own and turn == subagent_at:
                yield from conversation(f"{name} subagent", max(2, turns // 6))

    own = f"{kind} {number}"
    yield from conversation(own, turns)


def _pruned(said: list[Message], kind: Kind) -> list[Message]:
    """Return messages without most earlier outputs, if there are many."""
    outputs = [i for i, each in enumerate(said) if each["role"] == "user"]
    whole = [i for i in outputs if said[i]["content"] != NOTE]
    if len(whole) < (KEPT_OUTPUTS + 1 if kind == "rolling" else PRUNED_AT):
        return said
    if kind == "removed":
        return said[whole[-KEPT_OUTPUTS] :]
    noted = set(whole[:-KEPT_OUTPUTS])
    return [{**each, "content": NOTE} if i in noted else each for i, each in enumerate(said)]


def read_trace(path: Path) -> list[TraceRequest]:
    """Return the requests of a JSON Lines file: `session`, `messages` and `reply` in each line.

    Raises:
        BenchError: the file cannot be read, or a line is something else; the message names it.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise BenchError(f"the trace {path} cannot be read: {error}") from None
    found = []
    for number, line in enumerate(lines, 1):
        try:
            given = json.loads(line)
            messages = [
                {"role": str(each["role"]), "content": str(each["content"])}
                for each in given["messages"]
            ]
            session, reply = str(given["session"]), str(given["reply"])
            found.append(TraceRequest(session, "file", messages, reply))
        except (ValueError, TypeError, KeyError) as error:
            what = f"{type(error).__name__}: {error}"
            raise BenchError(
                f"{path}: line {number} is no request of a trace ({what}); "
                'a line is {"session": NAME, "messages": [{"role": ..., "content": ...}], '
                '"reply": TEXT}'
            ) from None
    if not found:
        raise BenchError(f"the trace {path} has no requests")
    return found
