"""How many tokens per second a server writes for several sessions at once, beside one session.

    python -m agentkv_lab.at_once --model smollm2 --policy full --sessions 1,2,4

starts `agentkv serve` and, in every round, sends as many chat requests at once as each number of
sessions says. A row is one number in one round: the tokens that came, the seconds until the last
reply ended, and the seconds that requests waited for their first token on average. Rounds take the
numbers in turns, so that a change of the machine's speed meets all of them.
"""

import argparse
import contextlib
import json
import os
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

from agentkv_tasks.bench.serve.client import ask
from agentkv_tasks.provenance import commit, processor, versions

_ADDRESS = re.compile(r"http://([\d.]+):(\d+)/v1")

PROMPT = "Write a long story about a lighthouse keeper who finds {}. Tell it in many words."

FINDINGS = (
    "a map",
    "a bell",
    "a lost dog",
    "an old coin",
    "a letter",
    "a boat",
    "a kite",
    "a drum",
)


@dataclass(frozen=True, slots=True)
class Round:
    """One number of sessions in one round."""

    sessions: int
    round: int
    tokens: int
    """Tokens of all replies."""
    seconds: float
    """From the first request to the end of the last reply."""
    first_token_s: float
    """Mean over the requests."""

    @property
    def speed(self) -> float:
        """Tokens per second, prompts included in the time."""
        return self.tokens / self.seconds


@contextlib.contextmanager
def serving(model: str, policy: str, threads: int) -> Iterator[tuple[str, int]]:
    """Run `agentkv serve` and yield its address."""
    command = [sys.executable, "-m", "agentkv", "serve", "--model", model, "--policies", policy]
    options, own = ["--port", "0", "--no-page"], {"OMP_NUM_THREADS": str(threads)}
    with subprocess.Popen(
        [*command, *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, **own},
    ) as process:
        assert process.stdout is not None
        said = ""
        try:
            for line in process.stdout:
                said += line
                if found := _ADDRESS.search(line):
                    yield found[1], int(found[2])
                    return
            raise RuntimeError(f"the server did not start:\n{said}")
        finally:
            process.terminate()


def measured(address: tuple[str, int], sessions: int, number: int, tokens: int) -> Round:
    """Ask in several sessions at once, each anew."""
    requests = [
        {
            "messages": [{"role": "user", "content": PROMPT.format(FINDINGS[i % len(FINDINGS)])}],
            "max_tokens": tokens,
            "agentkv": {"session": f"{number}-{sessions}-{i}", "release": True},
        }
        for i in range(sessions)
    ]
    with ThreadPoolExecutor(sessions) as pool:
        began = time.perf_counter()
        replies = list(pool.map(lambda request: ask(address, request), requests))
        seconds = time.perf_counter() - began
    return Round(
        sessions,
        number,
        sum(reply.usage["completion_tokens"] for reply in replies),
        seconds,
        statistics.fmean(reply.first_token_s for reply in replies),
    )


def table(rounds: Sequence[Round]) -> Iterator[str]:
    """Yield a line for each number of sessions, with its speed beside that of the first one in the
    same round."""
    numbers = list(dict.fromkeys(each.sessions for each in rounds))
    base = {each.round: each.speed for each in rounds if each.sessions == numbers[0]}
    for sessions in numbers:
        own = [each for each in rounds if each.sessions == sessions]
        ratios = sorted(each.speed / base[each.round] for each in own)
        yield (
            f"{sessions:2} at once {statistics.median(each.speed for each in own):7.1f} tokens/s, "
            f"{statistics.median(ratios):.2f} times ({ratios[0]:.2f} to {ratios[-1]:.2f}); first "
            f"token {statistics.median(each.first_token_s for each in own):.2f} s"
        )


def main() -> None:
    """Measure, print a table and write rows."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--policy", default="full")
    parser.add_argument("--sessions", default="1,2,4")
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    numbers = [int(each) for each in options.sessions.split(",")]
    made = {"commit": commit(), "processor": processor(), "versions": versions()}
    given = {"model": options.model, "policy": options.policy, "threads": options.threads}
    rounds: list[Round] = []
    with serving(options.model, options.policy, options.threads) as address:
        for sessions in numbers:
            measured(address, sessions, -1, 8)  # compiled code and work space are there
        for number in range(options.rounds):
            for i in range(len(numbers)):
                sessions = numbers[(number + i) % len(numbers)]
                rounds.append(measured(address, sessions, number, options.tokens))
    rounds.sort(key=lambda each: (each.sessions, each.round))
    lines = [json.dumps({**given, **made}), *(json.dumps(asdict(each)) for each in rounds)]
    print(*table(rounds), sep="\n")
    if options.out is not None:
        options.out.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
