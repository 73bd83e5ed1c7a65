"""Record random walks through training worlds, with goals written from the steps afterwards.

python -m train_nano.random_walk --first 1100000 --worlds 10
"""

import argparse
import random
import re
import time
from pathlib import Path

from agentkv.dialog.reply import find_quotation, write_reply
from agentkv_env.actions import Action
from agentkv_env.browser import Browser
from agentkv_env.errors import ActionFailed
from agentkv_env.ocr import Ocr, default_cache
from agentkv_env.page import Node, Page
from agentkv_env.session import Session
from agentkv_env.sites.server import Server
from agentkv_env.sites.world import World
from train_nano.drills import ASKING, CHOOSING, OPENING, PRICING, SEARCHING, TYPING, goal_sentence
from train_nano.episode import RecordedEpisode, RecordedTurn, save
from train_nano.record import RECORDINGS

_PRICE = re.compile(r"\$[\d,]+(\.\d\d)?")


def random_walk(
    session: Session, rng: random.Random, origins: list[str], name: str
) -> RecordedEpisode:
    """Take one to five random steps from a random start page and write a goal that asks for them.

    Raises:
        ActionFailed: a step failed.
    """
    session.open(rng.choice(origins) + "/")
    parts: list[str] = []
    turns: list[RecordedTurn] = []
    for _ in range(rng.choice((1, 2, 2, 3, 3, 4, 5))):
        page = session.observe()
        request, action = _draw_step(page, rng)
        parts.append(request)
        turns.append(RecordedTurn(page, write_reply(action, page)))
        session.act(action)
    page = session.observe()
    question, answer = _draw_question(page, rng)
    if question:
        parts.append(question)
    goal = goal_sentence(rng, parts)
    stop = Action(kind="stop", answer=answer)
    quote = find_quotation(stop, goal, [*(turn.page for turn in turns), page])
    turns.append(RecordedTurn(page, write_reply(stop, page, quote=quote)))
    return RecordedEpisode(goal, tuple(turns), name)


def _draw_step(page: Page, rng: random.Random) -> tuple[str, Action]:
    names = [(node.role, node.name) for node in page.nodes]
    unique = [
        node
        for node in page.nodes
        if node.id is not None and node.name and names.count((node.role, node.name)) == 1
    ]
    links = [node for node in unique if node.role == "link"]
    fields = [node for node in unique if node.role == "textbox"]
    selects = [node for node in unique if node.role == "combobox" and len(node.options) > 1]
    roll = rng.random()
    if fields and roll < 0.25:
        return _type_step(rng.choice(fields), links, rng)
    if selects and roll < 0.45:
        node = rng.choice(selects)
        wanted = rng.choice([option for option in node.options if option != node.value])
        action = Action(kind="type", element_id=node.id, text=wanted, enter=False)
        return rng.choice(CHOOSING).format(wanted, node.name), action
    # Long names belong to the world; short ones are mostly links that every page has.
    long_links = [node for node in links if len(node.name) > 12]
    node = rng.choice(long_links if long_links and rng.random() < 0.6 else links)
    return rng.choice(OPENING).format(node.name), Action(kind="click", element_id=node.id)


def _type_step(field: Node, links: list[Node], rng: random.Random) -> tuple[str, Action]:
    words = rng.choice(links).name.split()
    start = rng.randrange(len(words))
    text = " ".join(words[start : start + rng.randint(1, 4)])
    if field.name.startswith("Search"):
        return rng.choice(SEARCHING).format(text), Action(
            kind="type", element_id=field.id, text=text, enter=True
        )
    action = Action(kind="type", element_id=field.id, text=text, enter=False)
    return rng.choice(TYPING).format(text, field.name), action


def _draw_question(page: Page, rng: random.Random) -> tuple[str, str]:
    """Draw a question about the page and its answer, or two empty texts."""
    found: list[tuple[str, str]] = []
    for node, follower in zip(page.nodes, page.nodes[1:], strict=False):
        price = _PRICE.match(follower.name) if follower.role == "text" else None
        if price and node.role in ("link", "heading"):
            found.append((rng.choice(PRICING).format(node.name), price[0]))
        if " | " in node.name:
            key, _, answer = node.name.partition(" | ")
            found.append((rng.choice(ASKING).format(rng.choice((key, key.lower()))), answer))
    return rng.choice(found) if found and rng.random() < 0.7 else ("", "")


def main() -> None:
    parser = argparse.ArgumentParser(description="Record random walks in training worlds.")
    parser.add_argument("--first", type=int, default=1_100_000)
    parser.add_argument("--worlds", type=int, default=10)
    parser.add_argument("--walks", type=int, default=60, help="random walks in each world")
    parser.add_argument("--out", type=Path, default=RECORDINGS)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    ocr = Ocr.find(default_cache())
    with Browser.launch() as browser:
        for seed in range(options.first, options.first + options.worlds):
            path = options.out / f"stroll-{seed}.jsonl.xz"
            if path.exists():
                continue
            started = time.perf_counter()
            rng = random.Random(f"stroll/{seed}")
            episodes = []
            with Server(World(seed)) as server:
                for _ in range(options.walks):
                    server.reset()
                    with browser.session(
                        hosts=server.hosts, addresses=dict(server.addresses), ocr=ocr
                    ) as session:
                        try:
                            origins = list(server.addresses)
                            episodes.append(random_walk(session, rng, origins, f"{seed}/stroll"))
                        except ActionFailed as error:
                            print(f"  left out: {error}", flush=True)
            save(episodes, path)
            seconds = time.perf_counter() - started
            print(f"{seed}: {len(episodes)} episodes, {seconds:.0f} s", flush=True)


if __name__ == "__main__":
    main()
