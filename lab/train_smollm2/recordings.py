"""Recordings for smollm2: those of nano, each with one goal and other contents.

nano's recordings cover more worlds than a training on two cores reads. Wordings, names, values and
the number of elements vary from episode to episode.
"""

import random
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from urllib.parse import urlsplit

from agentkv.dialog.reply import rewritten
from agentkv.recordings import RecordedStep, Recording
from agentkv_tasks.miniwob.pages import SCORED
from train_nano.augment import keep_needed, renumber_elements, replace_seed, vary
from train_nano.data import draw_goal, is_grounded
from train_nano.episode import RecordedEpisode, load, refuse_unseen_goals
from train_nano.paraphrase import paraphrase

TAKEN: Mapping[str, float] = {"vwa75": 0.4, "miniwob": 0.6, "vwa-long": 0.05}
"""Share of each suite's recordings that is learned on two cores. An episode of vwa-long becomes 15
rows, one of MiniWoB++ a single row."""
TAKEN_SHORT: Mapping[str, float] = {"vwa75": 0.4, "miniwob": 0.6}
"""The same of a first training, whose pages are short."""
TAKEN_MINIWOB: Mapping[str, float] = {"miniwob": 1.0}
"""The same of a training on MiniWoB++ alone."""
MOST_STEPS = 8
"""Steps of the longest episode of that training. Four of 46 pages have none so short; 746 of 885
episodes are, and take half of the tokens."""
_THINNED = 0.5
"""Share of the episodes whose pages lose elements. They have more replies per token."""
_LEAST_DROPPED = 0.8
"""Smallest share of the elements that no reply needs which a short page loses."""
_RENUMBERED = 0.2
"""Share of the episodes of MiniWoB++ whose elements get other ids."""
_PARAPHRASED = 0.5
"""Share of the episodes whose goal is in other words than its template's."""


def held_out_pages() -> frozenset[str]:
    """Return the pages of MiniWoB++ that are never learned: a third of them, those with the lowest
    checksums. A page and its variant without delays are one."""
    pages = sorted({_page(name) for name in SCORED}, key=lambda page: zlib.crc32(page.encode()))
    return frozenset(pages[: len(pages) // 3])


def recordings(
    folder: Path, *, seed: int, taken: Mapping[str, float] = TAKEN, is_short: bool = False
) -> Iterator[Recording]:
    """Yield variants of nano's recordings of tasks that may be learned.

    Args:
        folder: of nano's recordings.
        seed: of the variants, and of which recordings have one.
        taken: share of the recordings by suite.
        is_short: pages of our own sites lose most of what no reply needs.
    """
    never = held_out_pages()
    for path in sorted(folder.glob("*.jsonl.xz")):
        for number, episode in enumerate(load(path)):
            rng = random.Random(f"{seed}/{path.name}/{number}")
            world, suite, _ = episode.name.split("/", 2)
            is_page = suite == "miniwob"
            if rng.random() >= taken.get(suite, 0.0):
                continue
            if is_page and _page(urlsplit(episode.turns[0].page.url).path) in never:
                continue
            drawn = draw_goal(episode, rng)
            varied = _page_variant(drawn, rng) if is_page else _variant(drawn, rng, is_short)
            if is_grounded(varied):
                refuse_unseen_goals(varied)
                yield Recording(
                    key=f"{path.name.removesuffix('.jsonl.xz')}/{number} variant {seed}",
                    goal=varied.goal,
                    steps=_steps(varied),
                    suite=suite,
                    world_seed=int(world),
                    thoughts="free",
                )


def _page(path: str) -> str:
    return path.rpartition("/")[2].removesuffix("-nodelay")


def _page_variant(episode: RecordedEpisode, rng: random.Random) -> RecordedEpisode:
    """Return a variant of an episode of MiniWoB++. Its words stay: the goal quotes what is to be
    written, and "Book a flight" does not mean a book."""
    varied = replace_seed(episode, rng)
    return renumber_elements(varied, rng) if rng.random() < _RENUMBERED else varied


def _variant(episode: RecordedEpisode, rng: random.Random, is_short: bool) -> RecordedEpisode:
    varied = vary(episode, rng, thinned=0.0 if is_short else _THINNED)
    if is_short:
        varied = keep_needed(varied, rng, share=rng.uniform(_LEAST_DROPPED, 1.0))
    return paraphrase(varied, rng) if rng.random() < _PARAPHRASED else varied


def _steps(episode: RecordedEpisode) -> tuple[RecordedStep, ...]:
    pages = [turn.page for turn in episode.turns]
    return tuple(
        RecordedStep(
            turn.page,
            rewritten(turn.reply, "free", goal=episode.goal, pages=pages[: number + 1]),
            turn.note,
            turn.counts,
        )
        for number, turn in enumerate(episode.turns)
    )
