"""The example with the client of OpenAI runs as a reader would run it."""

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from agentkv.models.local import LocalModel
from tests.agentkv.serve.conftest import TOOL_TEMPLATE, serving

EXAMPLE = Path(__file__).parents[3] / "examples/tool_loop.py"


def test_the_tool_loop_calls_its_function_and_reads_only_what_is_new(
    chat_model: Callable[[str], LocalModel],
) -> None:
    with serving(chat_model(TOOL_TEMPLATE), budget=512) as served:
        done = subprocess.run(
            [sys.executable, EXAMPLE, f"{served.url}/v1", "tiny", "How many legs have 7 bees?"],
            capture_output=True,
            text=True,
            timeout=120,
            env={**os.environ, "NO_PROXY": "127.0.0.1"},
        )
    assert done.returncode == 0, done.stderr
    called = re.search(r'multiply\({"a": (\d+), "b": (\d+)}\) = (\d+)', done.stdout)
    assert called is not None and int(called[1]) * int(called[2]) == int(called[3])
    counts = re.search(r"(\d+) tokens before replies, (\d+) of them read", done.stdout)
    assert counts is not None and int(counts[2]) < 0.7 * int(counts[1])
