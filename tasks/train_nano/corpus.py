"""Text for the tokenizer: what the sites of training worlds say, and drills.

PYTHONPATH=tasks python -m nano.corpus          # trains the tokenizer, writes it to the work folder
"""

import html
import http.client
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from agentkv_env.serialize import serialize
from agentkv_env.sites.names import FIRST_TRAINING_SEED
from agentkv_env.sites.server import Server
from agentkv_env.sites.world import World
from train_nano.drills import Drills
from train_nano.errands import errand
from train_nano.tokenizer import save, train

WORK = Path(__file__).parent / "work"
SEEDS = tuple(FIRST_TRAINING_SEED + offset for offset in range(500_000, 500_024))
NUM_DRILLS = 400


def main() -> None:
    texts = [*site_texts(SEEDS), *drill_texts(NUM_DRILLS)]
    save(train(texts), WORK)


def drill_texts(count: int) -> Iterator[str]:
    """Goals, pages and replies of `count` drills."""
    drills = Drills(0)
    for number in range(count):
        episode = drills.walk(12) if number % 2 else errand(drills, 8)
        yield episode.goal
        for turn in episode.turns:
            yield serialize(turn.page).text
            yield turn.reply


def site_texts(seeds: Sequence[int], *, most_per_site: int = 120) -> Iterator[str]:
    """One text a world: the lines of its pages, each once, found by following links.

    Each once, because a name that stands on a hundred pages of one world would become a token of
    its own, and no other world has it.
    """
    for seed in seeds:
        lines: dict[str, None] = {}
        with Server(World(seed)).start() as server:
            for origin in server.origins.values():
                for page in _site(origin.removeprefix("http://"), most_per_site):
                    lines |= dict.fromkeys(page.split("\n"))
        yield "\n".join(lines)


def _site(host: str, most: int) -> Iterator[str]:
    found, waiting = {"/"}, ["/"]
    while waiting and most:
        path = waiting.pop(0)
        connection = http.client.HTTPConnection("127.0.0.1", int(host.rpartition(":")[2]))
        connection.request("GET", path, headers={"Host": host})
        answer = connection.getresponse()
        document = answer.read()
        connection.close()
        if "html" not in (answer.getheader("content-type") or ""):
            continue
        most -= 1
        page = document.decode()
        yield f"url http://{host.partition(':')[0]}{path}\n{_visible(page)}"
        for link in re.findall(r'href="(/[^"#]*)', page):
            link = html.unescape(link)
            if link not in found:
                found.add(link)
                waiting.append(link)


def _visible(page: str) -> str:
    page = re.sub(r"(?s)<(script|style)\b.*?</\1>", "", page)
    lines = html.unescape(re.sub(r"<[^>]+>", "\n", page)).split("\n")
    return "\n".join(" ".join(line.split()) for line in lines if line.strip())


if __name__ == "__main__":
    main()
