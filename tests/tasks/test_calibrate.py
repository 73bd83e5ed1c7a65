"""`agentkv calibrate`: recordings of episodes and texts, thresholds, and the policy file."""

import io
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from agentkv.build import make_policy
from agentkv.dialog.prompt import PlainTemplate
from agentkv.models.load import load_model
from agentkv.models.local import LocalModel
from agentkv.policies.allocators import Linear
from agentkv.policies.gates import Confident
from agentkv.policies.recall import Always, LookBack, Unsure, Unsurest
from agentkv.settings import PolicySettings
from agentkv.trace import Episode, Step, TraceWriter
from agentkv_env.page import Box, Node, Page
from agentkv_tasks.calibrate.calibrate import Calibration, best_of, calibrate, check, policy_file
from agentkv_tasks.calibrate.draws import DRAWS
from agentkv_tasks.calibrate.layers import SLOPES
from agentkv_tasks.calibrate.looks import BLOCKS, STRETCHES, Heard
from agentkv_tasks.calibrate.recorded import READ, WRITTEN, CalibrationError, of_runs, of_text
from agentkv_tasks.calibrate.trial import Outcome
from agentkv_tasks.calibrate.weights import WEIGHTS, quantile
from agentkv_tasks.results import Results, Row
from agentkv_tasks.settings import RunSettings

MakeRow = Callable[..., Row]
LINES = [f"link Bee number {i * i % 97} of hive {i} [{i}]" for i in range(90)]


@pytest.fixture(scope="module")
def nano() -> LocalModel:
    return load_model("nano")


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("text") / "bees.txt"
    path.write_text("\n".join(LINES))
    return path


@pytest.fixture(scope="module")
def short(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A text of one part that is read, and one that is written."""
    path = tmp_path_factory.mktemp("text") / "few-bees.txt"
    path.write_text("\n".join(LINES[:42]))
    return path


# ---- recordings


def test_a_text_is_read_and_written_in_turn(text: Path, nano: LocalModel) -> None:
    [recording] = of_text(text, nano.template)
    assert recording.ids == nano.template.encode(text.read_text())
    first, second, third, *_ = recording.parts
    assert first == (0, READ, False) and second == (READ, READ + WRITTEN, True)
    assert third[0] == READ + WRITTEN and not third[2]
    assert recording.num_goal == 0


def record(folder: Path, row: Row, conversation_model: LocalModel, goal: str) -> list[int]:
    """Write the trace of an episode of two replies, and return what the cache has read."""
    nodes = [Node("element", "link", f"Bee {i}", Box(0, 9 * i, 9, 9), id=i) for i in range(9)]
    page = Page("http://shop.localhost/", "Bees", tuple(nodes))
    conversation = conversation_model.with_cache("full").begin(goal, seed=row.seed)
    with TraceWriter(folder / row.trace, head={"goal": goal}) as trace:
        for index, note in enumerate(("", "error: x")):
            reply = conversation.reply(page, note)
            trace.step(
                Step(
                    index=index, url=page.url, observation=reply.observation, note=note,
                    reply=reply.text, action="", error="", num_tokens_in=0, num_tokens_out=0,
                    seen_tokens=0, cache_bytes=0, cache_peak_bytes=0, prefill_s=0, decode_s=0,
                    seconds=0,
                )
            )  # fmt: skip
        trace.end(Episode(status="stopped", answer="", steps=(), seconds=0.0))
    ids = conversation.cache.ids
    assert ids is not None
    return [*ids[0].tolist(), *conversation._stream.pending]


def test_a_recorded_episode_has_the_ids_that_its_cache_had_read(
    nano: LocalModel, tmp_path: Path, row: MakeRow
) -> None:
    expected = []
    with Results(tmp_path / "results.jsonl") as results:
        for policy, goal in (("window", "Find the bee"), ("full", "Find the other bee")):
            each = row(model="nano", policy=policy, seed=3, trace=f"{policy}.jsonl")
            expected.append(record(tmp_path, each, nano, goal))
            results.append(each)
        results.append(row(model="another", policy="full", task_id=9, trace="full.jsonl"))
    [recording] = of_runs([tmp_path], nano.template, model="nano")  # the one under full
    assert recording.ids == expected[1]
    assert recording.num_goal == len(nano.template.opening("Find the other bee"))
    written = [
        recording.ids[start:stop] for start, stop, is_written in recording.parts if is_written
    ]
    assert len(written) == 2
    end = nano.template.separator[0]
    assert isinstance(nano.template, PlainTemplate) and all(ids[-1] == end for ids in written)


# ---- thresholds

HEARD = st.lists(
    st.tuples(st.integers(1, 4), st.sampled_from((0.1, 0.5, 0.5, 0.9, 0.99, 1.0)), st.booleans()),
    min_size=1,
    max_size=30,
)


@given(HEARD, st.floats(0.01, 0.99), st.integers(0, 3))
def test_the_threshold_is_the_lowest_with_the_wanted_share(
    heard: list[tuple[int, float, bool]], share: float, stretch: int
) -> None:
    listened, place = Heard(), 0
    for gap, confidence, could_look in heard:
        place += gap
        listened.positions.append(place)
        listened.confidences.append(confidence)
        listened.note(could_look=could_look)
    unsure = Unsure(listened.threshold(share, stretch), stretch)
    # counted by hand: a token looks if one of the last `stretch` positions or its own was an alarm
    pairs = list(zip(listened.positions, listened.confidences, strict=True))
    alarms = {position for position, confidence in pairs if confidence < unsure.threshold}
    looks = [
        could_look and any(0 <= position - alarm <= stretch for alarm in alarms)
        for position, could_look in zip(listened.positions, listened.could_look, strict=True)
    ]
    found = listened.share(unsure)
    assert found == pytest.approx(sum(looks) / max(1, sum(listened.could_look)))
    lower = [value for value in {c for _, c, _ in heard} if value + 1e-9 < unsure.threshold]
    assert all(listened.share(Unsure(value + 1e-9, stretch)) < share for value in lower)


def test_an_alarm_ends_with_its_recording() -> None:
    heard = Heard([5, 6, 2, 3], [0.1, 1.0, 1.0, 1.0], [True] * 4)
    assert heard.share(Unsure(0.5, stretch=9)) == 2 / 4


# ---- the whole


@pytest.fixture(scope="module")
def calibrated(
    text: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[list[Outcome], Path, str]]:
    out = tmp_path_factory.mktemp("out") / "policy.toml"
    console = Console(width=80, record=True, file=io.StringIO())
    found = calibrate(calibration(text=text, out=out, share=0.2), console)
    yield found, out, console.export_text()


def calibration(policy: str = "lookback", model: str = "nano", **changes: object) -> Calibration:
    settings = RunSettings.read(policies=[policy], model=model, budget=64, chunk=64)
    values: dict[str, object] = {"settings": settings, "fit": "looks", "share": 0.2, "threads": 1}
    values |= changes
    return Calibration(**values)  # type: ignore[arg-type]


@pytest.mark.slow
def test_every_candidate_looks_back_about_as_often_as_wanted(
    calibrated: tuple[list[Outcome], Path, str],
) -> None:
    full, without, *candidates = calibrated[0]
    assert full.share is None and without.share is None and without.cold_bytes == 0
    assert full.peak_bytes > without.peak_bytes and full.nll < without.nll
    recalls = [each.policy.recall for each in candidates]
    tried = [(each.blocks, each.when) for each in recalls if isinstance(each, LookBack)]
    assert [blocks for blocks, _ in tried[: len(BLOCKS)]] == list(BLOCKS)
    assert [when.stretch for _, when in tried[len(BLOCKS) :] if isinstance(when, Unsure)] == list(
        STRETCHES
    )
    assert tried[-1][1] == Unsurest(0.2) and candidates[-1].threshold is None
    for each in (*candidates[: len(BLOCKS)], candidates[-1]):
        assert each.share == pytest.approx(0.2, abs=0.06) and each.cold_bytes > 0


@pytest.mark.slow
def test_the_file_holds_the_candidate_that_predicts_best(
    calibrated: tuple[list[Outcome], Path, str],
) -> None:
    (_, _, *candidates), out, said = calibrated
    made = make_policy(PolicySettings(name=str(out)))
    best = best_of(candidates)
    assert best.nll == min(each.nll for each in candidates)
    assert made.recall == best.policy.recall and isinstance(made.recall, LookBack)
    assert str(out) in said.replace("\n", "") and f"{best.label} *" in " ".join(said.split())
    assert all(len(line) <= 80 for line in said.splitlines() if str(out) not in line)


def test_weights_are_compared_with_as_many_unsure_tokens(short: Path, tmp_path: Path) -> None:
    out, console = tmp_path / "weights.toml", Console(file=io.StringIO())
    wanted = calibration("conf-kv-int8", text=short, out=out, fit="weights", share=0.3)
    full, *candidates = calibrate(wanted, console)
    assert len(candidates) == len(WEIGHTS) + 1 and full.threshold is None
    assert sum(each.share == pytest.approx(0.3, abs=0.06) for each in candidates) >= 5
    best = best_of(candidates)
    gate = make_policy(PolicySettings(name=str(out))).gate
    assert isinstance(gate, Confident) and gate == best.policy.gate
    assert gate.threshold == best.threshold


@given(st.lists(st.floats(0, 1), min_size=1, max_size=20), st.floats(0.01, 0.99))
def test_a_quantile_has_its_share_of_the_values_below_it(values: list[float], share: float) -> None:
    found = quantile(values, share)
    below = sum(value < found for value in values)
    assert found in values and below <= round(share * len(values))


def test_layers_are_compared_at_equal_sums(short: Path, tmp_path: Path) -> None:
    out, console = tmp_path / "layers.toml", Console(file=io.StringIO())
    wanted = calibration("h2o", text=short, out=out, fit="layers")
    _, own, *candidates = calibrate(wanted, console)
    assert len(candidates) == len(SLOPES) and own.label == "its own"
    allocators = [each.policy.allocator for each in candidates]
    assert [each.slope for each in allocators if isinstance(each, Linear)] == list(SLOPES)
    # slopes that sum to the budget take as many bytes, but for the granularity of entries
    peaks = [each.peak_bytes for each in candidates]
    assert max(peaks) < 1.2 * min(peaks)
    made = make_policy(PolicySettings(name=str(out)))
    assert made.allocator == best_of([own, *candidates]).policy.allocator


@pytest.mark.slow
def test_draws_are_compared_by_the_tokens_that_fetch(short: Path, tmp_path: Path) -> None:
    out, console = tmp_path / "draw.toml", Console(file=io.StringIO())
    wanted = calibration("lookback-int4", text=short, out=out, fit="draw")
    full, without, *candidates = calibrate(wanted, console)
    assert full.share is None and without.share is None and len(candidates) == len(DRAWS)
    shares = [each.share or 0.0 for each in candidates]
    assert 1 == shares[0] >= shares[1] > shares[-1] and sorted(shares, reverse=True) == shares
    recall = make_policy(PolicySettings(name=str(out))).recall
    assert isinstance(recall, LookBack) and recall.when == Always()
    assert recall == best_of(candidates).policy.recall and recall.draw in DRAWS


@pytest.mark.parametrize("when", [Unsurest(0.3), Unsure(0.4, 3)])
@pytest.mark.parametrize("bound", [None, 700])
def test_a_chosen_alarm_is_read_back_from_the_file_of_its_policy(
    tmp_path: Path, bound: int | None, when: Unsurest | Unsure
) -> None:
    base = make_policy(PolicySettings(name="lookback"))
    recall = LookBack(when, blocks=3, draw=0.1, reads="all", cold=bound)
    chosen = Outcome("", replace(base, recall=recall), 1.0, 0.5, 1, 1)
    out = tmp_path / "policy.toml"
    out.write_bytes(policy_file(calibration(text=None, out=out), chosen))
    assert make_policy(PolicySettings(name=str(out))).recall == replace(recall, short=0)


def test_a_policy_that_evicts_gets_a_recall(text: Path, tmp_path: Path) -> None:
    assert check(calibration("h2o", text=text, out=tmp_path / "h2o.toml")).name == "h2o"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": "solution"}, "is a script"),
        ({"policy": "full"}, "full evicts nothing"),
        ({"policy": "lookbak"}, "lookback"),
        ({"fit": "loks"}, "--fit 'loks' is unknown; known: looks, draw, weights, layers"),
        ({"fit": "weights"}, "lookback has no confidence gate"),
        ({"policy": "mine.toml"}, "cannot be the base of another"),
        ({"share": 0.0}, "more than 0, less than 1"),
        ({"share": float("nan")}, "more than 0, less than 1"),
        ({"text": None}, "one of the two"),
        ({"runs": (Path("runs"),)}, "one of the two"),
        ({"out": Path("policy.json")}, r"ends with \.toml"),
    ],
)
def test_wrong_options_are_refused_before_a_model_is_loaded(
    text: Path, tmp_path: Path, changes: dict[str, object], message: str
) -> None:
    values = {"text": text, "out": tmp_path / "policy.toml", **changes}
    with pytest.raises(ValueError, match=message):
        check(calibration(**values))  # type: ignore[arg-type]


def test_a_file_is_not_overwritten_unasked(text: Path, tmp_path: Path) -> None:
    out = tmp_path / "policy.toml"
    out.write_text("mine")
    with pytest.raises(CalibrationError, match="exists already"):
        check(calibration(text=text, out=out))
    check(calibration(text=text, out=out, fresh=True))
    assert out.read_text() == "mine"


def test_recordings_in_which_nothing_is_evicted_are_refused(
    tmp_path: Path, nano: LocalModel
) -> None:
    short, long = tmp_path / "short.txt", tmp_path / "long.txt"
    short.write_text("bees")
    long.write_text("\n".join(LINES[:60]))
    with pytest.raises(
        CalibrationError, match="has 2 tokens for this model; expected at least 512"
    ):
        of_text(short, nano.template)
    console, out = Console(file=io.StringIO()), tmp_path / "policy.toml"
    settings = RunSettings.read(policies=["lookback"], model="nano", budget=5000)
    with pytest.raises(CalibrationError, match="nothing was evicted .* and the budget is 5000"):
        calibrate(calibration(settings=settings, text=long, out=out), console)
    assert not out.exists()


def test_runs_without_what_the_model_has_read_are_refused(
    nano: LocalModel, tmp_path: Path, row: MakeRow
) -> None:
    with Results(tmp_path / "results.jsonl") as results:
        results.append(row(model="solution", trace="a.jsonl"))
        results.append(row(model="nano", trace="../b.jsonl", task_id=1))
    with pytest.raises(CalibrationError, match="no episode of nano with a trace"):
        of_runs([tmp_path], nano.template, model="nano")
