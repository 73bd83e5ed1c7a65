"""What the long tasks share: going round many pages, and writing down what was there."""

from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import TypeVar

from agentkv_tasks.template import Draw

T = TypeVar("T")

MAX_STEPS = 100
"""Leaves 40 steps for detours even where the solution has 60."""


def different(draw: Draw, items: Iterable[T], by: Callable[[T], Hashable], count: int) -> list[T]:
    """`count` of `items` in random order, no two of them alike `by`."""
    among = list(items)
    draw.rng.shuffle(among)
    first: dict[Hashable, T] = {}
    for item in among:
        first.setdefault(by(item), item)
    assert len(first) >= count, f"only {len(first)} different ones, {count} are asked for"
    return list(first.values())[:count]


def best_early(draw: Draw, items: list[T], by: Callable[[T], float]) -> T:
    """The largest of `items`, which is put among the first three of them."""
    best = max(items, key=by)
    items.remove(best)
    items.insert(draw.rng.randrange(3), best)
    return best


def several(key: str, names: Sequence[str]) -> tuple[str, dict[str, str | int]]:
    """The names as a goal lists them, and the values it then needs."""
    values: dict[str, str | int] = {f"{key}{n}": name for n, name in enumerate(names, start=1)}
    return ", ".join(f"{{{{{name}}}}}" for name in values), values


def listed(facts: Iterable[object]) -> str:
    """Facts as the goals ask for them: in order, a comma and a space between two."""
    return ", ".join(str(fact) for fact in facts)


def needed(*facts: Iterable[object]) -> list[str]:
    """All facts, each once, in order of their use."""
    return list(dict.fromkeys(str(fact) for group in facts for fact in group))


def text(selector: str) -> str:
    """JavaScript for the text of the first such element."""
    return f"document.querySelector('{selector}').innerText"


def texts(selector: str) -> str:
    """JavaScript for the texts of all such elements, ` | ` between them."""
    return f"[...document.querySelectorAll('{selector}')].map(e => e.innerText).join(' | ')"
