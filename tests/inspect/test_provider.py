"""Tests for the provider, in evaluations of inspect_ai; `make test-inspect` has its environment."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from inspect_ai import Task, eval
from inspect_ai.dataset import Sample
from inspect_ai.model import (
    ChatMessageSystem,
    ChatMessageTool,
    ChatMessageUser,
    GenerateConfig,
    Model,
    ResponseSchema,
    get_model,
)
from inspect_ai.scorer import includes
from inspect_ai.solver import Generate, Solver, TaskState, solver, system_message
from inspect_ai.tool import ToolFunction, ToolInfo
from inspect_ai.util import JSONSchema
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

# inspect_ai calls tenacity in a way that tenacity gives up, and leaves streams of anyio open
pytestmark = [
    pytest.mark.filterwarnings("ignore:The 'initial' parameter:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:.*MemoryObject:pytest.PytestUnraisableExceptionWarning"),
]

CHATML = """{% if tools %}<|im_start|>system
{{ tools | tojson }}<|im_end|>
{% endif %}{% for message in messages %}<|im_start|>{{ message.role }}
{{ message.content }}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
LOOK = ToolInfo(name="look", description="Look at a boat.")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random model with a chat template, in Hugging Face format."""
    trained = Tokenizer(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trained.decoder = decoders.ByteLevel()
    trained.train_from_iterator(
        ["Where is the Heron? At berth 42."] * 8,
        trainers.BpeTrainer(
            vocab_size=400,
            special_tokens=["<|im_start|>", "<|im_end|>"],
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        ),
    )
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=trained, eos_token="<|im_end|>")
    tokenizer.chat_template = CHATML
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
    config = LlamaConfig(
        **{**sizes, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 400},
        max_position_embeddings=1024,
        initializer_range=0.3,
    )
    path = tmp_path_factory.mktemp("model")
    LlamaForCausalLM(config).save_pretrained(path)
    tokenizer.save_pretrained(path)
    return path


@pytest.fixture
def model(folder: Path) -> Iterator[Model]:
    """The model that inspect_ai finds by its name."""
    with get_model(f"agentkv/{folder}", policy="lookback-int8", budget=512, memoize=False) as model:
        yield model


@solver
def three_questions() -> Solver:
    async def solve(state: TaskState, generate: Generate) -> TaskState:
        for _ in range(2):
            state = await generate(state)
            state.messages.append(ChatMessageUser(content="And then?"))
        return await generate(state)

    return solve


def test_the_samples_of_an_evaluation_read_only_what_is_new(model: Model, tmp_path: Path) -> None:
    task = Task(
        dataset=[Sample(input=text, target="42") for text in ("Where is it?", "Who sails?", "Hm")],
        solver=[system_message("You know boats."), three_questions()],
        scorer=includes(),
        epochs=2,
    )
    (log,) = eval(
        task, model=model, log_dir=str(tmp_path), display="none", max_tokens=12, log_samples=True
    )
    assert log.status == "success" and log.samples is not None and len(log.samples) == 6
    for sample in log.samples:
        calls = [event.output.usage for event in sample.events if event.event == "model"]
        cached = [usage.input_tokens_cache_read for usage in calls]
        assert cached[0] < 20  # the system message, which another sample may have read
        for before, usage in zip(calls, calls[1:], strict=False):
            assert usage.input_tokens_cache_read >= before.total_tokens - 1
            assert usage.input_tokens < 40


def test_an_evaluation_may_rewrite_a_reply(model: Model) -> None:
    async def talk() -> None:
        messages = [ChatMessageUser(content="Where is the Heron?")]
        first = await model.generate(messages, config=GenerateConfig(max_tokens=8))
        assert (first.stop_reason, first.usage.output_tokens) == ("max_tokens", 8)
        edited = first.message.model_copy(update={"content": "At berth 42."})
        for reply, is_cached in ((first.message, True), (edited, False)):
            longer = [*messages, reply, ChatMessageUser(content="Sure?")]
            output = await model.generate(longer, config=GenerateConfig(max_tokens=8))
            assert (output.usage.input_tokens_cache_read > 0) == is_cached

    asyncio.run(talk())


def test_settings_that_are_not_known_are_refused(model: Model) -> None:
    with pytest.raises(ValueError, match="top_k is not supported"):
        asyncio.run(model.generate("Hm", config=GenerateConfig(top_k=5)))
    with pytest.raises(ValueError, match="found logprobs=True, which agentkv does not have"):
        asyncio.run(model.generate("Hm", config=GenerateConfig(logprobs=True)))


def test_epochs_are_sampled_anew_unless_a_seed_is_given(model: Model) -> None:
    def said(**options: int) -> str:
        config = GenerateConfig(max_tokens=20, temperature=1.5, **options)
        return asyncio.run(model.generate("Where is it?", config=config)).completion

    assert said() != said()
    assert said(seed=3) == said(seed=3)


def test_a_sample_that_is_too_long_ends_with_the_reason(model: Model) -> None:
    output = asyncio.run(model.generate("boat " * 2000))
    assert output.stop_reason == "model_length" and "1024 positions" in (output.error or "")


def test_tools_and_their_answers_are_read(model: Model) -> None:
    async def talk() -> None:
        messages = [ChatMessageSystem(content="Hm"), ChatMessageUser(content="Where is it?")]
        config = GenerateConfig(max_tokens=4)
        plain = await model.generate(messages, config=config)
        first = await model.generate(messages, tools=[LOOK], config=config)
        assert first.usage.input_tokens > plain.usage.input_tokens
        answered = [*messages, first.message, ChatMessageTool(content="42", function="look")]
        second = await model.generate(answered, tools=[LOOK], config=config)
        assert second.usage.input_tokens_cache_read >= first.usage.total_tokens - 1

    asyncio.run(talk())


def test_a_call_is_forced_and_its_answer_read(model: Model) -> None:
    async def talk() -> None:
        messages = [ChatMessageUser(content="Where is it?")]
        config = GenerateConfig(max_tokens=80)
        for choice in ("any", ToolFunction(name="look")):
            output = await model.generate(messages, tools=[LOOK], tool_choice=choice, config=config)
            (call,) = output.message.tool_calls or ()
            assert (call.function, call.arguments) == ("look", {})
            assert output.stop_reason == "tool_calls"
        result = ChatMessageTool(content="42", function="look", tool_call_id=call.id)
        answered = [*messages, output.message, result]
        second = await model.generate(answered, tools=[LOOK], config=config)
        assert second.usage.input_tokens_cache_read > 150

    asyncio.run(talk())


def test_a_reply_keeps_to_the_schema_of_an_evaluation(model: Model) -> None:
    schema = ResponseSchema(
        name="berth",
        json_schema=JSONSchema(
            type="object",
            properties={"free": JSONSchema(type="boolean")},
            required=["free"],
            additionalProperties=False,
        ),
    )
    config = GenerateConfig(max_tokens=60, response_schema=schema)
    output = asyncio.run(model.generate("Is it free?", config=config))
    assert json.loads(output.completion)["free"] in (True, False)


def test_nano_answers(tmp_path: Path) -> None:
    with get_model("agentkv/nano", memoize=False) as model:
        config = GenerateConfig(max_tokens=8)
        output = asyncio.run(model.generate("What is 2 and 2?", config=config))
        assert output.usage.output_tokens > 0
