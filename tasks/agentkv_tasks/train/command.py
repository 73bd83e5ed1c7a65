"""The command `agentkv train`: what is checked before a model is loaded, and what is shown."""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.console import Console
from rich.text import Text

from agentkv.build import check_language_model, load_run_model
from agentkv.files import require_folder
from agentkv.models.adapter import check_adapter, require_peft
from agentkv.recordings import Recording, RecordingError, read_recordings
from agentkv.status_line import StatusLine
from agentkv_tasks.train.settings import TrainSettings

if TYPE_CHECKING:
    from agentkv_tasks.train.loop import Check


@dataclass(frozen=True, slots=True)
class Prepared:
    """A training that can begin."""

    settings: TrainSettings
    recordings: tuple[Recording, ...]


def prepare(settings: TrainSettings) -> Prepared:
    """Check the settings, and read the recordings.

    Raises:
        ModelError: a ValueError; there is no such model, peft is missing, or the adapter to begin
            with is not there or belongs to another model.
        RecordingError: a ValueError; a file cannot be read or trained on, or two files hold the
            same episode.
        OutputPathError: a ValueError; the folder cannot be written to.
    """
    require_peft()
    check_language_model(settings)
    if settings.start is not None:
        check_adapter(settings.start, settings.model)
    found: dict[str, Recording] = {}
    for path in settings.recordings:
        for recording in read_recordings(path):
            if recording.key in found:
                raise RecordingError(f"{path}: {recording.key} is recorded twice; remove one")
            found[recording.key] = recording
    require_folder(settings.to, "--to")
    return Prepared(settings, tuple(found.values()))


def run(prepared: Prepared, console: Console) -> None:
    """Train, and print a line for each measurement.

    Raises:
        TrainError: a ValueError; see `Training`.
        Diverged, WriteError: RuntimeErrors; see `Training.run`.
        KeyboardInterrupt: the state is saved.
    """
    import torch  # takes a second

    from agentkv_tasks.train.loop import Training

    settings = prepared.settings
    if settings.threads is not None:
        torch.set_num_threads(settings.threads)
    with StatusLine(Console(stderr=True)) as status:
        loaded = settings.model_copy(update={"weights": "float"})
        local = load_run_model(loaded, status)
    assert local is not None, "checked before"
    training = Training(settings, local, prepared.recordings)
    for note in training.notes:
        console.print(Text(note, style="yellow"), soft_wrap=True)
    if training.progress.step:
        line = f"{settings.to}: {training.progress.step} steps are done; continuing"
        console.print(Text(line), soft_wrap=True)
    total = "" if settings.num_steps is None else f" of {settings.num_steps}"
    first_text: list[float] = []

    def show(check: "Check") -> None:
        parts = [f"step {check.step}{total}"]
        if check.loss is not None:
            parts.append(f"loss {check.loss:.3f}")
        if check.held_loss is not None and check.held_exact is not None:
            parts.append(f"held out: loss {check.held_loss:.3f}")
            parts.append(f"{100 * check.held_exact:.0f} % of {check.held_replies} replies exact")
        if check.text_loss is not None:
            first_text.append(check.text_loss)
            parts.append(f"perplexity of the text {math.exp(check.text_loss):.2f}")
        if check.seconds:
            parts.append(f"{check.tokens / check.seconds:,.0f} tokens/s")
        console.print(Text(", ".join(parts)), soft_wrap=True)

    training.run(show)
    if len(first_text) > 1:
        before, after = math.exp(first_text[0]), math.exp(first_text[-1])
        line = f"forgetting: perplexity of the text {before:.2f} before, {after:.2f} after"
        console.print(Text(line), soft_wrap=True)
    command = f"agentkv run --model {settings.model} --adapter {settings.to}"
    console.print(Text(f"adapter: {settings.to}; use it: {command}"), soft_wrap=True)
