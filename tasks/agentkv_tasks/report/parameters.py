"""Settings and parameters of a run in words for people."""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from agentkv_tasks.report.summary import Summary
from agentkv_tasks.results import Row

_Words = Callable[[Any], str]


def _yes(yes: str, no: str) -> _Words:
    return lambda value: yes if value else no


def _counted(text: str, none: str) -> _Words:
    return lambda value: none if value is None else text.format(value)


_SETTINGS: Mapping[str, tuple[str, _Words]] = {
    "cache_dtype": ("cache", _counted("entries in {}", "entries in the model's dtype")),
    "dtype": (
        "weights",
        lambda value: (
            "in float32 on a CPU, as in their file on CUDA" if value == "auto" else f"in {value}"
        ),
    ),
    "scoring": ("scoring", _counted("{}", "-")),
    "decoding": (
        "decoding",
        lambda value: {
            "constrained": "constrained: only actions that the page allows",
            "free": "free: any text",
        }.get(str(value), str(value)),
    ),
    "temperature": (
        "sampling",
        lambda value: f"temperature {value:g}" if value else "the most probable token",
    ),
    "deterministic": (
        "repeats",
        _yes("equal: every reply has its own forwards", "may differ: replies share forwards"),
    ),
    "pins": ("goal", _yes("pinned: never evicted", "may be evicted")),
    "observations": (
        "pages",
        lambda value: {
            "whole": "whole, each time",
            "changes": "only what changed since the last visit",
        }.get(str(value), str(value)),
    ),
    "observation_tokens": ("tokens of a page", _counted("{:,} at most", "no limit")),
    "max_new_tokens": ("tokens of a reply", _counted("{:,} at most", "no limit")),
    "thinking": (
        "thinking",
        lambda value: f"{value:,} tokens at most before a reply" if value else "none",
    ),
    "prefill": (
        "reading",
        lambda value: {"chunked": "pages in chunks", "whole": "pages at once"}.get(
            str(value), str(value)
        ),
    ),
    "chunk": ("chunk", _counted("{:,} tokens", "-")),
    "max_steps": ("steps of an episode", _counted("{} at most", "as each task says")),
    "max_parse_failures": ("unreadable replies", _counted("{} in a row end an episode", "-")),
    "max_repeats": ("repeated actions", _counted("{} in a row end an episode", "-")),
    "timeout_s": ("time of an episode", _counted("{:g} s at most", "no limit")),
    "strict": ("replies", _yes("parsed as VisualWebArena does", "parsed without its known flaws")),
    "ocr": ("text in pictures", _yes("read", "not read")),
    "weights": ("digest of the weights", _counted("{}", "-")),
    "suite_digest": ("digest of the tasks", _counted("{}", "-")),
    "judge": ("judge", _counted("{}", "none")),
}
"""Name and words of each setting, in the order in which people ask for them."""


def shared_settings(rows: Sequence[Row]) -> dict[str, Any]:
    """Return the settings that all rows share, as they are recorded, with the versions."""
    first = rows[0]
    shared = {
        name: value
        for name, value in first.settings.items()
        if all(row.settings.get(name) == value for row in rows)
    }
    return {**shared, "versions": dict(first.versions)}


def settings_in_words(rows: Sequence[Row]) -> list[tuple[str, str]]:
    """Return name and value of each setting that all rows share, in words.

    A setting that this version does not know, or whose value it cannot read, stands as recorded.
    """
    shared = shared_settings(rows)
    del shared["versions"]
    known = [name for name in _SETTINGS if name in shared]
    others = [name for name in shared if name not in _SETTINGS]
    found = []
    for name in (*known, *others):
        value = shared[name]
        if value in ("", [], {}):
            continue
        label, words = _SETTINGS.get(name, (name.replace("_", " "), _recorded))
        try:
            found.append((label, words(value)))
        except (ValueError, TypeError):  # another version's value
            found.append((label, _recorded(value)))
    return [*found, *rows[0].versions.items()]


def policy_in_words(summary: Summary) -> tuple[str, str]:
    """Return the budget and the other parameters of a policy."""
    return parameters_in_words(summary.rows[0].policy_parameters)


def parameters_in_words(parameters: Mapping[str, Any]) -> tuple[str, str]:
    """Return the budget and the other parameters, as rows hold them, in words."""
    others = dict(parameters)
    budget = others.pop("budget", None)
    shown = [f"{name.replace('_', ' ')} {_value(value)}" for name, value in others.items()]
    return _budget(budget), ", ".join(shown) or "none"


def _budget(budget: object) -> str:
    """Return `none`, `1,024 entries per layer and head`, `25 %` or `3.1 MiB`."""
    if budget is None:
        return "none"
    if isinstance(budget, int):
        return f"{budget:,} entries per layer and head"
    return re.sub(r"(?<=\d)\s*(?=[A-Za-z%])", " ", str(budget))


def _value(value: object) -> str:
    if value is None:
        return "off"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return " to ".join(map(str, value)) if len(value) == 2 else ", ".join(map(str, value))
    return value if isinstance(value, str) else json.dumps(value)


def _recorded(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)
