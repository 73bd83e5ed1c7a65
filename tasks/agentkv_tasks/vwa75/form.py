"""Tasks that change something by filling in forms: threads, listings, letters, profiles."""

from agentkv_env.sites.classifieds.content import Listing
from agentkv_tasks.task import Evaluation
from agentkv_tasks.template import Draft, Draw, Template, all_of, shows
from agentkv_tasks.vwa75.steps import (
    choose,
    done,
    find_article,
    find_listing,
    find_product,
    find_thread,
    rewrite,
    write,
)

_COMMENTS = "document.querySelector('#comments').innerText"
_THREAD_COMMENTS = "[...document.querySelectorAll('.comment-body')].map(e => e.innerText).join()"
_QUESTIONS = (
    "Is it still available?",
    "Can I see it on Friday?",
    "How old is it exactly?",
    "Do you have the manual?",
)
_REMARKS = (
    "Thanks, I will try that.",
    "I agree with the first answer.",
    "Please keep us posted.",
    "This made my day.",
)


def _text(selector: str) -> str:
    return f"document.querySelector('{selector}').innerText"


def _foreign(draw: Draw) -> list[Listing]:
    me = draw.world.me.handle
    return [listing for listing in draw.world.classifieds.listings if listing.seller != me]


def _phone(draw: Draw) -> str:
    return f"555 {draw.rng.randint(2222, 7999)}"


def subscribe_to_a_board(draw: Draw) -> Draft:
    """One button on the board's page."""
    forum = draw.world.forum
    board = draw.rng.choice([b.name for b in forum.boards if b.name not in forum.subscribed])
    return Draft(
        intent="Subscribe to the board {{board}} on the forum.",
        values={"board": board},
        start="__REDDIT__",
        check=shows("__REDDIT__/boards", _text(f"#board-{board} .state"), exact_match="subscribed"),
        solution=["click [link: Boards]", f"click [link: {board}]", "click [button: Subscribe]",
                  done()],
    )  # fmt: skip


def vote_for_a_thread(draw: Draw) -> Draft:
    """One button on the thread's page, where the task starts."""
    thread = draw.rng.choice(draw.world.forum.threads)
    name, word = draw.rng.choice((("up", "Upvote"), ("down", "Downvote")))
    pressed = f"document.querySelector('#thread-{thread.id} .{name}').getAttribute('aria-pressed')"
    return Draft(
        intent=f"{word} this thread.",
        values={"thread": thread.title},
        start=f"__REDDIT__/thread/{thread.id}",
        check=shows(f"__REDDIT__/thread/{thread.id}", pressed, exact_match="true"),
        solution=[f"click [button: {word} thread]", done()],
    )


def comment_on_a_thread(draw: Draw) -> Draft:
    """Find a thread by its title and write below it."""
    thread = draw.rng.choice(draw.world.forum.threads)
    remark = draw.rng.choice(_REMARKS)
    return Draft(
        intent="Write the comment {{remark}} in the forum thread {{thread}}.",
        values={"remark": f'"{remark}"', "thread": thread.title},
        start="__REDDIT__",
        check=shows(f"__REDDIT__/thread/{thread.id}", _THREAD_COMMENTS, must_include=[remark]),
        solution=[*find_thread(thread.title), write("Comment", remark),
                  "click [button: Post comment]", done()],
    )  # fmt: skip


def reply_with_the_code_of_a_poster(draw: Draw) -> Draft:
    """The code is only in the picture; the form is on the next page."""
    posters = [(t, t.poster) for t in draw.world.forum.threads if t.poster is not None]
    thread, poster = draw.rng.choice(posters)
    asker = draw.rng.choice(thread.comments).author
    return Draft(
        intent="In the forum thread {{thread}}, reply to {{asker}} with the code on the poster.",
        values={"thread": thread.title, "asker": asker},
        start="__REDDIT__",
        check=shows(
            f"__REDDIT__/thread/{thread.id}", _THREAD_COMMENTS, must_include=[poster.code]
        ),
        solution=[*find_thread(thread.title), f"click [link: Reply to {asker}]",
                  write("Reply", poster.code), "click [button: Post reply]", done()],
        difficulty="medium",
        reads_image=True,
        turns_on=f"CODE {poster.code}",
        memory_distance_pages=1,
    )  # fmt: skip


def change_the_bio(draw: Draw) -> Draft:
    """The forum's settings."""
    hobby, other = draw.rng.sample(("bread", "canoes", "old maps", "owls", "stamps", "tea"), 2)
    bio = f"I collect {hobby} and {other}."
    return Draft(
        intent="Change my bio on the forum to: {{bio}}",
        values={"bio": bio},
        start="__REDDIT__",
        check=shows(f"__REDDIT__/user/{draw.world.me.handle}", _text(".bio"), exact_match=bio),
        solution=["click [link: Settings]", *rewrite("Bio", bio), "click [button: Save settings]",
                  done()],
    )  # fmt: skip


def motto_as_bio(draw: Draw) -> Draft:
    """A motto, only in a picture of the wiki, typed into the forum's settings in the other tab."""
    town = draw.rng.choice(draw.world.wiki.towns)
    return Draft(
        intent="Change my bio on the forum to the motto on the coat of arms of {{town}}. "
        "The wiki in the other tab shows it.",
        values={"town": town.name},
        start="__REDDIT__ |AND| __WIKIPEDIA__",
        check=shows(
            f"__REDDIT__/user/{draw.world.me.handle}", _text(".bio"), exact_match=town.motto
        ),
        solution=["tab_focus [1]", find_article(town.name), "tab_focus [0]",
                  "click [link: Settings]", *rewrite("Bio", town.motto),
                  "click [button: Save settings]", done()],
        difficulty="hard",
        reads_image=True,
        turns_on=town.motto,
        memory_distance_pages=3,
    )  # fmt: skip


def submit_a_thread(draw: Draw) -> Draft:
    """Board, title and body given."""
    board = draw.rng.choice(draw.world.forum.boards).name
    place = draw.rng.choice(draw.world.places)
    title = f"Anybody from {place} here?"
    body = draw.rng.choice(("I would like to meet.", "I am new in town.", "We need one more."))
    return Draft(
        intent="Submit a thread to the board {{board}} with the title {{title}} "
        "and the body {{body}}",
        values={"board": board, "title": f'"{title}"', "body": f'"{body}"'},
        start="__REDDIT__",
        check=all_of(
            shows(f"__REDDIT__/user/{draw.world.me.handle}", must_include=[title]),
            shows(f"__REDDIT__/board/{board}?sort=new", _text(".threads"), must_include=[title]),
            shows(f"__REDDIT__/thread/{len(draw.world.forum.threads) + 1}", _text(".thread-body"),
                  exact_match=body),
        ),
        solution=["click [link: Submit thread]", choose("Board", board), write("Title", title),
                  write("Body", body), "click [button: Submit]", done()],
        difficulty="medium",
    )  # fmt: skip


def ask_a_seller(draw: Draw) -> Draft:
    """A letter with a question and a phone number."""
    listing = draw.rng.choice(_foreign(draw))
    question, phone = draw.rng.choice(_QUESTIONS), _phone(draw)
    return Draft(
        intent="Send the seller of the {{listing}} the message {{question}} "
        "with my phone number {{phone}}.",
        values={"listing": listing.title, "question": f'"{question}"', "phone": phone},
        start="__CLASSIFIEDS__",
        check=all_of(
            _sent(listing, question),
            shows("__CLASSIFIEDS__/messages", _text(".message-phone"), exact_match=phone),
        ),
        solution=[*find_listing(listing.title), "click [link: Contact seller]",
                  write("Message", question), write("Your phone", phone),
                  "click [button: Send message]", done()],
        difficulty="medium",
    )  # fmt: skip


def tell_a_seller_the_serial_number(draw: Draw) -> Draft:
    """The number is only in the photo; the form is on the next page."""
    listing = draw.rng.choice([x for x in _foreign(draw) if x.photo.kind == "serial"])
    serial = listing.photo.fact
    return Draft(
        intent="Send the seller of the {{listing}} the serial number in its photo as a message.",
        values={"listing": listing.title},
        start="__CLASSIFIEDS__",
        check=_sent(listing, serial),
        solution=[*find_listing(listing.title), "click [link: Contact seller]",
                  write("Message", serial), "click [button: Send message]", done()],
        difficulty="medium",
        reads_image=True,
        turns_on=serial,
        memory_distance_pages=1,
    )  # fmt: skip


def _sent(listing: Listing, words: str) -> Evaluation:
    """The newest letter is about `listing` and holds `words`."""
    return all_of(
        shows("__CLASSIFIEDS__/messages", _text(".about"), exact_match=listing.title),
        shows("__CLASSIFIEDS__/messages", _text(".message-body"), must_include=[words]),
    )


def change_the_price_of_my_listing(draw: Draw) -> Draft:
    """One field of an own listing."""
    me = draw.world.me.handle
    listing = draw.rng.choice([x for x in draw.world.classifieds.listings if x.seller == me])
    price = listing.price + draw.rng.choice((-9, 11, 20, 35))
    return Draft(
        intent="Change the price of my {{listing}} on the classifieds to {{price}} dollars.",
        values={"listing": listing.title, "price": price},
        start="__CLASSIFIEDS__",
        check=shows(f"__CLASSIFIEDS__/listing/{listing.id}", _text(".listing-price"),
                    exact_match=f"${price}"),
        solution=["click [link: My listings]", f"click [link: Edit {listing.title}]",
                  *rewrite("Price in dollars", price), "click [button: Save changes]", done()],
    )  # fmt: skip


def delete_my_listing(draw: Draw) -> Draft:
    """Gone for good; the others stay."""
    me = draw.world.me.handle
    mine = [x for x in draw.world.classifieds.listings if x.seller == me]
    listing = draw.rng.choice(mine)
    others = [other.title for other in mine if other is not listing]
    table = _text(".mine")
    return Draft(
        intent="Delete my listing {{listing}} from the classifieds.",
        values={"listing": listing.title},
        start="__CLASSIFIEDS__",
        check=all_of(
            shows("__CLASSIFIEDS__/mine", table, must_exclude=[listing.title]),
            shows("__CLASSIFIEDS__/mine", table, must_include=others),
        ),
        solution=["click [link: My listings]", f"click [link: Delete {listing.title}]",
                  "click [button: Delete for good]", done()],
    )  # fmt: skip


def save_a_listing(draw: Draw) -> Draft:
    """One button on the listing's page."""
    saved = draw.world.classifieds.saved
    listing = draw.rng.choice([x for x in _foreign(draw) if x.id not in saved])
    return Draft(
        intent="Save the listing {{listing}} on the classifieds.",
        values={"listing": listing.title},
        start="__CLASSIFIEDS__",
        check=shows("__CLASSIFIEDS__/saved", _text(".rows"), must_include=[listing.title]),
        solution=[*find_listing(listing.title), "click [button: Save listing]", done()],
    )


def comment_on_five_listings(draw: Draw) -> Draft:
    """The same thing five times over, with nothing forgotten."""
    listings = draw.rng.sample(_foreign(draw), 5)
    question = draw.rng.choice(_QUESTIONS)
    rounds: list[str] = []
    for listing in listings:
        rounds += [*find_listing(listing.title), write("Comment", question),
                   "click [button: Post comment]"]  # fmt: skip
    values = {f"listing{number}": listing.title for number, listing in enumerate(listings, 1)}
    names = ", ".join(f"{{{{{key}}}}}" for key in values)
    return Draft(
        intent=f"Write the comment {{{{question}}}} under each of these listings: {names}.",
        values={"question": f'"{question}"', **values},
        start="__CLASSIFIEDS__",
        check=all_of(
            *(
                shows(f"__CLASSIFIEDS__/listing/{x.id}", _COMMENTS,
                      must_include=[f"{draw.world.me.handle}: {question}"])
                for x in listings
            )
        ),
        solution=[*rounds, done()],
        difficulty="hard",
    )  # fmt: skip
