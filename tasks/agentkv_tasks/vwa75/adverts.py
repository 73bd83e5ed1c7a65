"""Form tasks on the classifieds that need facts from other pages and from photos."""

from agentkv_env.sites.classifieds.content import Category
from agentkv_tasks.task import Evaluation
from agentkv_tasks.template import Draft, Draw, all_of, shows, text
from agentkv_tasks.vwa75.listings import message_sent, my_listings, others_listings
from agentkv_tasks.vwa75.steps import (
    choose,
    find_article,
    find_listing,
    find_thread,
    write,
)

_THINGS = (("canoe", "boats"), ("violin", "music"), ("bookcase", "furniture"), ("kite", "toys"))


def listing_with_my_phone(draw: Draw) -> Draft:
    """Post a listing that contains two facts from two account pages of the shop."""
    category, thing = _draw_item(draw)
    price, condition = draw.rng.randint(12, 480), draw.rng.choice(("Like new", "Used", "For parts"))
    phone, home = f"555 {1000 + draw.world.seed % 9000}", draw.world.shop.addresses[0]
    title = f"{draw.rng.choice(draw.world.region.brands)} {thing}"
    return Draft(
        wordings=(
            "Read my phone number on the page Account of the shop, and the town of my Home "
            "address on the page Addresses. Then post a listing on the classifieds in the other "
            "tab: title {{title}}, category {{category}}, price {{price}} dollars, that town, "
            "condition {{condition}}. The description is my phone number.",
            "The shop has my phone number under Account and the town of my Home address under "
            "Addresses: read both first. Then post a listing on the classifieds in the other tab "
            "with the title {{title}}, the category {{category}}, the price {{price}} dollars, "
            "that town, the condition {{condition}} and my phone number as the description.",
            "I want to sell something on the classifieds in the other tab: title {{title}}, "
            "category {{category}}, price {{price}} dollars, condition {{condition}}. The town is "
            "the town of my Home address and the description is my phone number. The shop has the "
            "phone number under Account and the town under Addresses: look there before the "
            "listing is posted.",
        ),
        unseen_wording=(
            "I am clearing out the cellar. Could you look up my phone number under Account in the "
            "shop and the town of my Home address under Addresses, and then post a listing on the "
            "classifieds in the other tab? It has the title {{title}}, the category {{category}}, "
            "the price {{price}} dollars, that town, the condition {{condition}}, and my phone "
            "number as the description."
        ),
        values={"title": title, "category": category.name, "price": price, "condition": condition},
        start="__SHOPPING__ |AND| __CLASSIFIEDS__",
        check=_listing_posted(draw, title=title, category=category.name, price=f"${price}",
                              town=home.place, condition=condition, description=phone),
        solution=["click [link: Account]", "click [link: Addresses]", "tab_focus [1]",
                  "click [link: Post a listing]", write("Title", title),
                  choose("Category", category.name), write("Price in dollars", price),
                  choose("Town", home.place), f"click [radio: {condition}]",
                  write("Description", phone), "click [button: Publish listing]"],
        difficulty="medium",
        memory_distance_pages=8,
        needs=[home.place, phone],
    )  # fmt: skip


def serial_and_phone_of_two_photos(draw: Draw) -> Draft:
    """Write to a seller with facts that appear only in the photos of two other listings."""
    listings = others_listings(draw)
    serial = draw.rng.choice([one for one in listings if one.photo.kind == "serial"])
    phone = draw.rng.choice([one for one in listings if one.photo.kind == "phone"])
    saved = draw.world.classifieds.saved
    wanted = draw.rng.choice(
        [one for one in listings if one.photo.kind == "none" and one.id not in saved]
    )
    return Draft(
        wordings=(
            "Read the serial number in the photo of the {{serial}} and the phone number in the "
            "photo of the {{phone}}. Then save the listing {{wanted}} and contact its seller: the "
            "message is that serial number, your phone is that phone number.",
            "Open the listing {{serial}} and read the serial number in its photo. Open the "
            "listing {{phone}} and read the phone number in its photo. Then save the listing "
            "{{wanted}} and write to its seller: message the serial number, phone the phone "
            "number.",
            "The listing {{wanted}} should be among my saved ones, and its seller should get a "
            "message from me. The message is the serial number in the photo of the {{serial}}, my "
            "phone is the phone number in the photo of the {{phone}}. Look at these two photos "
            "first.",
        ),
        unseen_wording=(
            "I am after the {{wanted}}. Could you save that listing and contact its seller for "
            "me? The message is the serial number in the photo of the {{serial}}, and my phone is "
            "the phone number in the photo of the {{phone}}, so look at these two photos first."
        ),
        values={"serial": serial.title, "phone": phone.title, "wanted": wanted.title},
        start="__CLASSIFIEDS__",
        check=all_of(
            message_sent(wanted, serial.photo.fact, phone.photo.fact),
            shows("__CLASSIFIEDS__/saved", text(".rows"), must_include=[wanted.title]),
        ),
        solution=[*find_listing(serial.title), *find_listing(phone.title),
                  *find_listing(wanted.title), "click [button: Save listing]",
                  "click [link: Contact seller]",
                  write("Message", serial.photo.fact), write("Your phone", phone.photo.fact),
                  "click [button: Send message]"],
        difficulty="hard",
        reads_image=True,
        turns_on=serial.photo.fact,
        memory_distance_pages=6,
        needs=[serial.photo.fact, phone.photo.fact],
    )  # fmt: skip


def old_listing_for_a_new_one(draw: Draw) -> Draft:
    """Delete a listing, then post one and comment on it with facts from two other sites."""
    old, festival = draw.rng.choice(my_listings(draw)), draw.rng.choice(draw.world.wiki.festivals)
    thread, poster = draw.rng.choice(
        [(t, t.poster) for t in draw.world.forum.threads if t.poster is not None]
    )
    category, thing = _draw_item(draw)
    price, title = draw.rng.randint(12, 480), f"{festival.town} {thing}"
    return Draft(
        wordings=(
            "First read who is the organiser of the {{festival}} in the wiki in the second tab, "
            "and the code on the poster of the thread {{thread}} on the forum in the third tab. "
            "Then delete my listing {{old}} on the classifieds and post a new one: title "
            "{{title}}, category {{category}}, price {{price}} dollars, town {{town}}, condition "
            "Used, the organiser's name as the description, I can deliver it. Last, write the "
            "code as a comment on it.",
            "Read two things: the organiser of the {{festival}} in the wiki (second tab) and the "
            "code on the poster of the forum thread {{thread}} (third tab). On the classifieds, "
            "delete my listing {{old}}. Then post a listing: title {{title}}, category "
            "{{category}}, price {{price}} dollars, town {{town}}, condition Used, description "
            "the organiser's name, I can deliver it. Comment on the new listing with the code.",
            "My listing {{old}} on the classifieds should go, and a new one should take its "
            "place: title {{title}}, category {{category}}, price {{price}} dollars, town "
            "{{town}}, condition Used, I can deliver it. Its description is the name of the "
            "organiser of the {{festival}} (wiki, second tab). Below it, I want a comment with "
            "the code on the poster of the thread {{thread}} (forum, third tab). Look up the "
            "organiser and the code before the old listing is deleted.",
        ),
        unseen_wording=(
            "Could you swap one of my listings on the classifieds for another one? First look up "
            "the organiser of the {{festival}} in the wiki in the second tab, and the code on the "
            "poster of the forum thread {{thread}} in the third tab. Then delete my listing "
            "{{old}} and post this one: title {{title}}, category {{category}}, price {{price}} "
            "dollars, town {{town}}, condition Used, the organiser's name as the description, I "
            "can deliver it. Please write the code below it as a comment."
        ),
        values={"festival": festival.name, "thread": thread.title, "old": old.title,
                "title": title, "category": category.name, "price": price, "town": festival.town},
        start="__CLASSIFIEDS__ |AND| __WIKIPEDIA__ |AND| __REDDIT__",
        check=all_of(
            shows("__CLASSIFIEDS__/mine", text(".mine"), must_exclude=[old.title]),
            _listing_posted(draw, title=title, category=category.name, price=f"${price}",
                            town=festival.town, condition="Used",
                            description=festival.organiser, delivery="possible"),
            shows(_new_listing_url(draw), text("#comments"), must_include=[poster.code]),
        ),
        solution=["tab_focus [1]", find_article(festival.name), "tab_focus [2]",
                  *find_thread(thread.title), "tab_focus [0]", "click [link: My listings]",
                  f"click [link: Delete {old.title}]", "click [button: Delete for good]",
                  "click [link: Post a listing]", write("Title", title),
                  choose("Category", category.name), write("Price in dollars", price),
                  choose("Town", festival.town), "click [radio: Used]",
                  write("Description", festival.organiser), "click [checkbox: I can deliver it]",
                  "click [button: Publish listing]", write("Comment", poster.code),
                  "click [button: Post comment]"],
        difficulty="hard",
        reads_image=True,
        turns_on=f"CODE {poster.code}",
        memory_distance_pages=13,
        needs=[festival.organiser, poster.code],
    )  # fmt: skip


def _draw_item(draw: Draw) -> tuple[Category, str]:
    thing, slug = draw.rng.choice(_THINGS)
    return draw.world.classifieds.category(slug), thing


def _new_listing_url(draw: Draw) -> str:
    return f"__CLASSIFIEDS__/listing/{len(draw.world.classifieds.listings) + 1}"


def _listing_posted(draw: Draw, **parts: str) -> Evaluation:
    """Require the first new listing to show each text in its `.listing-<part>` element."""
    return all_of(
        *(
            shows(_new_listing_url(draw), text(f".listing-{part}"), exact_match=words)
            for part, words in parts.items()
        )
    )
