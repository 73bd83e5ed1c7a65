"""Prints what `agentkv plan` says of models of the shapes in `lab/results/plan_2026-11-27`.

`python -m tests.docs.sizes` gives the README's table of sizes. The weights are holes of a file: the
plan reads their shapes alone.
"""

import json
import math
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from transformers import AutoConfig, AutoModelForCausalLM

import agentkv

ROOT = Path(__file__).parents[2]
SHAPES = ROOT / "lab" / "results" / "plan_2026-11-27"
TOKENS = 32_768


def write_folder(config: Path, folder: Path) -> None:
    """Write a model folder with the shapes of a config, in bfloat16, and nano's tokenizer."""
    folder.mkdir()
    shutil.copy(config, folder)
    shutil.copy(Path(agentkv.__file__).parent / "models" / "nano" / "tokenizer.json", folder)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(config))
    header, end = {}, 0
    for name, weight in model.named_parameters():  # tied weights occur once
        begin, end = end, end + 2 * math.prod(weight.shape)
        header[name] = {"dtype": "BF16", "shape": list(weight.shape), "data_offsets": [begin, end]}
    head = json.dumps(header).encode()
    with open(folder / "model.safetensors", "wb") as file:
        file.write(len(head).to_bytes(8, "little") + head)
        file.truncate(8 + len(head) + end)


def main() -> None:
    """Print the plans."""
    for config in sorted(SHAPES.glob("*/config.json")):
        with tempfile.TemporaryDirectory() as temporary:
            folder = Path(temporary) / config.parent.name
            write_folder(config, folder)
            command = [sys.executable, "-m", "agentkv", "plan", f"./{folder.name}"]
            command += ["--tokens", str(TOKENS), "--dtype", "bfloat16", "--memory", "24GiB"]
            subprocess.run(command, cwd=temporary, check=True)


if __name__ == "__main__":
    main()
