"""150 command lines: each gives a result, or one line of error and exit code 1 or 2."""

import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tests.soak.command_line import NO_BROWSER, invoke
from tests.soak.part import Part, Verdict

TOTAL = 181

_SMALL = str(Path(__file__).parents[1] / "tasks" / "data" / "small.json")
_HUGE = "9" * 5000
_LONG = "a" * 5000
_HALF = "\udcff"
"""A byte that is not UTF-8, as Python passes it in an argument."""
_RUN = ("run", "--tasks", _SMALL, "--model", "stop", "--browser-path", NO_BROWSER)
_NANO = ("run", "--tasks", _SMALL, "--browser-path", NO_BROWSER)
_ACT = ("act", "--model", "stop", "--browser-path", NO_BROWSER)


def cases() -> list[tuple[str, ...]]:
    """Return the command lines; `prepare` makes the files that they name."""
    return [
        *_PLAIN,
        *((*_RUN, *more) for more in _OF_RUN),
        *((*_NANO, *more) for more in _OF_NANO),
        *((*_ACT, *more) for more in _OF_ACT),
        *(("bench", *more) for more in _OF_BENCH),
    ]


def prepare(folder: Path) -> None:
    """Make the files and folders that the command lines name in `folder`."""
    row = {
        **{"suite": "small", "world_seed": 75, "task_id": 0, "category": "form"},
        **{"policy": "full", "policy_parameters": {"budget": None}, "model": "nano", "seed": 0},
        **{"status": "stopped", "success": True, "score": 1.0, "schema": 1},
    }
    for name, change in _ROWS.items():
        (folder / name).mkdir()
        content = change if isinstance(change, bytes) else json.dumps({**row, **change}).encode()
        (folder / name / "results.jsonl").write_bytes(content + b"\n")
    for name, content in _TRACES.items():
        (folder / f"{name}.trace").write_bytes(content)
    (folder / "empty").mkdir()
    (folder / "sealed").mkdir()
    (folder / "a-file").write_text("text\n")
    (folder / "a-link").symlink_to(folder / "a-link")
    (folder / "words.txt").write_text("some words " * 50)
    (folder / "not-utf8.txt").write_bytes(b"\xff" * 100)
    os.chmod(folder / "sealed", 0o500)


def check(arguments: tuple[str, ...], folder: Path) -> Verdict:
    """Run one of `cases` in a prepared folder."""
    return invoke(" ".join(part[:40] for part in arguments), arguments, folder)


def run() -> Iterator[Verdict]:
    with tempfile.TemporaryDirectory() as name:
        prepare(Path(name))
        for arguments in cases():
            yield check(arguments, Path(name))


_ROWS: dict[str, bytes | dict[str, object]] = {
    "good": {},
    "steps-text": {"steps": "many"},
    "settings-list": {"settings": [1]},
    "score-nan": {"score": float("nan")},
    "success-text": {"success": "yes"},
    "parameters-null": {"policy_parameters": None},
    "huge": {"steps": 10**400},
    "task-text": {"task_id": "0"},
    "half": {"answer": "\ud800"},
    "versions-list": {"versions": []},
    "deep": b"[" * 100_000,
    "infinite": b'{"schema": 1, "seconds": 1e999}',
    "not-utf8": b"\xff\xfe",
    "long-name": b'{"schema": 1, "' + b"x" * 100_000 + b'": 1}',
}

_HEAD: dict[str, object] = {"schema": 1, "kind": "head"}
_STEP: dict[str, object] = {
    **{"schema": 1, "kind": "step", "index": 0, "url": "", "observation": "", "note": ""},
    **{"reply": "", "action": "", "error": "", "num_tokens_in": 0, "num_tokens_out": 0},
    **{"seen_tokens": 0, "cache_bytes": 0, "cache_peak_bytes": 0},
    **{"prefill_s": 0.0, "decode_s": 0.0, "seconds": 0.0},
}


def _lines(*rows: dict[str, object]) -> bytes:
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


_TASK = json.loads(Path(_SMALL).read_text())[0]
_TRACES = {
    "nothing": b"",
    "deep": b"[" * 100_000 + b"\n",
    "no-kind": _lines(_HEAD, {"schema": 1}),
    "short-step": _lines(_HEAD, {"schema": 1, "kind": "step"}),
    "no-step": _lines({**_HEAD, "task": _TASK}),
    "step-number": _lines({**_HEAD, "task": _TASK}, {**_STEP, "reply": 7}),
    "task-number": _lines({**_HEAD, "task": 7}, _STEP),
    "world-text": _lines({**_HEAD, "task": _TASK, "world_seed": "x"}, _STEP),
    "bad-start": _lines({**_HEAD, "task": {**_TASK, "start_url": "http://[bad"}}, _STEP),
    "digits": b'{"schema": ' + b"9" * 5000 + b"}\n",
    "places": _lines(_HEAD, {**_STEP, "token_ends": [-5, 10**30], "confidences": [None, -3]}),
    "pieces": _lines(_HEAD, {**_STEP, "piece_ends": [9, -1], "held": {"page 0": "\u0663", "": ""}}),
}

_PLAIN: list[tuple[str, ...]] = [
    *((), ("--help",), ("--version",), ("nonsense",), ("",), (_HALF,), ("\0",), (_LONG,)),
    *(("run", "--help"), ("bench", "--help"), ("bench", "nonsense"), ("--no-such-option",)),
    *(
        ("policies",),
        ("policies", "full"),
        ("policies", "ful"),
    ),
    *(("tasks", _SMALL), ("tasks", "vwa"), ("tasks", ""), ("tasks", "empty")),
    *(("tasks", "/dev/null"), ("tasks", "/dev/zero"), ("tasks", "a-link"), ("tasks", _LONG)),
    *(("tasks", "a\x1b[31mb"), ("tasks", "vwa75", "--world-seed", _HUGE)),
    ("tasks", _SMALL, "--world-seed", "-1"),
    *(("sites", "--port", "-1"), ("sites", "--port", "65536"), ("sites", "--port", "²")),
    ("sites", "--port", _HUGE),
    *(("doctor", "--model", "nowhere/at-all", "--browser-path", NO_BROWSER),),
    *(("doctor", "--model", "", "--browser-path", NO_BROWSER),),
    *(("report", name) for name in _ROWS),
    *(("report", "good", "good"), ("report", "good", "--against", ","), ("report", "empty")),
    *(("report", "good", "--against", "h2o"), ("report", "")),
    *(("report", "a-file"), ("report", "good", "--out", "a-file"), ("report", "/dev/null")),
    *(("report", "good", "--out", _LONG), ("report", "good", "--out", "sealed/x")),
    *(("replay", f"{name}.trace") for name in _TRACES),
    *(("replay", "empty"), ("replay", "/dev/null"), ("replay", ""), ("replay", "good", _LONG)),
    *(("show", f"{name}.trace") for name in _TRACES),
    *(("show", f"{name}.trace", name, "--step", "1") for name in _TRACES),
    *(("show", "empty"), ("show", "/dev/null"), ("show", ""), ("show", "good", _LONG)),
    ("show", "places.trace", "places", "--against", _HALF),
]

_OF_RUN: list[tuple[str, ...]] = [
    *(("--site", f"X={url}") for url in ("http://[bad", "http://", "ftp://a", "", "http://a:b")),
    *(("--site", "ÄÖ=http://a"), ("--site", 'X=http://a/"x')),
    *(("--seeds", text) for text in ("²", "", ",", _HUGE, "99999999999999999999", "1_0")),
    *(("--temperature", text) for text in ("inf", "nan", "1e400", "1e-320", "warm")),
    *(("--timeout", text) for text in ("inf", "nan", "1e300")),
    *(("--step-timeout", text) for text in ("inf", "nan", "1e300")),
    *(("--out", "a-file"), ("--out", "a-file/x"), ("--out", _LONG), ("--config", "a-file")),
    *(("--config", "."), ("--config", "/dev/zero"), ("--config", "a-link"), ("--config", _LONG)),
    *(("--limit", _HUGE), ("--max-steps", "0"), ("--chunk", "0")),
    *(("--world-seed", _HUGE), ("--tasks", "good/results.jsonl"), ("--device", "gpu")),
    *(("--policies", ","), ("--policies", "full,ful"), ("--observations", _HALF)),
]

_OF_NANO: list[tuple[str, ...]] = [
    *(("--budget", text) for text in ("²", "0", "-5", "", "9" * 400 + "MiB", "1e5", "100%")),
    *(("--budget", text) for text in ("64 parsecs",)),
    *(("--model", text) for text in (_LONG, "a-file", "/dev/null", "a/b")),
]

_OF_ACT: list[tuple[str, ...]] = [
    *(("--url", url, "--goal", "x") for url in ("http://[bad", "", "shop", "http://a:99999")),
    *(("--url", "http://a.test/", "--goal", goal) for goal in ("", _HALF)),
    ("--url", "http://a.test/", "--goal", "x", "--policy", "mine.toml"),
    ("--url", "http://[::1]:1/", "--goal", "x"),
]

_OF_BENCH: list[tuple[str, ...]] = [
    *(("needle", "--lengths", text) for text in ("0", "²", "", "9" * 18, _HUGE)),
    *(("needle", "--depths", "101"), ("needle", "--seed", "-1"), ("needle", "--needles", _HUGE)),
    *(("ppl", "--samples", "0"), ("ppl", "--tokens", "9" * 15), ("ppl", "--text", ".")),
    *(("ppl", "--text", "not-utf8.txt"), ("ppl", "--text", "words.txt")),
    *(("speed", "--seen", "0"), ("speed", "--shape", "giant"), ("speed", "--against", "x")),
    *(("memory", "--threads", "0"), ("memory", "--dtype", "int3"), ("memory", "--layers", "-1")),
]


PART = Part("commands", "A command gives a result, or one error line and exit code 1 or 2.", run)
