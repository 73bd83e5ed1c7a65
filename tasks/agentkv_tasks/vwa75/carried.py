"""Form tasks that need a fact read many pages earlier, often on another site."""

from agentkv_env.sites.site import money
from agentkv_tasks.template import Draft, Draw, all_of, shows, text
from agentkv_tasks.vwa75.forum import (
    board_subscribed,
    comment_posted,
    draw_new_board,
    reply_posted,
    thread_upvoted,
)
from agentkv_tasks.vwa75.shop import draw_postcode, draw_product, draw_street, save_address
from agentkv_tasks.vwa75.steps import (
    choose,
    find_article,
    find_product,
    find_thread,
    write,
)


def motto_as_bio(draw: Draw) -> Draft:
    """Copy a motto that appears only in a wiki image into the forum settings."""
    town = draw.rng.choice(draw.world.wiki.towns)
    board = draw_new_board(draw)
    return Draft(
        wordings=(
            "Find {{town}} in the wiki and read the motto on its coat of arms. Then go to the "
            "forum in the other tab, subscribe to the board {{board}}, and change my bio in the "
            "settings to that motto.",
            "The wiki shows the coat of arms of {{town}} with its motto. On the forum in the "
            "other tab, first subscribe to the board {{board}}, then make the motto my bio.",
            "What is the motto on the coat of arms of {{town}}? Look it up in the wiki: it should "
            "become my bio on the forum in the other tab. Before that, I want a subscription to "
            "the board {{board}} there.",
        ),
        unseen_wording=(
            "I am proud of {{town}} and want its motto as my bio on the forum. Would you read the "
            "motto on the coat of arms in the wiki, then go to the forum in the other tab, "
            "subscribe to the board {{board}} for me, and change my bio in the settings?"
        ),
        values={"town": town.name, "board": board},
        start="__WIKIPEDIA__ |AND| __REDDIT__",
        check=all_of(
            board_subscribed(draw, board),
            shows(f"__REDDIT__/user/{draw.world.me.handle}", text(".bio"), exact_match=town.motto),
        ),
        solution=[find_article(town.name), "tab_focus [1]", "click [link: Boards]",
                  f"click [link: {board}]", "click [button: Subscribe]", "click [link: Settings]",
                  write("Bio", town.motto), "click [button: Save settings]"],
        difficulty="hard",
        reads_image=True,
        turns_on=town.motto,
        memory_distance_pages=5,
        needs=[town.motto],
    )  # fmt: skip


def address_of_a_seller(draw: Draw) -> Draft:
    """Add a shop address from a name on the classifieds and a town in the wiki."""
    content, me = draw.world.classifieds, draw.world.me.handle
    seller = draw.rng.choice([one for one in content.sellers if one.handle != me])
    town = draw.rng.choice(draw.world.wiki.towns)
    product, house, code = draw_product(draw), draw_street(draw), draw_postcode(draw)
    label = draw.rng.choice(("Friend", "Seller", "Parcels"))
    return Draft(
        wordings=(
            "Read the name of the seller in the second tab, and the twin town of {{town}} in the "
            "wiki in the third tab. In the shop, add the {{product}} to the comparison. Then add "
            "an address to my account: label {{label}}, the seller's name, {{house}}, the twin "
            "town, postcode {{code}}.",
            "The second tab shows a seller with a name; the wiki in the third tab knows the twin "
            "town of {{town}}. Read both. Then add the {{product}} to the comparison in the shop "
            "and add an address to my account with the label {{label}}, that name, the street "
            "{{house}}, that twin town and the postcode {{code}}.",
            "I want the {{product}} in the comparison of the shop, and after it a new address in "
            "my account: label {{label}}, the name of the seller in the second tab, {{house}}, "
            "the twin town of {{town}}, postcode {{code}}. The twin town is in the wiki in the "
            "third tab. Read the name and the twin town first.",
        ),
        unseen_wording=(
            "My parcels for a seller go to a new place. Could you read the seller's name in the "
            "second tab and the twin town of {{town}} in the wiki in the third tab? Then please "
            "add the {{product}} to the comparison in the shop, and an address to my account: "
            "label {{label}}, that name, {{house}}, that twin town, postcode {{code}}."
        ),
        values={"town": town.name, "product": product.name, "label": label, "house": house,
                "code": code},
        start=f"__SHOPPING__ |AND| __CLASSIFIEDS__/seller/{seller.handle} |AND| __WIKIPEDIA__",
        check=all_of(
            shows("__SHOPPING__/compare", text("#compare"), must_include=[product.name]),
            shows("__SHOPPING__/account/addresses", text("#addresses"),
                  must_include=[f"{seller.name}, {house}, {code} {town.twin}", label]),
        ),
        solution=["tab_focus [1]", "tab_focus [2]", find_article(town.name), "tab_focus [0]",
                  *find_product(product.name), "click [button: Add to comparison]",
                  "click [link: Account]", "click [link: Addresses]",
                  "click [link: Add an address]",
                  *save_address(label, seller.name, house, town.twin, code)],
        difficulty="hard",
        memory_distance_pages=10,
        needs=[seller.name, town.twin],
    )  # fmt: skip


def thread_from_three_articles(draw: Draw) -> Draft:
    """Submit a forum thread that contains three names from the wiki."""
    wiki = draw.world.wiki
    maker, festival = draw.rng.choice(wiki.makers), draw.rng.choice(wiki.festivals)
    town = draw.rng.choice(wiki.towns)
    thread = draw.rng.choice(draw.world.forum.threads)
    board = draw.rng.choice(draw.world.forum.boards).name
    return Draft(
        wordings=(
            "Read three names in the wiki: the founder of {{maker}}, the organiser of "
            "{{festival}} and the mayor of {{town}}. Then go to the forum in the other tab and "
            "upvote the thread {{thread}}. After that submit a thread to the board {{board}}: the "
            "title is the founder, the body is the organiser and the mayor.",
            "Look up the founder of {{maker}}, the organiser of {{festival}} and the mayor of "
            "{{town}} in the wiki. Then, on the forum in the other tab, upvote the thread "
            "{{thread}} and submit a new thread to the board {{board}} with the founder as its "
            "title and the organiser and the mayor as its body.",
            "Who founded {{maker}}, who is the organiser of {{festival}} and who is the mayor of "
            "{{town}}? The wiki says so. On the forum in the other tab, the thread {{thread}} "
            "should get my upvote, and then the board {{board}} a new thread from me: its title "
            "is the founder, its body the organiser and the mayor.",
        ),
        unseen_wording=(
            "I am writing about well-known people. Could you find the founder of {{maker}}, the "
            "organiser of {{festival}} and the mayor of {{town}} in the wiki? Then, on the forum "
            "in the other tab, please upvote the thread {{thread}} and submit a thread to the "
            "board {{board}} that has the founder as its title and the organiser and the mayor as "
            "its body."
        ),
        values={"maker": maker.name, "festival": festival.name, "town": town.name,
                "thread": thread.title, "board": board},
        start="__WIKIPEDIA__ |AND| __REDDIT__",
        check=all_of(
            thread_upvoted(thread.id),
            shows(f"__REDDIT__/board/{board}?sort=new", text(".threads"),
                  must_include=[maker.founder]),
            *(
                shows(f"__REDDIT__/thread/{len(draw.world.forum.threads) + 1}", text(part),
                      must_include=names)
                for part, names in (("h1", [maker.founder]),
                                    (".thread-body", [festival.organiser, town.mayor]))
            ),
        ),
        solution=[find_article(maker.name), find_article(festival.name), find_article(town.name),
                  "tab_focus [1]", *find_thread(thread.title), "click [button: Upvote thread]",
                  "click [link: Submit thread]", choose("Board", board),
                  write("Title", maker.founder),
                  write("Body", f"{festival.organiser}, {town.mayor}"),
                  "click [button: Submit]"],
        difficulty="hard",
        memory_distance_pages=8,
        needs=[maker.founder, festival.organiser, town.mayor],
    )  # fmt: skip


def prices_in_a_thread(draw: Draw) -> Draft:
    """Post one shop price as a comment and another as a reply to a comment."""
    one, other = draw.rng.sample(draw.world.shop.products, 2)
    thread = draw.rng.choice(draw.world.forum.threads)
    asked = draw.rng.choice(thread.comments)
    first, second = money(one.cents), money(other.cents)
    return Draft(
        wordings=(
            "Read the prices of the {{one}} and the {{other}} in the shop. Then open the thread "
            "{{thread}} on the forum in the other tab. Write the first price as a comment there, "
            "and reply to {{asked}} with the second price.",
            "What do the {{one}} and the {{other}} cost in the shop? On the forum in the other "
            "tab, write the price of the first as a comment in the thread {{thread}}, and the "
            "price of the second as a reply to {{asked}}.",
            "Two prices are missing in the forum thread {{thread}} in the other tab. As a "
            "comment, I want the price of the {{one}} there, and as a reply to {{asked}} the "
            "price of the {{other}}. Look up both prices in the shop first.",
        ),
        unseen_wording=(
            "People on the forum want to know prices. Can you look up what the {{one}} and the "
            "{{other}} cost in the shop, and then write the first price as a comment in the "
            "thread {{thread}} on the forum in the other tab, and the second price as a reply to "
            "{{asked}}?"
        ),
        values={"one": one.name, "other": other.name, "thread": thread.title,
                "asked": asked.author},
        start="__SHOPPING__ |AND| __REDDIT__",
        check=all_of(comment_posted(thread.id, first), reply_posted(thread.id, asked.id, second)),
        solution=[*find_product(one.name), *find_product(other.name), "tab_focus [1]",
                  *find_thread(thread.title), write("Comment", first),
                  "click [button: Post comment]", f"click [link: Reply to {asked.author}]",
                  write("Reply", second), "click [button: Post reply]"],
        difficulty="hard",
        memory_distance_pages=6,
        needs=[first, second],
    )  # fmt: skip


def codes_of_two_posters(draw: Draw) -> Draft:
    """Comment on a thread with two codes that appear only in the images of two other threads."""
    with_poster = [(t, t.poster) for t in draw.world.forum.threads if t.poster is not None]
    (one, first), (other, second) = draw.rng.sample(with_poster, 2)
    thread = draw.rng.choice([t for t in draw.world.forum.threads if t.poster is None])
    board = draw_new_board(draw)
    return Draft(
        wordings=(
            "Open the threads {{one}} and {{other}} on the forum and read the codes on their "
            "posters. Then subscribe to the board {{board}}. Then write both codes in one comment "
            "in the thread {{thread}}.",
            "Read the code on the poster of the forum thread {{one}} and the code on the poster "
            "of the thread {{other}}. After that subscribe to the board {{board}}, open the "
            "thread {{thread}}, and comment with the two codes.",
            "I want one comment in the forum thread {{thread}} with two codes: the code on the "
            "poster of the thread {{one}} and the code on the poster of the thread {{other}}. "
            "Read them first, and subscribe to the board {{board}} before the comment.",
        ),
        unseen_wording=(
            "The forum threads {{one}} and {{other}} have posters with codes that my friends "
            "need. Could you read both codes, subscribe to the board {{board}} for me, and then "
            "write the codes in one comment in the thread {{thread}}?"
        ),
        values={"one": one.title, "other": other.title, "board": board, "thread": thread.title},
        start="__REDDIT__",
        check=all_of(board_subscribed(draw, board),
                     comment_posted(thread.id, first.code, second.code)),
        solution=[*find_thread(one.title), *find_thread(other.title), "click [link: Boards]",
                  f"click [link: {board}]", "click [button: Subscribe]",
                  *find_thread(thread.title), write("Comment", f"{first.code}, {second.code}"),
                  "click [button: Post comment]"],
        difficulty="hard",
        reads_image=True,
        turns_on=f"CODE {first.code}",
        memory_distance_pages=7,
        needs=[first.code, second.code],
    )  # fmt: skip


def tracking_code_for_the_shop(draw: Draw) -> Draft:
    """Send the shop a tracking code that appears only in an image, after two other errands."""
    order = draw.rng.choice(draw.world.shop.orders)
    product, often = draw_product(draw), draw.rng.choice(("Weekly", "Monthly"))
    words = draw.rng.choice(("Where is my parcel?", "The box was open.", "I was not at home."))
    messages = "__SHOPPING__/account/messages"
    return Draft(
        wordings=(
            "Open my order {{order}} and read the tracking code on its parcel label. Then add the "
            "{{product}} to my wishlist, and edit my profile: newsletter {{often}}. Then contact "
            "the shop: topic Delivery, the message {{words}} and the tracking code.",
            "Read the tracking code on the parcel label of my order {{order}}. After that keep "
            "the {{product}} on my wishlist, set the newsletter in my profile to {{often}}, and "
            "write to the shop on the page Contact: topic Delivery, message {{words}} and the "
            "tracking code of the order.",
            "Which tracking code is on the parcel label of my order {{order}}? Remember it for a "
            "message to the shop. Before the message, I want the {{product}} on my wishlist and "
            "the newsletter in my profile set to {{often}}. The message has the topic Delivery, "
            "the text {{words}} and the tracking code.",
        ),
        unseen_wording=(
            "Something is wrong with my order {{order}}. Can you read the tracking code on its "
            "parcel label, put the {{product}} on my wishlist, and set the newsletter in my "
            "profile to {{often}}? Then please contact the shop: topic Delivery, the message "
            "{{words}} and the tracking code."
        ),
        values={"order": order.number, "product": product.name, "often": often,
                "words": f'"{words}"'},
        start="__SHOPPING__",
        check=all_of(
            shows("__SHOPPING__/wishlist", text("#wishlist"), must_include=[product.name]),
            shows("__SHOPPING__/account", text("#profile-newsletter"), exact_match=often),
            shows(messages, text(".message-topic"), exact_match="Delivery"),
            shows(messages, text(".message-order"), exact_match=order.tracking),
            shows(messages, text(".message-text"), exact_match=words),
        ),
        solution=["click [link: Orders]", f"click [link: Order {order.number}]",
                  *find_product(product.name), "click [button: Add to wishlist]",
                  "click [link: Account]", "click [link: Edit profile]",
                  choose("Newsletter", often), "click [button: Save profile]",
                  "click [link: Contact]", choose("Topic", "Delivery"), write("Message", words),
                  write("Order number or tracking code", order.tracking),
                  "click [button: Send message]"],
        difficulty="hard",
        reads_image=True,
        turns_on=order.tracking,
        memory_distance_pages=10,
        needs=[order.tracking],
    )  # fmt: skip
