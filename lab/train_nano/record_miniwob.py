"""Record the scripts of MiniWoB++ pages, played in a browser with training seeds.

    python -m train_nano.record_miniwob --first 1000000 --worlds 20

Needs the package `miniwob`. Each seed has one file with one episode per page, and existing files
are kept. Episodes whose typed text stands neither in the goal nor on a page are left out: they
would teach guessing.
"""

import argparse
import random
from pathlib import Path

from playwright.sync_api import Error as PlaywrightError

from agentkv.agent import Agent
from agentkv.models.scripted import SolutionStuck
from agentkv_env.browser import Browser
from agentkv_env.errors import BrowserGone
from agentkv_env.sites.miniwob import SITE
from agentkv_env.sites.names import FIRST_TRAINING_SEED
from agentkv_env.sites.server import Server
from agentkv_env.sites.world import World
from agentkv_tasks import miniwob
from agentkv_tasks.addresses import Addresses
from agentkv_tasks.evaluate import Final, evaluate
from agentkv_tasks.goal import goal_of
from agentkv_tasks.miniwob.script import Script
from agentkv_tasks.miniwob.scripts import SCRIPTS
from agentkv_tasks.task import Task
from train_nano.data import is_grounded
from train_nano.episode import RecordedEpisode, save
from train_nano.record import RECORDINGS, Browsers, Recorder


def record(seed: int, browsers: Browsers) -> tuple[list[RecordedEpisode], list[str]]:
    """Record all pages with the training seed `seed`; return the episodes and what was left out.

    Raises:
        ValueError: `seed` belongs to evaluation.
        MiniwobMissing: the package `miniwob` is not installed.
    """
    if seed < FIRST_TRAINING_SEED:
        raise ValueError(f"seed {seed} belongs to evaluation; use {FIRST_TRAINING_SEED} or higher")
    episodes, left_out = [], []
    with Server(World(seed, (SITE,))) as server:
        addresses = Addresses(server.placeholders, server.addresses)
        for page, task in zip(
            SCRIPTS, miniwob.tasks(seed, pages=SCRIPTS, num_instances=1), strict=True
        ):
            name = f"{seed}/miniwob/{page}"
            try:
                episode, score = _play(task, name, addresses, browsers.running())
            except (SolutionStuck, BrowserGone, PlaywrightError) as error:
                left_out.append(f"{name}: {str(error).splitlines()[0]}")
                continue
            if score < 1.0:
                left_out.append(f"{name}: scored {score}")
            elif not is_grounded(episode):
                left_out.append(f"{name}: types what no page shows")
            else:
                episodes.append(episode)
    return episodes, left_out


def _play(
    task: Task, name: str, addresses: Addresses, browser: Browser
) -> tuple[RecordedEpisode, float]:
    play = miniwob.script_for(task)
    assert play is not None and task.viewport_size is not None
    size = task.viewport_size
    recorder = Recorder(Script(play), random.Random(name), has_detour=False)
    with browser.session(
        hosts=addresses.hosts(),
        addresses=dict(addresses.origins),
        viewport=(size.width or 0, size.height or 0),
    ) as session:
        session.open(addresses.fill(task.start_url))
        goal = goal_of(task, session.page)
        done = Agent(recorder).run(session, goal, max_steps=task.max_steps)
        final = Final.of(session.page, done.answer, addresses)
        score = evaluate(task, final, page=session.page, addresses=addresses).value
    return RecordedEpisode(goal, tuple(recorder.turns), name), score


def main() -> None:
    parser = argparse.ArgumentParser(description="Record MiniWoB++ scripts with training seeds.")
    parser.add_argument("--first", type=int, default=FIRST_TRAINING_SEED)
    parser.add_argument("--worlds", type=int, default=20)
    parser.add_argument("--out", type=Path, default=RECORDINGS)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    with Browsers() as browsers:
        for seed in range(options.first, options.first + options.worlds):
            path = options.out / f"miniwob-{seed}.jsonl.xz"
            if path.exists():
                continue
            episodes, left_out = record(seed, browsers)
            partial = path.with_suffix(".partial")
            save(episodes, partial)
            partial.replace(path)
            print(f"{seed}: {len(episodes)} episodes", flush=True)
            for line in left_out:
                print(f"  left out {line}", flush=True)


if __name__ == "__main__":
    main()
