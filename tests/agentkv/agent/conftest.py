"""Small real components: freshly trained tokenizers, random Llamas, handmade pages and a site."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from threading import Thread

import pytest
import torch
from playwright.async_api import Page as AsyncPage
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from agentkv.async_session import async_browser
from agentkv.dialog.prompt import PlainTemplate
from agentkv.models.load import local_model
from agentkv.models.local import LocalModel
from agentkv_env.browser import Browser
from agentkv_env.page import Box, Node, Page
from agentkv_env.session import Session
from tests.callers_page import callers_chromium as callers_chromium
from tests.callers_page import callers_page as callers_page
from tests.local_site import Handler, served

CORPUS = [
    "link Blue Kayak button Add to cart textbox Search ```click ```type ```stop page url title"
]


def train_tokenizer(specials: Sequence[str]) -> Tokenizer:
    """Train a byte-level tokenizer in which each of `[0]` to `[199]` is one id."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=list(specials),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS * 8, trainer)
    tokenizer.add_tokens([AddedToken(f"[{id}]", normalized=False) for id in range(200)])
    return tokenizer


@pytest.fixture(scope="session")
def plain_tokenizer() -> Tokenizer:
    return train_tokenizer(PlainTemplate.SPECIALS)


@pytest.fixture(scope="session")
def chat_tokenizer() -> Callable[..., PreTrainedTokenizerFast]:
    """Return a function that makes a transformers tokenizer with a chat template or without."""
    specials = (
        *("<|im_start|>", "<|im_end|>", "<bos>", "<eos>", "<|start|>", "<|message|>"),
        *("<|channel|>", "<|end|>", "<|return|>"),
    )
    trained = train_tokenizer(specials)
    # control tokens that are not declared special
    trained.add_tokens([AddedToken(f"<{sign}think>", normalized=False) for sign in ("", "/")])

    def make(template: str | None, *, eos: str = "<|im_end|>") -> PreTrainedTokenizerFast:
        tokenizer = PreTrainedTokenizerFast(
            tokenizer_object=Tokenizer.from_str(trained.to_str()), bos_token="<bos>", eos_token=eos
        )
        tokenizer.chat_template = template
        return tokenizer

    return make


def random_llama(vocabulary: int, *, max_positions: int = 32768) -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=max_positions,
        initializer_range=0.3,
    )
    return LlamaForCausalLM(config).eval()


@pytest.fixture
def tiny_model(plain_tokenizer: Tokenizer) -> LocalModel:
    """A random model with `PlainTemplate` and more logits than ids, as in padded checkpoints."""
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=plain_tokenizer, eos_token="<|end|>")
    model = random_llama(plain_tokenizer.get_vocab_size() + 8)
    return local_model(model, tokenizer, name="tiny")


@pytest.fixture
def short_model(plain_tokenizer: Tokenizer) -> LocalModel:
    """A random model whose 512 positions hold a turn or two."""
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=plain_tokenizer, eos_token="<|end|>")
    model = random_llama(plain_tokenizer.get_vocab_size(), max_positions=512)
    return local_model(model, tokenizer, name="short")


@pytest.fixture
def tiny_chat_model(chat_tokenizer: Callable[..., PreTrainedTokenizerFast]) -> LocalModel:
    """A random model with the built-in ChatML template."""
    tokenizer = chat_tokenizer(None)
    return local_model(random_llama(len(tokenizer)), tokenizer, name="tiny-chat")


BOX = Box(10, 20, 30, 40)


@pytest.fixture
def page() -> Page:
    """A search page with links, a text, a field, a select and two equal buttons; more is below."""
    nodes = (
        Node("element", "heading", "Results for kayak", BOX),
        Node("element", "link", "Blue Kayak", BOX, id=3),
        Node("element", "link", "Red [12] `Kayak`", BOX, id=4),
        Node("text", "text", "$39.00", BOX),
        Node("element", "textbox", "Search", BOX, id=5, value="kayak"),
        Node("element", "combobox", "Sort by", BOX, id=6, options=("Price", "Name (A-Z)")),
        Node("element", "button", "Add to cart", BOX, id=7),
        Node("element", "button", "Add to cart", BOX, id=18),
    )
    url = "http://shop.localhost/search?q=kayak"
    return Page(url, "Results for kayak", nodes, pixels_below=300)


PAGES = {
    "/": """<title>Home</title><h1>Harbour club</h1>
        <a href="/boats">Boats</a> <button>Idle</button>
        <button onclick="this.nextSibling.data = ++n">Count</button>0<script>n = 0</script>
        <form action="/search"><label>Search <input name="q"></label></form>""",
    "/boats": "<title>Boats</title><h1>Boats</h1><p>The Heron: berth 42.</p><a href='/'>Home</a>",
    "/search": "<title>Found</title><h1>Found</h1><p>Nothing.</p>",
    "/sign-in": """<title>Sign in</title><label>Name <input></label>
        <label>Password <input type="password"></label>""",
}


class _Site(Handler):
    def do_GET(self) -> None:
        body = PAGES.get(self.path.partition("?")[0])
        self.send((body or "").encode(), status=200 if body else 404)


@pytest.fixture(scope="session")
def site() -> Iterator[str]:
    """Serve a small site and yield its origin."""
    with served(_Site) as origin:
        yield origin.replace("127.0.0.1", "localhost")


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    with Browser.launch() as browser:
        yield browser


OnPage = Callable[[str, Callable[[AsyncPage], Awaitable[None]]], None]


@pytest.fixture(scope="module")
def on_page() -> Iterator[OnPage]:
    """Return a function that runs a coroutine with a page of the async API that shows a URL.

    The pages share a browser and its event loop, which runs in a thread of its own.
    """
    loop = asyncio.new_event_loop()
    thread = Thread(target=loop.run_forever)
    thread.start()

    def run(work: Awaitable[AsyncPage | None]) -> AsyncPage | None:
        async def main() -> AsyncPage | None:
            return await work

        return asyncio.run_coroutine_threadsafe(main(), loop).result()

    running = async_browser()
    first = run(running.__aenter__())
    assert first is not None and first.context.browser is not None
    chromium = first.context.browser

    def on_page(url: str, test: Callable[[AsyncPage], Awaitable[None]]) -> None:
        async def on_new_page() -> None:
            context = await chromium.new_context()
            try:
                page = await context.new_page()
                await page.goto(url)
                await test(page)
            finally:
                await context.close()

        run(on_new_page())

    yield on_page
    run(running.__aexit__(None, None, None))  # type: ignore[arg-type]
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


@pytest.fixture
def session(browser: Browser, site: str) -> Iterator[Session]:
    """A session on the small site's home page."""
    with browser.session(hosts=[site.removeprefix("http://")]) as session:
        session.open(site + "/")
        yield session
