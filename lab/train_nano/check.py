"""Score a checkpoint on recorded episodes with teacher forcing.

python -m train_nano.check lab/train_nano/recordings/vwa75-1000002.jsonl.xz
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

import torch
from transformers import LlamaForCausalLM

from agentkv.dialog.prompt import PlainTemplate
from train_nano.annotate import annotate
from train_nano.episode import RecordedEpisode, encode, load
from train_nano.loss import losses, per_reply
from train_nano.train import HERE, load_trainer


def check(
    model: LlamaForCausalLM, template: PlainTemplate, episodes: Sequence[RecordedEpisode]
) -> list[list[bool]]:
    """Return, for each episode, whether each reply is predicted exactly."""
    results = []
    for episode in episodes:
        row = encode(template, episode)
        with torch.no_grad():
            correct = losses(model, [row], torch.device(model.device))[1]
        results.append([hit for _, hit in per_reply([row], correct)])
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description="Score the checkpoint on recorded episodes.")
    parser.add_argument("recording", type=Path)
    parser.add_argument("--work", type=Path, default=HERE / "work")
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    trainer = load_trainer(options.work, recordings=None)
    episodes = list(map(annotate, load(options.recording)))
    results = check(trainer.model, trainer.template, episodes)
    for episode, hits in zip(episodes, results, strict=True):
        marks = "".join("+" if hit else "-" for hit in hits)
        print(f"{marks:32} {episode.name:28} {episode.goal[:90]}")
    replies = [hit for hits in results for hit in hits]
    num_exact = sum(map(all, results))
    print(f"step {trainer.progress.step}, {trainer.progress.tokens:,} tokens:")
    print(
        f"{sum(replies)} of {len(replies)} replies and {num_exact} of {len(results)} whole episodes"
        " are exact"
    )


if __name__ == "__main__":
    main()
