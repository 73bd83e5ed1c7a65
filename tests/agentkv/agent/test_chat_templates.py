"""The chat templates of 97 families of models, which the package xinference lists."""

import json
import re
import sys
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import pytest
from tokenizers import AddedToken, Tokenizer
from transformers import PreTrainedTokenizerFast

from agentkv.dialog.chat import ChatTemplate
from tests.agentkv.agent.conftest import train_tokenizer

BUILT_IN = {"baichuan-2-chat", "deepseek-v3"}
"""Families whose template is not append-only."""
THINKING = {
    *("Deepseek-V3.1", "QwQ-32B", "Qwen3-Instruct", "Qwen3-Thinking", "deepseek-r1"),
    *("deepseek-r1-distill-llama", "deepseek-r1-distill-qwen", "glm-4.5", "glm-4.5v", "gpt-oss"),
    *("qwen3", "qwenLong-l1", "seed-oss", "skywork-or1-preview"),
}
"""Families that think by their template, or whose template knows the tokens."""
_TOKENS = re.compile(
    r"<\|[^|>\s]{1,40}\|>|\[/?[A-Z_]{2,20}\]|<｜[^｜]{1,40}｜>|</?s>|<(?:start|end)_of_turn>"
    r"|</?(?:seed:)?think>|<bos>|<eos>|<reserved_\d+>|<_\w+>|\[gMASK\]|<sop>|<seed:\w+>"
)


def families() -> dict[str, Any]:
    """The families with a chat template; empty without the wheel, which `make test` downloads."""
    wheels = sorted((Path(sys.prefix) / "wheels").glob("xinference-*.whl"))
    if not wheels:
        return {}
    with ZipFile(wheels[-1]) as wheel:
        entries = json.loads(wheel.read("xinference/model/llm/llm_family.json"))
    return {entry["model_name"]: entry for entry in entries if entry.get("chat_template")}


FAMILIES = families()
BY_TEMPLATE = {
    (each["chat_template"], *(each["stop"] or ())): name for name, each in FAMILIES.items()
}
"""One name for each template; several of the 97 families share one."""
NAMES = sorted(BY_TEMPLATE.values()) or [
    pytest.param("", marks=pytest.mark.skip(reason="the wheel of xinference is missing"))
]


@pytest.fixture(scope="module")
def trained() -> str:
    return train_tokenizer(["<unk>", "<bos>", "<eos>"]).to_str()


def tokenizer_of(family: Any, trained: str) -> PreTrainedTokenizerFast:
    """A tokenizer with the template of a family and the control tokens in it."""
    tokens = {*_TOKENS.findall(family["chat_template"]), *(family["stop"] or ())}
    tokenizer = Tokenizer.from_str(trained)
    tokenizer.add_special_tokens([AddedToken(token, normalized=False) for token in sorted(tokens)])
    made = PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<bos>", eos_token="<eos>")
    made.chat_template = family["chat_template"]
    return made


@pytest.mark.parametrize("name", NAMES)
def test_a_template_is_used_as_it_is_unless_it_rewrites_earlier_turns_and_thinks_if_it_says_how(
    name: str, trained: str
) -> None:
    tokenizer = tokenizer_of(FAMILIES[name], trained)
    made = ChatTemplate(tokenizer)
    assert made.source == ("built-in" if name in BUILT_IN else "tokenizer"), made.reason
    if name not in THINKING:
        with pytest.raises(ValueError, match="does not think"):
            made.with_thoughts()
    if name in BUILT_IN:
        return
    turn = made._tokenizer._untrusted.decode(made.turn("PAGE"), skip_special_tokens=False)
    rendered = [
        tokenizer.apply_chat_template(
            [{"role": "user", "content": "PAGE"}],
            tokenize=False,
            add_generation_prompt=adds,
            enable_thinking=False,
        )
        for adds in (False, True)
    ]
    prompt = str(rendered[1]).rpartition("PAGE")[2]
    assert prompt in turn.partition("PAGE")[2]
    # no thought is left open
    assert turn.count("<think>") == turn.count("</think>") or name == "Deepseek-V3.1"

    if name not in THINKING:
        return
    made = made.with_thoughts()
    assert made.source == "tokenizer" and made.thinking is not None
    turn = made._tokenizer._untrusted.decode(made.turn("PAGE"), skip_special_tokens=False)
    assert re.search(r"(<(seed:)?think>\n|<\|channel\|>analysis<\|message\|>)$", turn)
    end = made._tokenizer._untrusted.decode(list(made.thinking.end), skip_special_tokens=False)
    assert re.match(r"</(seed:)?think>\n\n$|<\|end\|>.*final<\|message\|>$", end)
