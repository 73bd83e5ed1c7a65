"""How often nano answers the README's question, also about other towns and in other words.

`python -m tests.docs.first_question FOLDER` writes a row for each episode.
"""

import json
import sys
from pathlib import Path

import agentkv
from agentkv_env.sites.world import World

WORLDS = (75, 11, 12, 13)
NUM_TOWNS = 8
QUESTIONS = (
    "What is the motto on the coat of arms of {}?",
    "Read the motto on the coat of arms of {}.",
)


def main() -> None:
    """Ask, and print the share of right answers for each question."""
    agent, rows = agentkv.Agent("nano"), []
    for seed in WORLDS:
        towns = World(seed).wiki.towns[:NUM_TOWNS]
        with agentkv.sites(seed) as sites, agentkv.browser(sites) as page:
            for town in towns:
                for question in QUESTIONS:
                    page.goto("http://wiki.localhost/")
                    episode = agent.run(page, question.format(town.name), max_steps=12)
                    rows.append(
                        {
                            "world": seed,
                            "question": question,
                            "town": town.name,
                            "status": episode.status,
                            "answer": episode.answer,
                            "expected": town.motto,
                            "is_right": episode.answer.casefold() == town.motto.casefold(),
                        }
                    )
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    (folder / "answers.jsonl").write_text(lines, encoding="utf-8")
    for question in QUESTIONS:
        right = [row["is_right"] for row in rows if row["question"] == question]
        print(f"{question}: {sum(right)} of {len(right)}")


if __name__ == "__main__":
    main()
