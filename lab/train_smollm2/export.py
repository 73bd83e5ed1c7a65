"""The adapter as it would be shipped: its weights in bfloat16, without the checkpoint."""

import shutil
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from agentkv.models.adapter import BASE, CONFIG, WEIGHTS


def export(adapter: Path, to: Path) -> int:
    """Write an adapter to another folder with half the bytes, and return the size of its weights.

    Args:
        adapter: folder of a training.
        to: folder, which is created.
    """
    to.mkdir(parents=True, exist_ok=True)
    for name in (BASE, CONFIG):
        shutil.copyfile(adapter / name, to / name)
    weights = {name: each.to(torch.bfloat16) for name, each in load_file(adapter / WEIGHTS).items()}
    partial = to / f"{WEIGHTS}.partial"
    save_file(weights, partial, metadata={"format": "pt"})
    partial.replace(to / WEIGHTS)
    return (to / WEIGHTS).stat().st_size
