"""Tasks that change something by filling in forms: threads, listings, letters, profiles."""

from agentkv_tasks.template import Draft, Draw, Template, all_of, shows
from agentkv_tasks.vwa75 import listings
from agentkv_tasks.vwa75.steps import (
    choose,
    done,
    find_article,
    find_product,
    find_thread,
    rewrite,
    write,
)

_THREAD_COMMENTS = (
    "[...document.querySelectorAll('.comment-body')].map(e => e.innerText).join(' | ')"
)
_REMARKS = (
    "Thanks, I will try that.",
    "I agree with the first answer.",
    "Please keep us posted.",
    "This made my day.",
)


def _text(selector: str) -> str:
    return f"document.querySelector('{selector}').innerText"


def subscribe_to_a_board(draw: Draw) -> Draft:
    """One button on the board's page."""
    forum = draw.world.forum
    board = draw.rng.choice([b.name for b in forum.boards if b.name not in forum.subscribed])
    return Draft(
        intent=draw.rng.choice(
            (
                "Subscribe to the board {{board}} on the forum.",
                "I want to follow the forum board {{board}}: subscribe to it.",
            )
        ),
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
        intent=draw.rng.choice(
            (
                "Write the comment {{remark}} in the forum thread {{thread}}.",
                "Comment {{remark}} on the thread {{thread}}.",
            )
        ),
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
    asked = draw.rng.choice(thread.comments)
    return Draft(
        intent="In the forum thread {{thread}}, reply to {{asker}} with the code on the poster.",
        values={"thread": thread.title, "asker": asked.author},
        start="__REDDIT__",
        check=shows(
            f"__REDDIT__/thread/{thread.id}",
            f"[...document.querySelectorAll('[data-parent=\"{asked.id}\"] .comment-body')]"
            ".map(e => e.innerText).join(' | ')",
            must_include=[poster.code],
        ),
        solution=[*find_thread(thread.title), f"click [link: Reply to {asked.author}]",
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
        intent=draw.rng.choice(
            (
                "Change my bio on the forum to: {{bio}}",
                "On the forum, my bio should read: {{bio}}",
            )
        ),
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


def change_my_phone_number_in_the_shop(draw: Draw) -> Draft:
    """One field of the shop's profile."""
    phone = f"555 {draw.rng.randint(2222, 7999)}"
    return Draft(
        intent=draw.rng.choice(
            (
                "Change my phone number in the shop to {{phone}}.",
                "My new phone number is {{phone}}. Update my profile in the shop.",
            )
        ),
        values={"phone": phone},
        start="__SHOPPING__",
        check=shows("__SHOPPING__/account", _text("#profile-phone"), exact_match=phone),
        solution=["click [link: Account]", "click [link: Edit profile]", *rewrite("Phone", phone),
                  "click [button: Save profile]", done()],
    )  # fmt: skip


def review_a_product(draw: Draw) -> Draft:
    """Stars, a title and a text for something the shop sells."""
    product = draw.rng.choice(draw.world.shop.products)
    stars = draw.rng.choice((2, 3, 4, 5))
    title, text = draw.rng.choice(
        (("As described", "Nothing to add."), ("A gift", "My sister liked it."),
         ("For the price", "It does what it should."))
    )  # fmt: skip
    return Draft(
        intent="Review the {{product}} in the shop with {{stars}} stars, the title {{title}} "
        "and the text {{text}}",
        values={"product": product.name, "stars": stars, "title": f'"{title}"',
                "text": f'"{text}"'},
        start="__SHOPPING__",
        check=all_of(
            *(
                shows(f"__SHOPPING__/product/{product.number}", _text(f".review-{part}"),
                      exact_match=value)
                for part, value in (("stars", str(stars)), ("title", title), ("text", text))
            )
        ),
        solution=[*find_product(product.name), "click [link: Write a review]",
                  choose("Rating", f"{stars} stars"), write("Title", title),
                  write("Review", text), "click [button: Send review]", done()],
        difficulty="medium",
    )  # fmt: skip


def add_an_address_in_a_sellers_town(draw: Draw) -> Draft:
    """The town is on the seller's page of the classifieds, in the other tab."""
    content = draw.world.classifieds
    seller = draw.rng.choice([s for s in content.sellers if s.handle != draw.world.me.handle])
    street, code = f"{draw.rng.randint(2, 97)} Mill Lane", draw.rng.randint(10000, 99999)
    me = draw.world.me.name
    return Draft(
        intent="Add an address to my account in the shop: label Friend, name {{me}}, street and "
        "number {{street}}, postcode {{code}}, town: the home town of the seller in the other tab.",
        values={"me": me, "street": street, "code": code},
        start=f"__SHOPPING__ |AND| __CLASSIFIEDS__/seller/{seller.handle}",
        check=shows("__SHOPPING__/account/addresses", _text("#addresses"),
                    must_include=[f"{me}, {street}, {code} {seller.town}"]),
        solution=["tab_focus [1]", "tab_focus [0]", "click [link: Account]",
                  "click [link: Addresses]", "click [link: Add an address]",
                  write("Label", "Friend"), write("Name", me), write("Street and number", street),
                  write("Town", seller.town), write("Postcode", code),
                  "click [button: Save address]", done()],
        difficulty="hard",
        memory_distance_pages=7,
    )  # fmt: skip


TEMPLATES: tuple[Template, ...] = (
    Template(subscribe_to_a_board),
    Template(vote_for_a_thread),
    Template(comment_on_a_thread),
    Template(reply_with_the_code_of_a_poster),
    Template(change_the_bio),
    Template(motto_as_bio),
    Template(submit_a_thread),
    Template(change_my_phone_number_in_the_shop),
    Template(review_a_product),
    Template(add_an_address_in_a_sellers_town),
    Template(listings.ask_a_seller),
    Template(listings.tell_a_seller_the_serial_number),
    Template(listings.change_the_price_of_my_listing),
    Template(listings.delete_my_listing),
    Template(listings.save_a_listing),
    Template(listings.post_a_listing),
    Template(listings.sell_a_festival_ticket),
    Template(listings.comment_on_five_listings),
)
