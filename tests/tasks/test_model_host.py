"""The host of the shipped model and its connections; threads act as the workers."""

import multiprocessing
import multiprocessing.connection
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch

from agentkv.build import load_run_model, make_acting
from agentkv.cache.cache import Cache
from agentkv.cache.hf.compat import cache_in
from agentkv.cache.packed import PackedForward
from agentkv.models.local import LocalModel
from agentkv.models.model import ContextLimit, OutOfMemory, Reply
from agentkv.settings import PolicySettings
from agentkv_env.page import Box, Node, Page
from agentkv_env.timing import Stopwatch
from agentkv_tasks.run.checkpoints import Checkpointed
from agentkv_tasks.run.model_host import Host
from agentkv_tasks.run.remote import (
    Ask,
    Begin,
    ModelGone,
    NotSaved,
    Peaks,
    RemoteModel,
    ReplyFailed,
)
from agentkv_tasks.settings import RunSettings

SETTINGS = RunSettings(model="nano", device="cpu", budget=64)
POLICIES = (("full", None), ("conf-kv-int8", 128), ("window", 64))
BOX = Box(1, 2, 3, 4)


@pytest.fixture(scope="module")
def nano() -> Iterator[LocalModel]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    model = load_run_model(SETTINGS)
    assert model is not None
    yield model
    torch.set_num_threads(before)


def page_of(number: int) -> Page:
    names = ("Blue Kayak", "Red Tent", "Rope", "Add to cart")
    nodes = tuple(Node("element", "link", name, BOX, id=id) for id, name in enumerate(names))
    return Page(f"http://shop.localhost/{number}", f"Page {number}", nodes * (1 + number))


def serve(host: Host, workers: list[threading.Thread]) -> None:
    """Run the main loop of the process until all workers are done."""
    while any(worker.is_alive() for worker in workers):
        for connection in (
            multiprocessing.connection.wait(host.connections, timeout=0.01)
            if host.connections
            else ()
        ):
            host.receive(connection)  # type: ignore[arg-type]
        host.step()


def started(host: Host, *works: Callable[[RemoteModel], None]) -> list[threading.Thread]:
    """Start a worker for each function, each with its own connection."""
    threads = []
    for work in works:
        ours, theirs = multiprocessing.Pipe()
        host.connect(theirs)
        thread = threading.Thread(target=lambda w=work, c=ours: w(RemoteModel(c)), daemon=True)
        thread.start()
        threads.append(thread)
    return threads


def untimed(reply: Reply) -> Reply:
    return replace(reply, prefill_s=0, decode_s=0)


def test_remote_replies_equal_local_replies(nano: LocalModel) -> None:
    replies: dict[str, list[Reply]] = {}

    def worker(policy: str, budget: int | None) -> Callable[[RemoteModel], None]:
        def work(model: RemoteModel) -> None:
            conversation = model.with_cache(PolicySettings(name=policy), budget).begin(
                policy, seed=3
            )
            replies[policy] = [
                conversation.reply(page_of(i), "error: x" if i else "") for i in range(3)
            ]
            assert model.end() == Peaks()  # other episodes shared the process

        return work

    host = Host(nano, SETTINGS)
    serve(host, started(host, *(worker(*each) for each in POLICIES)))
    for policy, budget in POLICIES:
        settings = SETTINGS.model_copy(update={"budget": budget})
        acting = make_acting(settings, policy=PolicySettings(name=policy), model=nano)
        conversation = acting.begin(policy, seed=3)
        for i, reply in enumerate(replies[policy]):
            assert untimed(reply) == untimed(
                conversation.reply(page_of(i), "error: x" if i else "")
            )


@pytest.mark.parametrize("deterministic", [True, False])
def test_only_deterministic_replies_are_decoded_in_separate_forwards(
    nano: LocalModel, deterministic: bool
) -> None:
    caches: list[type] = []
    begun = threading.Barrier(2)

    def work(model: RemoteModel) -> None:
        conversation = model.with_cache(PolicySettings(name="full"), None).begin("goal")
        begun.wait()
        conversation.reply(page_of(1))
        assert model.end() == Peaks()

    def record(module: object, args: object, given: dict[str, object]) -> None:
        caches.append(type(cache_in(given)))

    host = Host(nano, SETTINGS.model_copy(update={"deterministic": deterministic}))
    hook = nano.model.register_forward_pre_hook(record, with_kwargs=True)
    try:
        serve(host, started(host, work, work))
    finally:
        hook.remove()
    assert caches and (PackedForward in caches) is not deterministic


def test_a_profiled_reply_brings_the_parts_of_the_models_process(nano: LocalModel) -> None:
    read: list[dict[str, float]] = []
    seconds: list[float] = []

    def work(model: RemoteModel) -> None:
        started, stopwatch = time.monotonic(), Stopwatch()
        full = model.with_cache(PolicySettings(name="full"), None, stopwatch=stopwatch)
        full.begin("goal").reply(page_of(0))
        read.append(stopwatch.read())
        seconds.append(time.monotonic() - started)

    host = Host(nano, SETTINGS.model_copy(update={"profile": True}))
    serve(host, started(host, work))
    assert {"tokenizer", "grammar", "reading", "decoding"} <= set(read[0])
    assert all(part > 0 for part in read[0].values())
    assert sum(read[0].values()) <= seconds[0]


def test_an_episode_may_end_before_its_reply_has_come(nano: LocalModel) -> None:
    peaks: list[Peaks] = []
    replies: list[Reply] = []

    def work(model: RemoteModel) -> None:
        full = model.with_cache(PolicySettings(name="full"), None)
        first = full.begin("goal")
        first.reply(page_of(0))
        first.ask(page_of(1))
        peaks.append(model.end())
        replies.append(full.begin("goal").reply(page_of(2)))
        peaks.append(model.end())

    host = Host(nano, SETTINGS)
    serve(host, started(host, work))
    assert [bool(each.rss_bytes) for each in peaks] == [True, True]
    assert replies[0].text


def test_a_deterministic_episode_reports_no_memory_peaks(nano: LocalModel) -> None:
    peaks: list[Peaks] = []

    def work(model: RemoteModel) -> None:
        model.with_cache(PolicySettings(name="full"), None).begin("goal").reply(page_of(0))
        peaks.append(model.end())

    host = Host(nano, SETTINGS.model_copy(update={"deterministic": True}))
    serve(host, started(host, work))
    assert peaks == [Peaks()]


def test_an_episode_that_ran_alone_reports_its_memory_peaks(nano: LocalModel) -> None:
    peaks: list[Peaks] = []

    def work(model: RemoteModel) -> None:
        model.with_cache(PolicySettings(name="full"), None).begin("goal").reply(page_of(0))
        peaks.append(model.end())
        peaks.append(model.end())

    host = Host(nano, SETTINGS)
    serve(host, started(host, work))
    assert peaks[0].rss_bytes and peaks[0].rss_bytes > 50e6
    assert peaks[0].allocator_bytes is None
    assert peaks[1] == Peaks()  # no second episode has begun


def test_a_broken_connection_leaves_the_others_working(nano: LocalModel) -> None:
    ours, theirs = multiprocessing.Pipe()
    replies: list[Reply] = []

    def work(model: RemoteModel) -> None:
        conversation = model.with_cache(PolicySettings(name="full"), None).begin("goal")
        replies.extend(conversation.reply(page_of(i)) for i in range(2))

    host = Host(nano, SETTINGS)
    host.connect(theirs)
    ours.recv()
    ours.send(Begin(PolicySettings(name="full"), None, "another goal", 0))
    ours.send(Ask(page_of(2), "", None))
    host.receive(theirs)
    host.receive(theirs)
    host.step()
    assert host.is_busy and len(host.connections) == 1
    ours.close()
    serve(host, started(host, work))
    assert len(replies) == 2 and not host.is_busy


def test_errors_in_the_models_process_are_raised_in_the_worker(nano: LocalModel) -> None:
    raised: list[type[BaseException]] = []

    def work(model: RemoteModel) -> None:
        full = model.with_cache(PolicySettings(name="full"), None)
        with pytest.raises(TimeoutError) as late:
            full.begin("goal").reply(page_of(0), deadline=time.monotonic() - 1)
        with pytest.raises(ReplyFailed, match=r"PolicyError: .*budget") as failed:
            model.with_cache(PolicySettings(name="window"), 0).begin("goal").reply(page_of(0))
        conversation = full.begin("goal")
        with pytest.raises(ContextLimit) as outgrown:
            conversation.reply(page_of(0), note="long " * 40000)
        raised.extend([late.type, failed.type, outgrown.type])
        assert full.begin("goal").reply(page_of(0)).text  # the connection still works

    host = Host(nano, SETTINGS)
    serve(host, started(host, work))
    assert raised == [TimeoutError, ReplyFailed, ContextLimit]


@pytest.mark.parametrize(
    "error", [partial(torch.OutOfMemoryError, "CUDA out of memory"), MemoryError]
)
def test_an_episode_without_memory_ends_and_the_others_go_on(
    nano: LocalModel, error: Callable[[], Exception]
) -> None:
    raised: list[str] = []
    replies: list[Reply] = []
    caches: list[weakref.ref[Cache]] = []

    def long(model: RemoteModel) -> None:
        full = model.with_cache(PolicySettings(name="full"), None)
        conversation = full.begin("goal")
        for _ in range(2):  # it stays ended
            with pytest.raises(OutOfMemory, match=r"no memory was left.*a smaller budget") as out:
                conversation.reply(page_of(0), note="long " * 1000)
            raised.append(str(out.value))
            assert [cache() for cache in caches] == [None]
        replies.append(full.begin("goal").reply(page_of(1)))

    def short(model: RemoteModel) -> None:
        conversation = model.with_cache(PolicySettings(name="full"), None).begin("goal")
        replies.extend(conversation.reply(page_of(i)) for i in range(3))

    def fail(module: object, args: object, given: dict[str, object]) -> None:
        cache = cache_in(given)
        if isinstance(cache, Cache) and cache.seen > 900:
            caches.append(weakref.ref(cache))
            raise error()

    host = Host(nano, SETTINGS.model_copy(update={"deterministic": True}))  # no shared forwards
    hook = nano.model.register_forward_pre_hook(fail, with_kwargs=True)
    try:
        serve(host, started(host, long, short))
    finally:
        hook.remove()
    assert len(raised) == 2 and len(replies) == 4


def test_a_run_and_its_workers_load_neither_torch_nor_pandas_before_they_need_it() -> None:
    code = (
        "import sys, agentkv_tasks.run.command, agentkv_tasks.run.worker;"
        "sys.exit(bool({'torch', 'pandas'} & sys.modules.keys()))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_lost_model_raises_model_gone() -> None:
    ours, theirs = multiprocessing.Pipe()
    theirs.close()
    with pytest.raises(ModelGone):
        RemoteModel(ours)


def test_a_saved_episode_goes_on_at_another_connection(nano: LocalModel, tmp_path: Path) -> None:
    replies: list[list[Reply]] = []
    acting = (PolicySettings(name="conf-kv-int8"), 128)

    def first(model: RemoteModel) -> None:
        conversation = model.with_cache(*acting).begin("goal", seed=3)
        conversation.reply(page_of(0))
        conversation.save(tmp_path / "saved")
        replies.append([conversation.reply(page_of(i)) for i in (1, 2)])
        model.end()

    def second(model: RemoteModel) -> None:
        conversation = model.with_cache(*acting).load(tmp_path / "saved")
        assert conversation.num_turns == 1
        replies.append([conversation.reply(page_of(i)) for i in (1, 2)])
        assert model.end() == Peaks()  # its peak may lie in an earlier process
        with pytest.raises(NotSaved, match="saved with the budget 128"):
            model.with_cache(acting[0], 64).load(tmp_path / "saved")

    for work in (first, second):
        host = Host(nano, SETTINGS)
        serve(host, started(host, work))
    before, after = replies
    assert [untimed(reply) for reply in before] == [untimed(reply) for reply in after]


@pytest.mark.parametrize("may_save", [True, False])
def test_a_conversation_is_saved_between_two_replies_if_it_may_be(
    nano: LocalModel, tmp_path: Path, may_save: bool
) -> None:
    folder = tmp_path / "saved"
    seen = []

    def work(model: RemoteModel) -> None:
        acting = model.with_cache(PolicySettings(name="full"), None)
        saving = Checkpointed(acting, folder, 0.0, lambda: may_save, resumed=None)
        conversation = saving.begin("goal")
        for number in range(2):
            conversation.reply(page_of(number))
            seen.append(folder.exists())

    host = Host(nano, SETTINGS)
    serve(host, started(host, work))
    assert seen == [False, may_save]


def test_an_episode_goes_on_where_no_checkpoint_can_be_written(
    nano: LocalModel, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    replies: list[Reply] = []

    def work(model: RemoteModel) -> None:
        acting = model.with_cache(PolicySettings(name="full"), None)
        saving = Checkpointed(acting, tmp_path / "file" / "saved", 0.0, lambda: True, resumed=None)
        conversation = saving.begin("goal")
        replies.extend(conversation.reply(page_of(number)) for number in range(2))

    host = Host(nano, SETTINGS)
    serve(host, started(host, work))
    assert len(replies) == 2 and "no checkpoint: " in capfd.readouterr().err
