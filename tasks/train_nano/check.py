"""Say how a checkpoint does on recorded episodes, each reply given that all before it were right.

PYTHONPATH=tasks python -m nano.check tasks/train_nano/recordings/world-1000002.jsonl.xz
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

import torch
from transformers import LlamaForCausalLM

from agentkv.dialog.prompt import PlainTemplate
from train_nano.annotate import annotated
from train_nano.episode import Episode, encode, load
from train_nano.loss import losses, per_reply
from train_nano.train import HERE, trainer_for


def check(
    model: LlamaForCausalLM, template: PlainTemplate, episodes: Sequence[Episode]
) -> list[list[bool]]:
    """For each episode, which of its replies come out exactly so, token by token."""
    results = []
    for episode in episodes:
        row = encode(template, episode)
        with torch.no_grad():
            correct = losses(model, [row], torch.device(model.device))[1]
        results.append([hit for _, hit in per_reply([row], correct)])
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description="Check the checkpoint on recorded episodes.")
    parser.add_argument("recording", type=Path)
    parser.add_argument("--work", type=Path, default=HERE / "work")
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    trainer = trainer_for(options.work)
    episodes = list(map(annotated, load(options.recording)))
    results = check(trainer.model, trainer.template, episodes)
    for episode, hits in zip(episodes, results, strict=True):
        marks = "".join("+" if hit else "-" for hit in hits)
        print(f"{marks:32} {episode.name:28} {episode.goal[:90]}")
    replies = [hit for hits in results for hit in hits]
    whole = sum(map(all, results))
    print(f"step {trainer.progress.step}, {trainer.progress.tokens:,} tokens:")
    print(
        f"{sum(replies)} of {len(replies)} replies right, {whole} of {len(results)} episodes wholly"
    )


if __name__ == "__main__":
    main()
