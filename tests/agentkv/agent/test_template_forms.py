"""Chat templates are used as their folders have them: by name, and with content as they take it."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from transformers import PreTrainedTokenizerFast

from agentkv.dialog.chat import ChatTemplate
from agentkv.dialog.messages import Chat, MessageTemplate, TemplateError
from agentkv.models.load import load_model, local_model
from agentkv.models.local import LocalModel
from agentkv.models.refused import ModelError

MakeTokenizer = Callable[..., PreTrainedTokenizerFast]

TOOL = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}
TALK = [
    {"role": "system", "content": "SYS"},
    {"role": "user", "content": "ONE"},
    {"role": "assistant", "content": "REPLY"},
    {"role": "user", "content": "TWO"},
]
TALKED = "".join(f"<|im_start|>{m['role']}\n{m['content']}<|im_end|>\n" for m in TALK)
PROMPT = "<|im_start|>assistant\n"


def chatml(content: str) -> str:
    """ChatML with this in place of a message's content."""
    return (
        "{% for m in messages %}<|im_start|>{{ m.role }}\n" + content + "<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}" + PROMPT + "{% endif %}"
    )


TEXT = chatml("{{ m.content }}")
PARTS = "{% for p in m.content if p.type == 'text' %}{{ p.text }}{% endfor %}"
WITH_FUNCTIONS = "{% if tools %}<|im_start|>functions {{ tools|tojson }}\n{% endif %}" + TEXT
FORMS = {
    "text": "{{ m.content }}",
    "parts": PARTS,
    "first part": "{{ m['content'][0]['text'] }}",
    "filtered": "{{ m.content|selectattr('type', 'equalto', 'text')|map(attribute='text')|join }}",
    "system text": "{% if m.role == 'system' %}{{ m.content }}{% else %}" + PARTS + "{% endif %}",
    "user parts": "{% if m.role == 'user' %}" + PARTS + "{% else %}{{ m.content }}{% endif %}",
    "reply parts": "{% if m.role == 'assistant' %}"
    + PARTS
    + "{% else %}{{ m.content }}{% endif %}",
    "either": "{% if m.content is string %}{{ m.content }}{% else %}" + PARTS + "{% endif %}",
    "system first": "{% if messages[0].role != 'system' %}{{ raise_exception('no') }}{% endif %}"
    + PARTS,
}


def text_of(template: MessageTemplate, chat: Chat) -> str:
    return "".join(map(template.decode, template.opening(chat)))


@pytest.mark.parametrize("form", FORMS)
def test_a_template_gets_content_in_the_form_that_it_shows(
    chat_tokenizer: MakeTokenizer, form: str
) -> None:
    tokenizer = chat_tokenizer(chatml(FORMS[form]))
    messages = MessageTemplate(tokenizer)
    assert text_of(messages, Chat(TALK)) == TALKED + PROMPT
    following = messages.decode(messages.following(Chat(TALK), 3))
    assert following == "<|im_end|>\n<|im_start|>user\nTWO<|im_end|>\n" + PROMPT
    agent = ChatTemplate(tokenizer)
    assert agent.source == "tokenizer", agent.reason
    turn = messages.decode(agent.turn("PAGE", nonce="7"))
    assert turn == "<page 7>\nPAGE\n</page 7><|im_end|>\n" + PROMPT


def test_a_template_that_shows_content_in_no_form_is_replaced(
    chat_tokenizer: MakeTokenizer,
) -> None:
    tokenizer = chat_tokenizer(chatml("{{ m.text }}"))
    assert text_of(MessageTemplate(tokenizer), Chat(TALK)) == TALKED + PROMPT
    agent = ChatTemplate(tokenizer)
    assert (agent.source, agent.reason) == (
        "built-in",
        "the chat template drops, repeats or reorders messages",
    )


@pytest.mark.parametrize("role", ["user", "assistant", "system"])
def test_no_message_is_dropped_without_a_word(chat_tokenizer: MakeTokenizer, role: str) -> None:
    """Whatever the reason, such as the place of a message."""
    template = MessageTemplate(
        chat_tokenizer(
            chatml("{% if loop.index != 5 %}{{ m.content|replace('late', 'LATE') }}{% endif %}")
        )
    )
    late = {"role": role, "content": "late"}
    assert "LATE" in text_of(template, Chat([*TALK, TALK[2], late]))
    with pytest.raises(TemplateError, match=rf"drops messages\[4\], from '{role}'"):
        template.opening(Chat([*TALK, late]))
    with pytest.raises(TemplateError, match=rf"drops messages\[4\], from '{role}'"):
        template.following(Chat([*TALK, late, TALK[1]]), 3)
    # what was read before stays as it is
    template.following(Chat([*TALK, late, TALK[2], TALK[1]]), 6)


def test_functions_are_rendered_by_the_template_for_them(chat_tokenizer: MakeTokenizer) -> None:
    tokenizer = chat_tokenizer(None)
    tokenizer.chat_template = {"default": TEXT, "tool_use": WITH_FUNCTIONS, "rag": "documents"}
    template = MessageTemplate(tokenizer)
    assert text_of(template, Chat(TALK)) == TALKED + PROMPT
    with_functions = text_of(template, Chat(TALK, [TOOL]))
    assert with_functions.startswith("<|im_start|>functions [{")
    assert with_functions.endswith(TALKED + PROMPT)
    assert ChatTemplate(tokenizer).source == "tokenizer"


def test_templates_without_a_default_are_refused_with_their_names(
    tiny_chat_model: LocalModel, chat_tokenizer: MakeTokenizer
) -> None:
    tokenizer = chat_tokenizer(None)
    tokenizer.chat_template = {"rag": TEXT, "tool_use": TEXT}
    with pytest.raises(ModelError, match="are named rag, tool_use, and none is named default"):
        local_model(tiny_chat_model.model, tokenizer, name="mine")


FOLDERS = {
    "a list": {"tokenizer_config.json": [("default", TEXT), ("tool_use", WITH_FUNCTIONS)]},
    "files": {"chat_template.jinja": TEXT, "tool_use.jinja": WITH_FUNCTIONS},
    "a file beside the config": {"tokenizer_config.json": TEXT, "tool_use.jinja": WITH_FUNCTIONS},
    "a processor's": {"chat_template.json": TEXT, "tool_use.jinja": WITH_FUNCTIONS},
}


@pytest.mark.parametrize("kind", FOLDERS)
def test_templates_are_found_wherever_folders_keep_them(
    tiny_chat_model: LocalModel, tmp_path: Path, kind: str
) -> None:
    tiny_chat_model.model.save_pretrained(tmp_path)
    tiny_chat_model.source_tokenizer.save_pretrained(tmp_path)
    (tmp_path / "additional_chat_templates").mkdir()
    for name, template in FOLDERS[kind].items():
        if name == "tool_use.jinja":
            (tmp_path / "additional_chat_templates" / name).write_text(str(template))
        elif name.endswith(".jinja"):
            (tmp_path / name).write_text(str(template))
        else:
            path = tmp_path / name
            config = json.loads(path.read_text()) if path.exists() else {}
            if isinstance(template, list):
                template = [{"name": each, "template": text} for each, text in template]
            path.write_text(json.dumps(config | {"chat_template": template}))
    local = load_model(tmp_path, device="cpu")
    template = MessageTemplate(local.source_tokenizer)
    assert text_of(template, Chat(TALK)) == TALKED + PROMPT
    assert "functions [{" in text_of(template, Chat(TALK, [TOOL]))
