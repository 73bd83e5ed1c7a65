"""Form tasks on the forum, and the checks that they succeeded."""

from collections.abc import Sequence

from agentkv_tasks.task import Evaluation
from agentkv_tasks.template import Draft, Draw, all_of, shows, text, texts
from agentkv_tasks.vwa75.steps import find_thread, write

_REMARKS = (
    "Thanks, I will try that.",
    "I agree with the first answer.",
    "Please keep us posted.",
    "This made my day.",
)


def comment_posted(thread: int, *words: str) -> Evaluation:
    """Require the comments of the thread to include all of `words`."""
    return _thread_shows(thread, ".comment-body", words)


def reply_posted(thread: int, comment: int, words: str) -> Evaluation:
    """Require the replies to the comment to include `words`."""
    return _thread_shows(thread, f'[data-parent="{comment}"] .comment-body', [words])


def _thread_shows(thread: int, selector: str, words: Sequence[str]) -> Evaluation:
    return shows(f"__REDDIT__/thread/{thread}", texts(selector), must_include=words)


def thread_upvoted(thread: int) -> Evaluation:
    """Require the user's upvote on the thread."""
    pressed = f"document.querySelector('#thread-{thread} .up').getAttribute('aria-pressed')"
    return shows(f"__REDDIT__/thread/{thread}", pressed, exact_match="true")


def board_subscribed(draw: Draw, board: str) -> Evaluation:
    """Require a subscription to `board`, with all other subscriptions unchanged."""
    count = len(draw.world.forum.subscribed) + 1
    return all_of(
        shows("__REDDIT__/boards", text(f"#board-{board} .state"), exact_match="subscribed"),
        shows("__REDDIT__/boards", texts(".state", ""), exact_match="subscribed" * count),
    )


def draw_new_board(draw: Draw) -> str:
    """Draw a board that the user is not subscribed to."""
    forum = draw.world.forum
    return draw.rng.choice([b.name for b in forum.boards if b.name not in forum.subscribed])


def subscribe_to_a_board(draw: Draw) -> Draft:
    """Press one button on a board's page."""
    board = draw_new_board(draw)
    return Draft(
        wordings=(
            "Go to the board {{board}} on the forum and subscribe to it.",
            "I want to follow the forum board {{board}}: subscribe to it.",
            "Among the boards of the forum I also want to follow {{board}}: press Subscribe there.",
        ),
        unseen_wording=(
            "I keep missing what is new on the board {{board}}. Could you subscribe to it for me "
            "on the forum?"
        ),
        values={"board": board},
        start="__REDDIT__",
        check=board_subscribed(draw, board),
        solution=["click [link: Boards]", f"click [link: {board}]", "click [button: Subscribe]"],
    )  # fmt: skip


def vote_for_a_comment(draw: Draw) -> Draft:
    """Press one of many vote buttons on the thread page where the task starts."""
    thread = draw.rng.choice(draw.world.forum.threads)
    comment = draw.rng.choice(thread.comments)
    name, word = draw.rng.choice((("up", "Upvote"), ("down", "Downvote")))
    page = f"__REDDIT__/thread/{thread.id}"
    button = f"document.querySelector('#comment-{comment.id} .{name}')"
    return Draft(
        wordings=(
            f"{word} the comment by {{{{author}}}} on this page.",
            f"{word} what {{{{author}}}} wrote in this thread.",
            "In this thread there is a comment by {{author}}. It should get my "
            f"{word.lower()}.",
        ),
        unseen_wording=(
            f"I have read this page to the end. Can you {word.lower()} the comment by "
            "{{author}} for me?"
        ),
        values={"author": comment.author},
        start=page,
        check=all_of(
            shows(page, f"{button}.getAttribute('aria-pressed')", exact_match="true"),
            shows(page, "document.querySelectorAll('[aria-pressed=true]').length", exact_match="1"),
        ),
        solution=[f"click [button: {word} {comment.author}]"],
    )  # fmt: skip


def comment_on_a_thread(draw: Draw) -> Draft:
    """Find a thread by its title and comment on it."""
    thread = draw.rng.choice(draw.world.forum.threads)
    remark = draw.rng.choice(_REMARKS)
    return Draft(
        wordings=(
            "Write the comment {{remark}} in the forum thread {{thread}}.",
            "Comment {{remark}} on the thread {{thread}}.",
            "In the forum there is a thread {{thread}}. I want to say this in a comment: "
            "{{remark}}",
        ),
        unseen_wording=(
            "The people in the forum thread {{thread}} are waiting for me. Would you post the "
            "comment {{remark}} there?"
        ),
        values={"remark": f'"{remark}"', "thread": thread.title},
        start="__REDDIT__",
        check=comment_posted(thread.id, remark),
        solution=[*find_thread(thread.title), write("Comment", remark),
                  "click [button: Post comment]"],
    )  # fmt: skip


def change_the_bio(draw: Draw) -> Draft:
    """Change the bio in the forum settings."""
    place, other = draw.rng.sample(draw.world.places, 2)
    bio = f"I live in {place} and often go to {other}."
    return Draft(
        wordings=(
            "Change my bio on the forum to: {{bio}}",
            "On the forum, my bio should read: {{bio}}",
            "I want a new bio in my settings on the forum. This is the text: {{bio}}",
        ),
        unseen_wording=(
            "My bio on the forum is out of date. Could you change it in the settings to this "
            "text? {{bio}}"
        ),
        values={"bio": bio},
        start="__REDDIT__",
        check=shows(f"__REDDIT__/user/{draw.world.me.handle}", text(".bio"), exact_match=bio),
        solution=["click [link: Settings]", write("Bio", bio), "click [button: Save settings]"],
    )  # fmt: skip
