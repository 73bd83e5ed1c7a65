"""The folder of a training: the adapter in peft's format, the checkpoint, and the log."""

import copy
import io
import json
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel, get_peft_model_state_dict, set_peft_model_state_dict
from safetensors.torch import save

from agentkv.files import AppendedFile, json_line, require_folder, write_atomic
from agentkv.models.adapter import BASE, CONFIG, WEIGHTS, about_file
from agentkv.terminal import human_bytes
from agentkv_tasks.train.rows import TrainError

CHECKPOINT, LOG = "checkpoint.pt", "log.jsonl"
VERSION = 1
"""Version of the checkpoint."""


class TrainingFolder:
    """The files of one training. Each is replaced as a whole, so that a crash leaves a state.

    Args:
        about_base: names the model, see `base_file`.
        names_elements: see `about_file`.
        deciding: settings with which the training goes on.

    Raises:
        OutputPathError: a ValueError; the folder cannot be written to.
    """

    def __init__(
        self, path: Path, *, about_base: str, names_elements: bool, deciding: Mapping[str, Any]
    ) -> None:
        require_folder(path, "--to")
        self.path, self._about_base = path, about_base
        self._about = about_file(about_base, names_elements=names_elements)
        self._deciding = json.loads(json.dumps(deciding))

    def require_space(self, model: PeftModel) -> None:
        """Check that the disk holds an adapter and its checkpoint while they are replaced.

        Raises:
            TrainError: it does not.
        """
        count = sum(each.numel() for each in model.parameters() if each.requires_grad)
        needed, free = 4 * count * 2 * 4, shutil.disk_usage(self.path).free
        if free < needed:
            raise TrainError(
                f"--to {self.path}: {human_bytes(free)} are free, and the adapter and its "
                f"checkpoint need {human_bytes(needed)}; free some space or give another folder"
            )

    def save(
        self, model: PeftModel, optimizer: torch.optim.Optimizer, progress: Mapping[str, Any]
    ) -> None:
        """Write the adapter and the checkpoint.

        Raises:
            WriteError: they could not be written.
        """
        # "auto" would ask the hub for the model that the config names
        found = get_peft_model_state_dict(model, save_embedding_layers=False)
        weights = {name: each.detach().cpu().contiguous() for name, each in found.items()}
        config = copy.copy(model.peft_config["default"])
        config.inference_mode = True
        # as the user names it: peft notes where its files are on this machine
        config.base_model_name_or_path = json.loads(self._about_base)["base"]
        with tempfile.TemporaryDirectory() as folder:
            config.save_pretrained(folder)
            about = (Path(folder) / CONFIG).read_bytes()
        content = io.BytesIO()
        state = {
            "version": VERSION,
            "settings": self._deciding,
            "base": self._about_base,
            "progress": dict(progress),
            "weights": weights,
            "optimizer": optimizer.state_dict(),
        }
        torch.save(state, content)
        write_atomic(self.path / CONFIG, about)
        write_atomic(self.path / WEIGHTS, save(weights, metadata={"format": "pt"}))
        write_atomic(self.path / BASE, self._about)
        write_atomic(self.path / CHECKPOINT, content.getvalue())

    def load(
        self, model: PeftModel, optimizer: torch.optim.Optimizer, digest: str
    ) -> dict[str, Any] | None:
        """Put the model and the optimizer into the state of the checkpoint, and return the progress
        that was saved with it; None if there is none.

        Args:
            digest: of what is learned.

        Raises:
            TrainError: it cannot be read, or belongs to another training.
        """
        path = self.path / CHECKPOINT
        if not path.exists():
            return None
        try:
            state = torch.load(path, map_location="cpu", weights_only=True)
            found, base = state["settings"], state["base"]
            progress = dict(state["progress"])
        except Exception as error:  # torch raises all kinds of errors for damaged files
            reason = " ".join(str(error).split())[:200]
            raise TrainError(f"{path} cannot be read as a checkpoint: {reason}") from None
        other = [
            f"{name} was {found.get(name)!r}, now {value!r}"
            for name, value in self._deciding.items()
            if name in found and found[name] != value  # rows show what a newer setting changes
        ]
        if base != self._about_base:
            other.append("the model has other weights")
        if progress.get("digest") != digest:
            other.append("the recordings or the text differ")
        if state.get("version") != VERSION or other:
            raise TrainError(
                f"{self.path} holds another training ({'; '.join(other) or 'another version'}); "
                "give another --to, or remove the folder"
            )
        set_peft_model_state_dict(model, state["weights"])
        optimizer.load_state_dict(state["optimizer"])
        return progress

    def begin_log(self, *, after: int) -> AppendedFile:
        """Open the log for further lines, without those after step `after`."""
        path = self.path / LOG
        kept = []
        if path.exists():
            for line in path.read_bytes().splitlines(keepends=True):
                if line.endswith(b"\n") and json.loads(line)["step"] <= after:
                    kept.append(line)
        write_atomic(path, b"".join(kept))
        return AppendedFile(path)


def log_line(values: Mapping[str, Any]) -> bytes:
    """Return a line of the log; numbers are rounded to six digits."""
    rounded = {
        name: float(f"{each:.6g}") if isinstance(each, float) else each
        for name, each in values.items()
    }
    return json_line(rounded)
