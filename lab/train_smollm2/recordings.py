"""Recordings for smollm2: those of nano on our own sites, and others on pages of MiniWoB++.

nano's recordings cover more worlds than a training on two cores reads. Wordings, names, values and
the number of elements vary from episode to episode. Those of MiniWoB++ are in `MINIWOB`, since
nano's are older than the names that pages give to their fields today.
"""

import lzma
import random
import zlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from urllib.parse import urlsplit

from agentkv.dialog.reply import rewritten
from agentkv.files import json_line
from agentkv.recordings import RecordedStep, Recording, read_recordings
from agentkv_tasks.miniwob.pages import SCORED
from train_nano.augment import keep_needed, renumber_elements, replace_seed, vary
from train_nano.data import draw_goal, is_grounded
from train_nano.episode import RecordedEpisode, RecordedTurn, load, refuse_unseen_goals
from train_nano.paraphrase import paraphrase
from train_nano.record import RECORDINGS

MINIWOB = Path(__file__).parent / "miniwob.jsonl"
"""Recordings of pages of MiniWoB++ that may be learned; `pack` writes them, compressed."""
TAKEN: Mapping[str, float] = {"vwa75": 0.4, "miniwob": 0.4, "vwa-long": 0.05}
"""Share of each suite's recordings that is learned on two cores. An episode of vwa-long becomes 15
rows, one of MiniWoB++ a single row."""
TAKEN_SHORT: Mapping[str, float] = {"vwa75": 0.4, "miniwob": 0.4}
"""The same of a first training, whose pages are short."""
TAKEN_MINIWOB: Mapping[str, float] = {"miniwob": 1.0}
"""The same of a training on MiniWoB++ alone."""
MOST_STEPS = 10
"""Steps of the longest episode of that training (our choice)."""
_WORKED_OUT = ("enter-time", "guess-number", "simple-arithmetic", "text-transform")
"""Pages of MiniWoB++ whose typed text stands nowhere and follows from what is shown."""
_NO_DELAY = "-nodelay"
"""Ending of a page's variant without delays."""
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
    pages = {_without_variant(name) for name in SCORED}
    ordered = sorted(pages, key=lambda page: zlib.crc32(page.encode()))
    return frozenset(ordered[: len(ordered) // 3])


def recordings(
    folder: Path, *, seed: int, taken: Mapping[str, float] = TAKEN, is_short: bool = False
) -> Iterator[Recording]:
    """Yield variants of recordings of tasks that may be learned.

    Args:
        folder: of nano's recordings, of which those of our own sites are taken.
        seed: of the variants, and of which recordings have one.
        taken: share of the recordings by suite.
        is_short: pages of our own sites lose most of what no reply needs.
    """
    for path in sorted(folder.glob("vwa*.jsonl.xz")):
        for number, episode in enumerate(load(path)):
            rng = random.Random(f"{seed}/{path.name}/{number}")
            if rng.random() >= taken.get(episode.name.split("/")[1], 0.0):
                continue
            varied = _variant(draw_goal(episode, rng), rng, is_short)
            key = f"{path.name.removesuffix('.jsonl.xz')}/{number} variant {seed}"
            if is_grounded(varied):
                yield _recording(varied, key)
    if share := taken.get("miniwob"):
        yield from _page_recordings(seed, share)


def write_recordings(path: Path, *, is_whole: bool, is_short: bool, is_miniwob: bool) -> None:
    """Write the recordings of a training unless the file is there.

    Args:
        is_whole: take all recordings.
        is_short: pages of our own sites lose most of what no reply needs.
        is_miniwob: take those of MiniWoB++ alone, and all that are short.
    """
    if path.exists():
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    taken = TAKEN_MINIWOB if is_miniwob else TAKEN_SHORT if is_short else TAKEN
    taken = dict.fromkeys(taken, 1.0) if is_whole else taken
    with partial.open("wb") as file:
        for each in recordings(RECORDINGS, seed=0, taken=taken, is_short=is_short):
            if len(each.steps) <= MOST_STEPS or not is_miniwob:
                file.write(json_line(each.to_json()))
    partial.replace(path)


def pack(paths: Iterable[Path], to: Path = MINIWOB) -> int:
    """Write the recordings of MiniWoB++ pages that may be learned to `to`.xz, and return their
    number.

    Variants of pages without delays are left out: their episodes are those of the pages.

    Args:
        paths: files as `agentkv tasks record FILE --tasks miniwob` writes them.

    Raises:
        ValueError: a file cannot be read, or has an episode of another suite or twice.
    """
    never, lines = held_out_pages(), {}
    for path in paths:
        for each in read_recordings(path):
            if each.suite != "miniwob" or each.key in lines:
                raise ValueError(f"{path}: {each.key} is there twice, or of another suite")
            if _path(each).endswith(_NO_DELAY) or _page(each) in never:
                continue
            lines[each.key] = json_line(each.to_json())
    packed = lzma.compress(b"".join(lines.values()), preset=9 | lzma.PRESET_EXTREME)
    to.with_name(f"{to.name}.xz").write_bytes(packed)
    return len(lines)


def _page_recordings(seed: int, share: float) -> Iterator[Recording]:
    never = held_out_pages()
    for each in read_recordings(MINIWOB):
        if _page(each) in never:
            raise ValueError(f"{MINIWOB}: {_page(each)} is never learned; pack it again")
        rng = random.Random(f"{seed}/{each.key}")
        if rng.random() >= share:
            continue
        turns = tuple(RecordedTurn(s.page, s.reply, s.note, s.counts) for s in each.steps)
        name = f"{each.world_seed}/{each.suite}/{each.task_id}"
        varied = _page_variant(RecordedEpisode(each.goal, turns, name), rng)
        if is_grounded(varied) or _page(each) in _WORKED_OUT:
            yield _recording(varied, f"{each.key} variant {seed}")


def _recording(episode: RecordedEpisode, key: str) -> Recording:
    refuse_unseen_goals(episode)
    world, suite, _ = episode.name.split("/", 2)
    return Recording(
        key=key,
        goal=episode.goal,
        steps=_steps(episode),
        suite=suite,
        world_seed=int(world),
        thoughts="free",
    )


def _page(recording: Recording) -> str:
    return _without_variant(_path(recording).rpartition("/")[2])


def _path(recording: Recording) -> str:
    return urlsplit(recording.steps[0].page.url).path


def _without_variant(page: str) -> str:
    return page.removesuffix(_NO_DELAY)


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
