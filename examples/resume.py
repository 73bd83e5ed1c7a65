"""Pursue one goal after another, and go on after a crash where the last goal ended.

    python examples/resume.py http://shop.example/ "Find the Heron" "What does it cost?"

The session is saved after each goal, with the number of goals done and the address of the page.
After a crash the same command loads it: the model still knows what it read, and nothing is read
again. A goal that was broken off begins anew. Cookies are not kept; `signed_in.py` keeps them.
"""

import json
import sys
from pathlib import Path

import agentkv
from agentkv.files import write_atomic

FOLDER = Path("resumable")
PROGRESS = FOLDER / "progress.json"


def main(url: str, *goals: str) -> None:
    FOLDER.mkdir(mode=0o700, exist_ok=True)
    progress = {"done": 0, "url": url}
    if PROGRESS.exists():
        progress = json.loads(PROGRESS.read_text(encoding="utf-8"))
    agent = agentkv.Agent("nano", policy="lookback-int8", budget="25%")
    with agentkv.browser() as page:
        page.goto(progress["url"])
        if progress["done"]:
            session = agentkv.Session.load(FOLDER / "session", agent, page)
        else:
            session = agent.open(page)
        with session:
            for done, goal in enumerate(goals[progress["done"] :], progress["done"] + 1):
                episode = session.do(goal, max_steps=2)
                session.save(FOLDER / "session")
                # A crash before this line repeats the goal, with a model that knows it.
                write_atomic(PROGRESS, json.dumps({"done": done, "url": page.url}).encode())
                print(f"{done} {episode.status}, read {episode.steps[-1].seen_tokens} tokens")
                sys.stdout.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
