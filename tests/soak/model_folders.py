"""25 model folders: each loads or is refused in one line; none loads with random weights."""

import json
import pickle
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from safetensors.torch import load_file, save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from agentkv.build import load_run_model
from agentkv.dialog.prompt import PlainTemplate
from agentkv_tasks.cli.options import for_people
from agentkv_tasks.settings import RunSettings
from tests.soak.command_line import invoke
from tests.soak.part import Part, Verdict

TOTAL = 25

Change = Callable[[Path], object]
_MARK = "code-ran"
_CODE = f"from pathlib import Path\nPath({_MARK!r}).write_text('')\n"


def make_tiny(folder: Path) -> None:
    """Save a random Llama of two layers with the tokens of `PlainTemplate`."""
    specials, letters = PlainTemplate.SPECIALS, sorted(pre_tokenizers.ByteLevel.alphabet())
    words = {word: id for id, word in enumerate([*specials, *letters])}
    tokenizer = Tokenizer(models.BPE(words, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token) for token in specials])
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|end|>")
    fast.save_pretrained(folder)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(fast),
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=512,
    )
    LlamaForCausalLM(config).save_pretrained(folder)


def cases() -> dict[str, tuple[Change, bool]]:
    """Return changes of a valid folder by name, and whether the result must be refused."""
    return {
        "as it is saved": (lambda folder: None, False),
        "two layers more in the config": (_config(num_hidden_layers=4), True),
        "one layer less in the config": (_config(num_hidden_layers=1), True),
        "a billion layers": (_config(num_hidden_layers=10**9), True),
        "a wider model": (_config(intermediate_size=64), True),
        "no heads": (_config(num_attention_heads=0), True),
        "a head too many": (_config(num_key_value_heads=3), True),
        "a tokenizer of more words": (_more_words, True),
        "an epsilon that is nan": (_config(rms_norm_eps=float("nan")), True),
        "a vocabulary of 10**12": (_config(vocab_size=10**12), True),
        "positions as text": (_config(max_position_embeddings="many"), True),
        "an unknown kind": (_config(model_type="llamb"), True),
        "an unknown activation": (_config(hidden_act="magic"), True),
        "code of its own": (_own_code, True),
        "a config that is a list": (_write("config.json", "[]"), True),
        "a config that is nested deeply": (_write("config.json", "[" * 100_000), True),
        "no config": (_without("config.json"), True),
        "no tokenizer": (_without("tokenizer.json"), True),
        "a tokenizer that is none": (_write("tokenizer.json", "{}"), True),
        "no weights": (_without("model.safetensors"), True),
        "pickled weights only": (_pickled, True),
        "weights cut off": (_cut, True),
        "weights of zeros": (_write("model.safetensors", "\0" * 4096), True),
        "an index that leads elsewhere": (_index("../elsewhere.bin"), True),
        "a weight too many": (_weight_more, True),
    }


def check(name: str, change: Change, refused: bool, tiny: Path, folder: Path) -> Verdict:
    """Load a changed copy of `tiny` as the commands do."""
    place = folder / name.replace(" ", "-")
    shutil.copytree(tiny, place)
    change(place)
    verdict = invoke(name, ["--model", str(place)], folder, refused=refused, app=_loading)
    if (folder / _MARK).exists() or (place / _MARK).exists():
        return Verdict(name, "broken", "code of the folder was run")
    return verdict


_loading = typer.Typer()


@_loading.command()
def _load(model: Annotated[str, typer.Option()]) -> None:
    with for_people():
        load_run_model(RunSettings.read(model=model))


def run() -> Iterator[Verdict]:
    with tempfile.TemporaryDirectory() as name:
        tiny = Path(name) / "tiny"
        make_tiny(tiny)
        for case, (change, refused) in cases().items():
            yield check(case, change, refused, tiny, Path(name))


def _config(**values: Any) -> Change:
    def change(folder: Path) -> None:
        path = folder / "config.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), **values}))

    return change


def _write(name: str, text: str) -> Change:
    return lambda folder: (folder / name).write_text(text)


def _without(name: str) -> Change:
    return lambda folder: (folder / name).unlink()


def _more_words(folder: Path) -> None:
    path = folder / "tokenizer.json"
    content = json.loads(path.read_text())
    words = content["model"]["vocab"]
    words |= {f"word{id}": id for id in range(len(words), 2000)}
    path.write_text(json.dumps(content))


def _own_code(folder: Path) -> None:
    (folder / "mine.py").write_text(_CODE)
    maps = {"AutoConfig": "mine.Config", "AutoModelForCausalLM": "mine.Model"}
    _config(model_type="mine", auto_map=maps)(folder)


class _Runs:
    """An object whose pickle runs code when it is loaded."""

    def __reduce__(self) -> tuple[Any, ...]:
        return exec, (_CODE,)


def _pickled(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps(_Runs()))


def _cut(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])


def _index(file: str) -> Change:
    def change(folder: Path) -> None:
        names = load_file(folder / "model.safetensors")
        (folder.parent / "elsewhere.bin").write_bytes(pickle.dumps(_Runs()))
        index = {"metadata": {"total_size": 1}, "weight_map": dict.fromkeys(names, file)}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))

    return change


def _weight_more(folder: Path) -> None:
    path = folder / "model.safetensors"
    more = {"model.layers.2.mlp.up_proj.weight": torch.zeros(32, 16)}
    save_file({**load_file(path), **more}, path, metadata={"format": "pt"})


PART = Part("model_folders", "A model folder loads completely or is refused in one line.", run)
