"""Train the tokenizer on pages of training worlds and on synthetic episodes.

python -m train_nano.corpus          # writes the tokenizer to the work folder
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
from train_nano.lookups import lookup_episode
from train_nano.tokenizer import save, train

WORK = Path(__file__).parent / "work"
SEEDS = tuple(FIRST_TRAINING_SEED + offset for offset in range(500_000, 500_024))
NUM_DRILLS = 400


def main() -> None:
    texts = [*site_texts(SEEDS), *drill_texts(NUM_DRILLS)]
    save(train(texts), WORK)


def drill_texts(count: int) -> Iterator[str]:
    """Yield the goals, pages and replies of `count` synthetic episodes."""
    drills = Drills(0)
    for number in range(count):
        episode = drills.walk(12) if number % 2 else lookup_episode(drills, 8)
        yield episode.goal
        for turn in episode.turns:
            yield serialize(turn.page).text
            yield turn.reply


def site_texts(seeds: Sequence[int], *, most_per_site: int = 120) -> Iterator[str]:
    """Yield one text per world: the distinct lines of the pages that its links reach.

    Duplicate lines are dropped because a name on a hundred pages of one world would become a token
    of its own, which no other world needs.
    """
    for seed in seeds:
        lines: dict[str, None] = {}
        with Server(World(seed)).start() as server:
            for origin in server.origins.values():
                for page in _crawl(origin.removeprefix("http://"), most_per_site):
                    lines |= dict.fromkeys(page.split("\n"))
        yield "\n".join(lines)


def _crawl(host: str, max_pages: int) -> Iterator[str]:
    found, queue = {"/"}, ["/"]
    while queue and max_pages:
        path = queue.pop(0)
        connection = http.client.HTTPConnection("127.0.0.1", int(host.rpartition(":")[2]))
        connection.request("GET", path, headers={"Host": host})
        response = connection.getresponse()
        document = response.read()
        connection.close()
        if "html" not in (response.getheader("content-type") or ""):
            continue
        max_pages -= 1
        page = document.decode()
        yield f"url http://{host.partition(':')[0]}{path}\n{_visible_text(page)}"
        for link in re.findall(r'href="(/[^"#]*)', page):
            link = html.unescape(link)
            if link not in found:
                found.add(link)
                queue.append(link)


def _visible_text(page: str) -> str:
    page = re.sub(r"(?s)<(script|style)\b.*?</\1>", "", page)
    lines = html.unescape(re.sub(r"<[^>]+>", "\n", page)).split("\n")
    return "\n".join(" ".join(line.split()) for line in lines if line.strip())


if __name__ == "__main__":
    main()
