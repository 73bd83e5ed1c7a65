"""45 task files: each is listed or refused in one line, before anything starts."""

import copy
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.soak.command_line import NO_BROWSER, invoke
from tests.soak.part import Part, Verdict

TOTAL = 45

_SMALL = Path(__file__).parents[1] / "tasks" / "data" / "small.json"
_DEEP = 200_000
_HUGE = "9" * 5000


def cases() -> Iterator[tuple[str, bytes, bool | None]]:
    """Yield name, file content, and whether the file must be refused (None: either is fine)."""
    for name, text in _NOT_JSON.items():
        yield name, text if isinstance(text, bytes) else text.encode(), True
    for name, (value, refused) in _not_tasks().items():
        yield name, json.dumps(value).encode(), refused
    for name, (path, value, refused) in _CHANGES.items():
        yield name, json.dumps(_changed(path, value)).encode("utf-8", "surrogatepass"), refused


def check(name: str, content: bytes, refused: bool | None, folder: Path) -> Verdict:
    """List the tasks of the file, then start a run, which fails at the browser."""
    path = folder / "tasks.json"
    path.write_bytes(content)
    listed = invoke(name, ["tasks", str(path)], folder)
    if listed.outcome != "held":
        return listed
    given = ["--model", "stop", "--out", str(folder / "out"), "--browser-path", NO_BROWSER]
    return invoke(name, ["run", "--tasks", str(path), *given], folder, refused=refused)


def run() -> Iterator[Verdict]:
    with tempfile.TemporaryDirectory() as folder:
        for name, content, refused in cases():
            yield check(name, content, refused, Path(folder))


_NOT_JSON: dict[str, str | bytes] = {
    "empty": "",
    "blank": " \n\n",
    "not utf-8": b"\xff\xfe[]",
    "a byte order mark": b"\xef\xbb\xbf[]",
    "utf-16": "[]".encode("utf-16"),
    "zeros": b"\x00" * 1000,
    "cut off": '[{"task_id": 0, "sites": ["shop',
    "two documents": "[] []",
    "a comment": "[] // none",
    "a trailing comma": "[1,]",
    "deep lists": "[" * _DEEP + "]" * _DEEP,
    "deep objects": '{"a":' * _DEEP + "1" + "}" * _DEEP,
    "a number of 5,000 digits": f'[{{"task_id": {_HUGE}}}]',
    "not a number": "NaN",
    "infinity": '[{"task_id": Infinity}]',
    "python": "[{'task_id': 0}]",
}


def _not_tasks() -> dict[str, tuple[Any, bool | None]]:
    one = json.loads(_SMALL.read_text())[0]
    return {
        "no tasks": ([], True),
        "null": (None, True),
        "a number": (7, True),
        "a string": ("vwa75", True),
        "lists in a list": ([[one]], True),
        "an empty task": ([{}], True),
        "one task alone": (one, False),
        "a task twice": ([one, one], True),
        "a task and a number": ([one, 3], True),
        "a task under a name": ({"tasks": [one]}, True),
    }


_CHANGES: dict[str, tuple[str, Any, bool | None]] = {
    "an unknown field": ("intnet", "x", True),
    "task_id of a wrong type": ("task_id", [0], True),
    "task_id below 0": ("task_id", -1, None),
    "task_id as large as it gets": ("task_id", 10**4000, None),
    "no steps": ("max_steps", 0, True),
    "steps as text": ("max_steps", "many", True),
    "no start": ("start_url", "", True),
    "a start that is a script": ("start_url", "javascript:alert(1)", True),
    "a start with a broken host": ("start_url", "http://[bad", True),
    "a start with a broken port": ("start_url", "http://shop.localhost:99999999/", True),
    "a placeholder nobody knows": ("start_url", "__GITLAB__/x", True),
    "an intent of 200,000 characters": ("intent", "a " * 100_000, None),
    "an intent with half a character": ("intent", "\ud800", None),
    "an intent that ends in a bar": ("intent", "Find it |", None),
    "an evaluation without a kind": ("eval.eval_types", [], True),
    "an unknown evaluation": ("eval.eval_types", ["llm"], True),
    "a call that is none": ("eval.program_html", [{"url": "func:__import__('os')"}], True),
    "a viewport of a wrong type": ("viewport_size", "large", True),
    "a viewport below 0": ("viewport_size", {"width": -5, "height": 10**9}, True),
}


def _changed(path: str, value: Any) -> list[Any]:
    tasks = copy.deepcopy(json.loads(_SMALL.read_text()))[:1]
    *parents, last = path.split(".")
    place = tasks[0]
    for parent in parents:
        place = place[parent]
    place[last] = value
    return list(tasks)


PART = Part("task_files", "A task file is listed or refused in one error line.", run)
