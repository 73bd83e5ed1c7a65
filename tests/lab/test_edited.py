"""What a cache knows of a message that was dropped, on a model that knows nothing."""

from agentkv.dialog.messages import MessageTemplate
from agentkv_lab.edited import TREATMENTS, rows
from tests.agentkv.agent.conftest import chat_tokenizer as chat_tokenizer
from tests.agentkv.agent.conftest import random_llama
from tests.agentkv.serve.conftest import CHATML


def test_every_conversation_is_measured_under_each_treatment(chat_tokenizer):
    tokenizer = chat_tokenizer(CHATML)
    model, template = random_llama(len(tokenizer)), MessageTemplate(tokenizer)
    filler = [f"Sentence {number} says little of anything that matters." for number in range(60)]
    found = list(rows(model, template, filler, 2))
    assert [row.treatment for row in found] == [*TREATMENTS] * 2
    for at in (0, 5):
        kept, dropped, without, replaced, other = found[at : at + 5]
        assert dropped.tokens_read == 0 < replaced.tokens_read < without.tokens_read
        assert without.tokens_read < kept.tokens_read
        assert len({kept.nll, dropped.nll, without.nll, replaced.nll, other.nll}) == 5
        assert all(row.nll > 0 and row.nll_other > 0 for row in (kept, dropped, replaced))
