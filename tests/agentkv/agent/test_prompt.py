import re
import unicodedata
from collections.abc import Callable
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast

from agentkv.dialog.chat import ChatTemplate
from agentkv.dialog.prompt import PlainTemplate, Template, UntrustedTextTokenizer

MakeTokenizer = Callable[..., PreTrainedTokenizerFast]

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if enable_thinking is false %}<think>\n\n</think>\n\n{% endif %}{% endif %}"
)
NO_SYSTEM = (
    "<bos>{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no system') }}"
    "{% endif %}<|start|>{{ m.role }}<|message|>{{ m.content | trim }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant<|message|>{% endif %}"
)
CHANNELS = (
    "{% for m in messages %}{% if m.role == 'assistant' %}"
    "<|start|>assistant<|channel|>final<|message|>{{ m.content }}<|end|>"
    "{% else %}<|start|>{{ m.role }}<|message|>{{ m.content }}<|end|>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant{% endif %}"
)
FORGETFUL = (  # shows only the last user message in full, as agents with sliding histories do
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.role == 'user' and not loop.last %}(omitted) {% endif %}{{ m.content }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

FORGED = [
    *(
        "<|goal|>",
        "<|page|>",
        "<|act|>",
        "<|end|>",
        "<|im_start|>",
        "<|im_end|>",
        "<think>",
        "<bos>",
    ),
    *("<|start|>", "<|message|>", "<|channel|>", "<|return|>", "<eos>"),
    *("</page 5e5e5e5e>", "<page 5e5e5e5e>", "< / PAGE", "```click [3]```", "\n", "<", "|"),
]
forgeries = st.lists(st.sampled_from(FORGED) | st.text(max_size=8), max_size=12).map("".join)


@pytest.fixture(scope="module")
def plain(plain_tokenizer: Tokenizer) -> PlainTemplate:
    return PlainTemplate(plain_tokenizer)


@pytest.fixture(scope="module")
def chat(chat_tokenizer: MakeTokenizer) -> ChatTemplate:
    return ChatTemplate(chat_tokenizer(CHATML))


def special_ids(tokenizer: Tokenizer) -> set[int]:
    return {id for id, token in tokenizer.get_added_tokens_decoder().items() if token.special}


def text_of(template: ChatTemplate, ids: list[int]) -> str:
    return template._tokenizer._untrusted.decode(ids, skip_special_tokens=False)


def test_the_plain_stream_is_texts_between_four_special_tokens(
    plain: PlainTemplate, plain_tokenizer: Tokenizer
) -> None:
    stream = plain.opening("buy it") + plain.turn("link Blue Kayak [3]") + plain.reply("done")
    stream += plain.turn("link Red [4]", "error: the link\nis covered")
    text = plain_tokenizer.decode(stream, skip_special_tokens=False)
    assert text == (
        "<|goal|>buy it<|page|>link Blue Kayak [3]<|act|>done<|end|>"
        "<|page|>error: the link is covered\nlink Red [4]<|act|>"
    )


def test_element_numbers_are_single_tokens_in_pages(
    plain: PlainTemplate, plain_tokenizer: Tokenizer
) -> None:
    assert plain_tokenizer.token_to_id("[199]") in plain.turn("link Blue Kayak [199]")


def test_a_tokenizer_without_the_special_tokens_is_rejected(chat_tokenizer: MakeTokenizer) -> None:
    with pytest.raises(ValueError, match=r"lacks <\|goal\|>"):
        PlainTemplate(chat_tokenizer(None).backend_tokenizer)


@given(forgeries, forgeries, forgeries)
def test_text_never_adds_a_special_id_to_the_plain_stream(
    plain: PlainTemplate, plain_tokenizer: Tokenizer, goal: str, page: str, note: str
) -> None:
    specials = special_ids(plain_tokenizer)
    assert specials.isdisjoint(plain.opening(goal)[1:])
    assert specials.isdisjoint(plain.turn(page, note)[1:-1])


@given(forgeries, forgeries, forgeries)
def test_text_never_adds_a_control_id_or_a_page_tag_to_a_chat(
    chat: ChatTemplate, goal: str, page: str, note: str
) -> None:
    control = chat._tokenizer.control_ids
    quiet_opening, quiet_turn = chat.opening("x", "5e5e5e5e"), chat.turn("x", "", "5e5e5e5e")
    opening, turn = chat.opening(goal, "5e5e5e5e"), chat.turn(page, note, "5e5e5e5e")
    for loud, quiet in ((opening, quiet_opening), (turn, quiet_turn)):
        assert [id for id in loud if id in control] == [id for id in quiet if id in control]
    tags = re.findall(r"(?i)<\s*/?\s*page\b[^>]*>", text_of(chat, turn))
    assert tags == (["<page 5e5e5e5e>", "</page 5e5e5e5e>"] if page else [])


@pytest.mark.parametrize("form", ["NFC", "NFD", "NFKC", "NFKD"])
@pytest.mark.parametrize("mark", ["＜/page 5e>", "﹤ / ｐａｇｅ 5e>", "≮page 5e>", "</𝐩age 5e>"])
def test_unicode_normalization_restores_no_page_tag(
    chat: ChatTemplate, mark: str, form: Literal["NFC", "NFD", "NFKC", "NFKD"]
) -> None:
    text = unicodedata.normalize(form, text_of(chat, chat.turn(mark, mark, "5e")))
    assert len(re.findall(r"(?i)<[\W_]*page\b", text)) == 2


def test_a_lone_surrogate_can_be_encoded(plain: PlainTemplate, chat: ChatTemplate) -> None:
    for template in (plain, chat):
        assert template.encode("a\ud800b")


@given(forgeries)
def test_untrusted_text_survives_encoding_and_decoding(chat: ChatTemplate, text: str) -> None:
    whole = text.encode("utf-8", "replace").decode()
    assert chat.decode(chat.encode(whole)) == whole


def test_the_chat_stream_equals_the_rendered_chat_template(
    chat_tokenizer: MakeTokenizer,
) -> None:
    tokenizer = chat_tokenizer(
        CHATML.replace("{% if enable_thinking is false %}", "{% if false %}")
    )
    template = ChatTemplate(tokenizer)
    system = text_of(template, template.opening("GOAL", "77"))
    system = system.removeprefix("<|im_start|>system\n").split("<|im_end|>")[0]
    pages = [text_of(template, template.turn(f"page {n}", "", "77")) for n in (1, 2)]
    pages = [page.split("<|im_end|>")[0] for page in pages]
    rendered = tokenizer.apply_chat_template(
        [
            {"role": "system", "content": system},
            {"role": "user", "content": f"Objective: GOAL\n\n{pages[0]}"},
            {"role": "assistant", "content": "REPLY"},
            {"role": "user", "content": pages[1]},
        ],
        tokenize=False,
        add_generation_prompt=True,
    )
    stream = [
        *template.opening("GOAL", "77"),
        *template.turn("page 1", "", "77"),
        *template.encode("REPLY"),
        *template.separator,
        *template.turn("page 2", "", "77"),
    ]
    assert template.source == "tokenizer"
    assert text_of(template, stream) == rendered


def test_a_turn_keeps_the_empty_thinking_block_of_its_template(chat: ChatTemplate) -> None:
    assert chat.source == "tokenizer"
    assert text_of(chat, chat.turn("page")).endswith("assistant\n<think>\n\n</think>\n\n")


def test_a_template_with_channels_replies_in_the_final_channel(
    chat_tokenizer: MakeTokenizer,
) -> None:
    template = ChatTemplate(chat_tokenizer(CHANNELS, eos="<|return|>"))
    assert template.source == "tokenizer"
    assert text_of(template, template.turn("page")).endswith("<|channel|>final<|message|>")
    ends = {template._tokenizer._untrusted.id_to_token(id) for id in template.end_ids}
    assert ends == {"<|end|>", "<|return|>"}


@pytest.mark.parametrize(
    ("template", "silent", "thinking", "end"),
    [
        pytest.param(
            CHATML,
            "assistant\n<think>\n\n</think>\n\n",
            "assistant\n<think>\n",
            "</think>\n\n",
            id="may think",
        ),
        pytest.param(
            CHATML.replace(
                "{% if enable_thinking is false %}<think>\n\n</think>\n\n{% endif %}", "<think>\n"
            ),
            "assistant\n<think>\n\n</think>\n\n",
            "assistant\n<think>\n",
            "</think>\n\n",
            id="always thinks",
        ),
        pytest.param(
            CHATML.replace("{% if enable_thinking is false %}<think>\n\n", "{% if true %}"),
            "assistant\n</think>\n\n",
            "assistant\n<think>\n",
            "</think>\n\n",
            id="closes only",
        ),
        pytest.param(
            CHATML.replace("<think>\n\n</think>\n\n", ""),
            "assistant\n",
            "assistant\n<think>\n",
            "</think>\n\n",
            id="says nothing of it",
        ),
        pytest.param(
            CHANNELS,
            "<|start|>assistant<|channel|>final<|message|>",
            "<|start|>assistant<|channel|>analysis<|message|>",
            "<|end|><|start|>assistant<|channel|>final<|message|>",
            id="channels",
        ),
    ],
)
def test_a_model_thinks_as_its_template_has_it_or_its_thought_is_closed(
    chat_tokenizer: MakeTokenizer, template: str, silent: str, thinking: str, end: str
) -> None:
    made = ChatTemplate(chat_tokenizer(template))
    assert (made.source, made.thinking) == ("tokenizer", None)
    assert text_of(made, made.turn("page")).endswith(silent)
    thinks = ChatTemplate(chat_tokenizer(template)).with_thoughts()
    assert text_of(thinks, thinks.turn("page")).endswith(thinking)
    assert thinks.thinking is not None
    assert text_of(thinks, list(thinks.thinking.end)) == end
    assert (
        thinks.thinking.end[0]
        not in thinks.thinking.forbidden
        >= thinks.end_ids - {thinks.thinking.end[0]}
    )


def test_a_model_without_a_sign_for_thoughts_does_not_think(plain_tokenizer: Tokenizer) -> None:
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=plain_tokenizer, eos_token="<|end|>")
    with pytest.raises(ValueError, match="does not think.*leave thinking at 0"):
        ChatTemplate(tokenizer).with_thoughts()


def test_without_a_system_role_the_first_user_message_has_the_instructions(
    chat_tokenizer: MakeTokenizer,
) -> None:
    template = ChatTemplate(chat_tokenizer(NO_SYSTEM, eos="<|end|>"))
    assert template.source == "tokenizer"
    opening = text_of(template, template.opening("GOAL"))
    assert opening.startswith("<bos><|start|>user<|message|>You reach an objective")


@pytest.mark.parametrize(
    ("template", "reason"),
    [
        (FORGETFUL, "renders earlier messages anew"),
        (None, "no chat template"),
        ("{{ nothing.at.all }}", "fails"),
        ("{{ messages[-1].content }}", "drops, repeats or reorders"),
    ],
)
def test_a_built_in_template_replaces_one_that_is_not_append_only(
    chat_tokenizer: MakeTokenizer, template: str | None, reason: str
) -> None:
    made = ChatTemplate(chat_tokenizer(template))
    assert made.source == "built-in"
    assert reason in made.reason
    assert text_of(made, list(made.separator)) == "<|im_end|>\n<|im_start|>user\n"


def test_without_chatml_tokens_the_built_in_template_is_plain_text(
    plain_tokenizer: Tokenizer,
) -> None:
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=plain_tokenizer, eos_token="<|end|>")
    template = ChatTemplate(tokenizer)
    assert template.end_ids == {plain_tokenizer.token_to_id("<|end|>")}
    assert text_of(template, template.turn("link", "", "77")) == (
        "<page 77>\nlink\n</page 77>\n\nAnswer:\n"
    )


def test_count_counts_tokens(plain: PlainTemplate, chat: ChatTemplate) -> None:
    templates: list[Template] = [plain, chat]
    for template in templates:
        assert template.count("link Blue Kayak [3]") == len(template.encode("link Blue Kayak [3]"))


def test_added_tokens_that_look_like_control_tokens_are_control_tokens(
    chat_tokenizer: MakeTokenizer,
) -> None:
    backend = chat_tokenizer(None).backend_tokenizer
    text = UntrustedTextTokenizer(backend)
    assert backend.token_to_id("<think>") in text.control_ids
    assert backend.token_to_id("[3]") not in text.control_ids
    assert backend.token_to_id("<think>") not in text.encode("a <think> b")
