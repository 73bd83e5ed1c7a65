"""`agentkv show`: the episodes of a run, one step by step, one step whole, or two side by side.

Everything that comes from pages and models is printed as `Text`, which has no markup, by a console
that makes control characters visible. No meaning depends on colors.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from agentkv.advice import ADVICE
from agentkv.files import make_folder, require_file, stored, write_atomic
from agentkv.terminal import human_bytes, plain
from agentkv.trace import Step, Trace, TraceError, read_trace
from agentkv_tasks.report.forgotten import Forgotten, Memory, reply_tokens, span_name
from agentkv_tasks.report.parting import find_parting
from agentkv_tasks.report.recorded import recorded_page
from agentkv_tasks.results import Row, read_rows

_MOST_SHOWN = 3
"""Forgotten pieces that a step quotes of each page, unless it is printed whole."""
_QUOTED = 34
"""Characters of a forgotten piece that are quoted, at most."""


class ShowError(ValueError):
    """No such episode or step; the message says what there is."""


@dataclass(frozen=True, slots=True)
class ShownEpisode:
    """An episode of a folder."""

    stem: str
    """Name of its trace, without the ending."""
    path: Path
    row: Row | None
    """Its result; None for a trace that belongs to no run, or to an episode without a result."""


def find_episodes(place: Path) -> list[ShownEpisode]:
    """Return the episodes of a run's folder, of a folder with a trace, or of one trace.

    Raises:
        ShowError: there is no trace.
        ResultsError: a ValueError; the folder's results cannot be read.
    """
    if place.is_file():
        return [ShownEpisode(place.stem, place, None)]
    results = place / "results.jsonl"
    rows = read_rows(results) if stored(results).is_file() else []
    by_stem = {Path(row.trace).stem: row for row in rows if row.trace}
    paths = sorted([*(place / "traces").glob("*.jsonl"), *place.glob("trace.jsonl")])
    if not paths:
        raise ShowError(f"{place}: neither a trace nor a folder with traces of a run")
    return [ShownEpisode(path.stem, path, by_stem.get(path.stem)) for path in paths]


def find_episode(episodes: Sequence[ShownEpisode], task: str, policy: str | None) -> ShownEpisode:
    """Return the only episode of a task, by its number or by the beginning of the trace's name.

    Args:
        policy: the episode's policy; None if only one has the task.

    Raises:
        ShowError: no episode matches, or several do.
    """
    matching = [each for each in episodes if each.stem == task]
    if not matching and task.isdecimal() and len(task) < 9:
        matching = [each for each in episodes if _task_of(each) == int(task)]
    matching = matching or [each for each in episodes if each.stem.startswith(task)]
    if not matching:
        names = _listed([each.stem for each in episodes])
        raise ShowError(f"no episode of task '{task}'; there are: {names}")
    found = of_policy(matching, policy)
    if len(found) > 1:
        names = _listed([each.stem for each in found])
        raise ShowError(f"task '{task}' has several episodes; give --policy or one of: {names}")
    return found[0]


def of_policy(episodes: Sequence[ShownEpisode], policy: str | None) -> Sequence[ShownEpisode]:
    """Return the episodes under one policy; all for None.

    Raises:
        ShowError: there are none.
    """
    matching = [each for each in episodes if policy is None or _policy_of(each) == policy]
    if not matching:
        known = _listed(sorted({_policy_of(each) for each in episodes}))
        raise ShowError(f"no episode under the policy '{policy}'; there are: {known}")
    return matching


def find_other(episodes: Sequence[ShownEpisode], one: ShownEpisode, other: str) -> ShownEpisode:
    """Return the episode to compare `one` with: by its policy, or by its trace's name.

    Raises:
        ShowError: no episode of the same task matches, or several do.
    """
    of_task = [
        each for each in episodes if each != one and _task_of(each) == _task_of(one) is not None
    ]
    matching = [each for each in of_task if _policy_of(each) == other]
    matching = matching or [each for each in of_task if each.stem.startswith(other)]
    if one.row is not None and len(matching) > 1:
        seed = one.row.seed
        matching = [each for each in matching if each.row is not None and each.row.seed == seed]
    if len(matching) == 1:
        return matching[0]
    many = "several episodes match" if matching else "no other episode of the task matches"
    names = _listed([each.stem for each in of_task])
    raise ShowError(f"{many} --against '{other}'; there are: {names}")


def print_episodes(console: Console, episodes: Sequence[ShownEpisode]) -> None:
    """Print a table of the episodes."""
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    for name in ("task", "policy", "seed", "status", "score", "steps", "hot", "cold", "all"):
        side = "left" if name in ("policy", "status") else "right"
        table.add_column(name, justify=side, overflow="fold")  # type: ignore[arg-type]
    for each in episodes:
        table.add_row(*(Text(plain(value)) for value in _summary(each)))
    console.print(table)


def print_episode(console: Console, episode: ShownEpisode) -> None:
    """Print an episode step by step. Raises TraceError."""
    trace = read_trace(episode.path)
    memory = Memory(trace.steps)
    _print_head(console, episode, trace)
    for number, step in enumerate(trace.steps):
        _line(console, f"{number + 1:>3} {step.action or '(no readable action)'}", style="bold")
        for line in _facts(memory, number, step):
            _line(console, f"    {line}")
    _print_end(console, episode, trace)


def print_step(console: Console, episode: ShownEpisode, number: int) -> None:
    """Print one step whole.

    Args:
        number: of the step, from 1.

    Raises:
        ShowError: there is no such step.
        TraceError: the file is no trace.
    """
    trace = read_trace(episode.path)
    if not 1 <= number <= len(trace.steps):
        raise ShowError(f"{episode.stem} has the steps 1 to {len(trace.steps)}; found {number}")
    step, memory = trace.steps[number - 1], Memory(trace.steps)
    _print_head(console, episode, trace)
    _line(console, f"step {number}: {step.action or '(no readable action)'}", style="bold")
    for line in _facts(memory, number - 1, step, shortened=False):
        _wrapped(console, line, "    ")
    tokens = reply_tokens(step)
    if tokens:
        console.print()
        _line(console, "reply, with the probability of each token (forced: by the grammar)")
        for text, confidence in tokens:
            sure = "forced" if confidence is None else f"{confidence:6.3f}"
            _line(console, f"{sure:>10} {_bar(confidence)} {_visible(text)}")
    elif step.reply:
        console.print()
        _line(console, "reply")
        _wrapped(console, step.reply, "    ")
    if step.observation:
        console.print()
        _print_page(console, memory, number - 1)


def print_against(console: Console, one: ShownEpisode, other: ShownEpisode) -> None:
    """Print two episodes of one task side by side, and where they part. Raises TraceError."""
    traces = [read_trace(each.path) for each in (one, other)]
    names = [_policy_of(each) for each in (one, other)]
    if names[0] == names[1]:
        names = [one.stem, other.stem]
    _print_head(console, one, traces[0])
    parting = find_parting(*(trace.steps for trace in traces))
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), expand=True)
    table.add_column("", justify="right", width=4, no_wrap=True)
    for name in names:
        table.add_column(Text(plain(name)), ratio=1, overflow="fold")
    for number in range(max(len(trace.steps) for trace in traces)):
        sign = "!" if number == parting.action else "~" if number == parting.page else " "
        table.add_row(
            f"{sign}{number + 1:>3}", *(Text(_done(trace.steps, number)) for trace in traces)
        )
    console.print(table)
    console.print()
    for line in parting.lines():
        _line(console, line)
    if parting.action is not None:
        for name, trace in zip(names, traces, strict=True):
            gone = Memory(trace.steps).gone_before(min(parting.action, len(trace.steps)))
            said = "held in part or not at all" if gone else "held all that it had read"
            _wrapped(console, f"before that step the cache of {name} {said}{':' * bool(gone)}", "")
            for each in gone:
                _wrapped(console, _quoted(each), "    ")
    for name, episode, trace in zip(names, (one, other), traces, strict=True):
        _wrapped(console, f"{name}: {_end(episode, trace)}", "")


def write_page(console: Console, episode: ShownEpisode, out: Path) -> None:
    """Write the page of an episode, in place of a file that is there.

    Raises:
        OutputPathError: a ValueError; the file cannot be written.
        TraceError: the file is no trace.
    """
    require_file(out, "--web")
    trace = read_trace(episode.path)
    make_folder(out.parent)
    write_atomic(out, recorded_page(episode.stem, trace, _end(episode, trace)))
    _wrapped(console, f"{episode.stem}: written to {out}", "")


def _done(steps: Sequence[Step], number: int) -> str:
    """Return the action of a step with the element that it is on; a dash if there is no step."""
    if number >= len(steps):
        return "-"
    step = steps[number]
    on = f" on {step.element}" if step.element else ""
    return plain(_one_line(f"{step.action or '(unreadable)'}{on}"))


def _summary(episode: ShownEpisode) -> list[str]:
    """Return the cells of an episode's line."""
    row = episode.row
    if row is not None:
        score = "-" if row.score is None else f"{row.score:g}"
        figures = [row.status, score, str(row.steps)]
        held = _bytes(row.kv_peak_bytes, row.kv_stored_cold_bytes)
        return [str(row.task_id), row.policy, str(row.seed), *figures, *held]
    try:
        trace = read_trace(episode.path)
    except (OSError, TraceError):
        return [episode.stem, "-", "-", "not readable", *"-----"]
    status = "interrupted" if trace.end is None else str(trace.end.get("status"))
    read = [step for step in trace.steps if step.seen_tokens]
    peak = max((step.cache_peak_bytes for step in read), default=None)
    held = _bytes(peak, max((step.cold_bytes for step in read), default=0))
    task = _task_in(trace)
    head = [episode.stem if task is None else str(task), str(trace.head.get("policy", "-"))]
    figures = [status, "-", str(len(trace.steps))]
    return [*head, str(trace.head.get("seed", "-")), *figures, *held]


def _bytes(hot: int | None, cold: int) -> list[str]:
    """Return the cells of hot, cold and all bytes."""
    whole = None if hot is None else hot + cold
    return [human_bytes(hot), human_bytes(cold or None), human_bytes(whole)]


def _task_of(episode: ShownEpisode) -> int | None:
    if episode.row is not None:
        return episode.row.task_id
    try:
        return _task_in(read_trace(episode.path))
    except (OSError, TraceError):
        return None


def _task_in(trace: Trace) -> int | None:
    task = trace.head.get("task")
    number = task.get("task_id") if isinstance(task, dict) else None
    return number if isinstance(number, int) else None


def _policy_of(episode: ShownEpisode) -> str:
    if episode.row is not None:
        return episode.row.policy
    try:
        return str(read_trace(episode.path).head.get("policy", ""))
    except (OSError, TraceError):
        return ""


def _listed(names: Sequence[str], most: int = 12) -> str:
    shown = ", ".join(names[:most])
    return f"{shown}, ..." if len(names) > most else shown or "none"


def _print_head(console: Console, episode: ShownEpisode, trace: Trace) -> None:
    _wrapped(console, str(trace.head.get("goal", "")), "", style="bold")
    head = trace.head
    facts = [
        f"{name} {head[name]}" for name in ("policy", "model", "seed", "suite") if name in head
    ]
    _line(console, f"{episode.stem}: {', '.join(facts)}")
    console.print()


def _print_end(console: Console, episode: ShownEpisode, trace: Trace) -> None:
    console.print()
    _wrapped(console, _end(episode, trace), "")
    answer = str((trace.end or {}).get("answer") or "")
    if answer:
        _wrapped(console, f"answer: {answer}", "")
    if advice := ADVICE.get(str((trace.end or {}).get("status"))):
        _wrapped(console, advice, "")
    if not Memory(trace.steps).is_known:
        _line(console, "This trace does not say what was forgotten: a script, or an older version.")


def _end(episode: ShownEpisode, trace: Trace) -> str:
    if trace.end is None:
        return f"interrupted after {len(trace.steps)} steps"
    row = episode.row
    said = f"{trace.end.get('status')} after {len(trace.steps)} steps"
    if row is not None:
        said += f", score {'none' if row.score is None else f'{row.score:g}'}"
        said += f" ({row.reason})" if row.reason else ""
    error = trace.end.get("error")
    return f"{said}: {error}" if error else said


def _facts(memory: Memory, number: int, step: Step, *, shortened: bool = True) -> Iterator[str]:
    """Say what is known of a step, a line each."""
    yield step.url
    if step.element:
        yield f"on: {step.element}"
    if step.note:
        yield f"note: {step.note}"
    if step.error:
        yield f"error: {step.error}"
    if not step.seen_tokens:
        return
    yield f"{step.num_tokens_in:,} tokens in, {step.num_tokens_out:,} out; {_lowest(step)}"
    cold = f", cold {human_bytes(step.cold_bytes)}" if step.cold_bytes else ""
    evicted = f"; {memory.num_evicted(number):,} entries evicted" if memory.is_known else ""
    yield f"cache {human_bytes(step.cache_bytes)}{cold}{evicted}"
    forgot = "to the cold tier:" if step.cold_bytes else "forgot"
    for each in memory.forgotten(number):
        if shortened:
            yield f"{forgot} {_quoted(each)}"
        else:
            yield f"{forgot} {_counted(each)}"
            yield from (f"    - {_one_line(text)}" for text in each.texts)


def _lowest(step: Step) -> str:
    """Quote the sampled token with the lowest confidence, between `>` and `<`."""
    tokens = reply_tokens(step)
    sampled = [(each, place) for place, (_, each) in enumerate(tokens) if each is not None]
    if not sampled:
        return "no token was sampled" if tokens else "confidence not recorded"
    least, place = min(sampled)
    before = "".join(text for text, _ in tokens[:place])[-12:]
    after = "".join(text for text, _ in tokens[place + 1 :])[:8]
    marked = f"{before}>{tokens[place][0]}<{after}"
    return f"least sure {least:.2f}: {_one_line(marked)}"


def _counted(each: Forgotten) -> str:
    parts = []
    if each.texts:
        parts.append(f"{len(each.texts)} piece{'s' * (len(each.texts) != 1)}")
    if each.num_partly:
        parts.append(f"{each.num_partly} in part")
    return f"{span_name(each.label)}: {', '.join(parts) or 'all of it'}"


def _quoted(each: Forgotten) -> str:
    texts = [text for text in map(_one_line, each.texts) if text]
    shown = [_cut(text) for text in texts]
    return ": ".join([_counted(each), *(["; ".join(shown[:_MOST_SHOWN])] if shown else [])])


def _cut(text: str) -> str:
    """Shorten a text to `_QUOTED` characters, after a word unless that would lose half of them."""
    if len(text) <= _QUOTED:
        return text
    head, _, _ = text[:_QUOTED].rpartition(" ")
    return f"{head if len(head) > _QUOTED // 2 else text[:_QUOTED]}..."


def _print_page(console: Console, memory: Memory, number: int) -> None:
    """Print the page of a step with what the cache held of it, and when it forgot the rest."""
    pieces = memory.page(number, after=number)
    if memory.is_known:
        _line(console, "page: x held no more after this step, ~ held in part;")
        _line(console, "      each number names the step that forgot the last of the text")
    else:
        _line(console, "page")
    for piece in pieces:
        mark = " " if piece.level == 4 else "~" if piece.level else "x"
        when = "" if piece.gone_in is None else str(piece.gone_in + 1)
        style = "" if piece.level == 4 else "dim" if piece.level else "dim strike"
        _wrapped(console, piece.text.rstrip(" \n"), f"{mark} {when:>3} | ", style=style)


def _bar(confidence: float | None) -> str:
    """Return ten characters, as many of them filled as tenths of the confidence."""
    filled = round(10 * confidence) if confidence is not None and 0 <= confidence <= 1 else 0
    return "#" * filled + "." * (10 - filled)


def _visible(text: str) -> str:
    """Return a token in quotes, with its line breaks made visible."""
    return json.dumps(plain(text), ensure_ascii=False) if text else "(part of a character)"


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _line(console: Console, text: str, style: str = "") -> None:
    """Print a text on one line, cut at the width of the terminal."""
    text = plain(text).replace("\n", " ").replace("\t", " ")
    console.print(Text(text, style=style), no_wrap=True, overflow="ellipsis")


def _wrapped(console: Console, text: str, margin: str, style: str = "") -> None:
    """Print a text with a margin before each line; long lines break between words."""
    width = max(20, console.width - len(margin))
    for line in plain(text).replace("\t", "    ").split("\n"):
        for part in Text(line, style=style).wrap(console, width, overflow="fold") or [Text()]:
            console.print(Text(margin) + part, no_wrap=True, overflow="ellipsis")
