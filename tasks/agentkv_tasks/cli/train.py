"""`agentkv train`."""

from typing import Any

from agentkv_tasks.cli.options import for_people, takes
from agentkv_tasks.train.settings import TrainSettings

_OWN = [name for name in TrainSettings.__annotations__ if name in TrainSettings.model_fields]


@takes(
    TrainSettings,
    *("model", *_OWN, "device", "dtype", "observation_tokens", "observations"),
)
def train(given: dict[str, Any]) -> None:
    """Train an adapter for a model on recordings, to be loaded with --adapter.

    The model learns the replies, given everything before them as an agent feeds it. Recordings that
    are held out are measured while it learns. The same command continues a training that was
    stopped.
    """
    with for_people() as console:
        from agentkv_tasks.train.command import prepare, run

        run(prepare(TrainSettings.read(**given)), console)
