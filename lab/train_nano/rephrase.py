"""Give recorded episodes the goals that their templates have today, without a browser.

    python -m train_nano.rephrase

Goals are words around the values of a task, so new wordings fit old recordings. An episode whose
template now draws other values keeps its goals.
"""

import argparse
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from agentkv_env.sites.world import World
from agentkv_tasks.suites import SUITES
from agentkv_tasks.task import Task
from train_nano.episode import RecordedEpisode, load, save
from train_nano.record import RECORDINGS, episode_name


def rephrase(episode: RecordedEpisode, tasks: Mapping[str, Sequence[Task]]) -> RecordedEpisode:
    """Return `episode` with the goals of its task, or unchanged if no single task has its values.

    Args:
        tasks: tasks by name, as `tasks_by_name` returns them.
    """
    fitting = [
        task
        for task in tasks.get(episode.name, ())
        if all(str(value) in episode.goal for value in task.instantiation_dict.values())
    ]
    if len(fitting) != 1:
        return episode
    return replace(episode, goal=fitting[0].intent, paraphrases=fitting[0].paraphrases)


def tasks_by_name(episodes: Iterable[RecordedEpisode]) -> dict[str, list[Task]]:
    """Return the tasks of all worlds and suites that `episodes` were recorded in."""
    found: dict[str, list[Task]] = {}
    recorded = {tuple(episode.name.split("/")[:2]) for episode in episodes}
    for seed, suite in sorted(recorded):
        for task in SUITES[suite].tasks(World(int(seed))):
            found.setdefault(episode_name(int(seed), suite, task), []).append(task)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description="Give recordings the goals of today's templates.")
    parser.add_argument("recordings", nargs="*", type=Path, help="files (default: all)")
    options = parser.parse_args()
    for path in options.recordings or sorted(RECORDINGS.glob("vwa*.jsonl.xz")):
        episodes = list(load(path))
        tasks = tasks_by_name(episodes)
        rephrased = [rephrase(episode, tasks) for episode in episodes]
        partial = path.with_suffix(".partial")
        save(rephrased, partial)
        partial.replace(path)
        kept = sum(not episode.paraphrases for episode in rephrased)
        print(f"{path.name}: {len(episodes)} episodes, {kept} with a single goal", flush=True)


if __name__ == "__main__":
    main()
