"""Long form tasks that need facts read many pages earlier, on other sites."""

from agentkv_env.sites.site import money
from agentkv_tasks.template import Draft, Draw, TaskTemplate, all_of, shows, text, texts
from agentkv_tasks.vwa75.steps import (
    choose,
    find_article,
    find_listing,
    find_product,
    find_thread,
    rewrite,
    write,
)
from agentkv_tasks.vwa_long import papers
from agentkv_tasks.vwa_long.errands import put_into_cart, upvote
from agentkv_tasks.vwa_long.rounds import (
    draw_distinct,
    draw_products,
    draw_threads,
    join_facts,
    number_placeholders,
    unique_facts,
)


def eighteen_articles_in_one_thread(draw: Draw) -> Draft:
    """Submit one thread with a fact from each of eighteen articles, after four votes."""
    wiki = draw.world.wiki
    festivals, dishes = draw.rng.sample(wiki.festivals, 6), draw.rng.sample(wiki.dishes, 6)
    landmarks = draw.rng.sample(wiki.landmarks, 6)
    first, values = number_placeholders("festival", [festival.name for festival in festivals])
    second, more = number_placeholders("dish", [dish.name for dish in dishes])
    third, most = number_placeholders("landmark", [landmark.name for landmark in landmarks])
    titles = [*(one.name for one in festivals), *(one.name for one in dishes),
              *(one.name for one in landmarks)]  # fmt: skip
    facts = [festival.month for festival in festivals]
    facts += [dish.ingredient for dish in dishes]
    facts += [str(landmark.built) for landmark in landmarks]
    votes = upvote(draw_threads(draw, 4))
    board = draw.rng.choice(draw.world.forum.boards).name
    page = f"__REDDIT__/thread/{len(draw.world.forum.threads) + 1}"
    return Draft(
        wordings=(
            f"Read in the wiki the month of each of these festivals: {first}. Read the main "
            f"ingredient of each of these dishes: {second}. Read when each of these landmarks was "
            f"built: {third}. On the forum in the other tab, upvote {votes.names}. Then submit a "
            "thread there: board {{board}}, title Quiz night, and as body the eighteen facts, in "
            "the order above, with a comma and a space between two.",
            f"A thread for the forum's board {{{{board}}}} with the title Quiz night. Its body is "
            "made of eighteen facts from the wiki, in this order, with a comma and a space between "
            f"two: the months of {first}, the main ingredients of {second}, and the years in which "
            f"{third} were built. The wiki comes first. Next, in the other tab, an upvote for "
            f"{votes.names}, and at last the thread.",
            f"In which months are {first}? What is the main ingredient of {second}? When were "
            f"{third} built? The wiki knows all eighteen. When they are read, upvote {votes.names} "
            "on the forum in the other tab. The answers, in order and with a comma and a space "
            "between two, are the body of a new thread there: board {{board}}, title Quiz night.",
        ),
        unseen_wording=f"I prepare a quiz about {first} (their months), {second} (their main "
        f"ingredients) and {third} (the years in which they were built). Could you read these in "
        f"the wiki, upvote {votes.names} on the forum in the other tab, and then submit the quiz "
        "there for me? It goes to the board {{board}} with the title Quiz night, and its body is "
        "the eighteen facts in this order, with a comma and a space between two.",
        values={**values, **more, **most, **votes.values, "board": board},
        start="__WIKIPEDIA__ |AND| __REDDIT__",
        check=all_of(
            votes.check,
            shows(page, text(".thread h1"), exact_match="Quiz night"),
            shows(page, text(".thread-body"), exact_match=join_facts(facts)),
            shows(f"__REDDIT__/board/{board}?sort=new", text(".threads"),
                  must_include=["Quiz night"]),
        ),
        solution=[*(find_article(title) for title in titles),
                  "tab_focus [1]", *votes.steps, "click [link: Submit thread]",
                  choose("Board", board), write("Title", "Quiz night"),
                  write("Body", join_facts(facts)),
                  "click [button: Submit]"],
        difficulty="hard",
        needs=unique_facts(facts),
        memory_distance_pages=32,
    )  # fmt: skip


def move_house(draw: Draw) -> Draft:
    """Enter a town that was read at the start in forms on three sites."""
    world, content = draw.world, draw.world.classifieds
    me = world.me
    listing = draw.rng.choice([x for x in content.listings if x.seller != me.handle])
    seller = content.seller(listing.seller)
    town = world.wiki.town(seller.town)
    street, code = f"{draw.rng.randint(2, 97)} Mill Lane", draw.rng.randint(10000, 99999)
    price = draw.rng.randint(12, 480)
    basket = put_into_cart(draw_products(draw, 6))
    bio = f"My mayor is {town.mayor}."
    posted = f"__CLASSIFIEDS__/listing/{len(content.listings) + 1}"
    parts = {"title": "Moving boxes", "category": "Furniture", "price": f"${price}",
             "town": town.name, "condition": "Used", "description": seller.name}  # fmt: skip
    return Draft(
        wordings=(
            "Open the page of the seller of the {{listing}} in the classifieds and read Name and "
            "Home town. I move to that town: look up its mayor in the wiki. In the shop, put these "
            f"six products into the cart: {basket.names}. Then add an address there: label Soon, "
            "name {{me}}, street and number {{street}}, postcode {{code}}, and that town. On the "
            "forum, change my bio to: My mayor is, the mayor's name, and a full stop. Last, post a "
            "listing on the classifieds: title Moving boxes, category Furniture, price {{price}} "
            "dollars, that town, condition Used, description: the name of the seller.",
            "I move to the home town of the seller of the {{listing}} in the classifieds. Their "
            "page there says who they are and where they live; the wiki says who is the mayor of "
            f"the town. First {basket.names} go into my cart in the shop. Then my addresses in the "
            "shop need a new one, Soon: {{me}}, {{street}}, that town, {{code}}. On the forum my "
            "bio should read My mayor is, with the mayor's name and a full stop. The last thing is "
            "a listing of used furniture in that town: Moving boxes for {{price}} dollars, with "
            "the seller's name as the description.",
            "Where does the seller of the {{listing}} in the classifieds live, and who is the "
            "mayor there, according to the wiki? The rest follows from it. Cart of the shop: "
            f"{basket.names}. New address in the shop: label Soon, {{{{me}}}}, {{{{street}}}}, "
            "postcode {{code}}, the seller's town. Bio on the forum: My mayor is, the name, a full "
            "stop. New listing: Moving boxes, Furniture, {{price}} dollars, the same town, Used, "
            "described by nothing but the seller's name.",
        ),
        unseen_wording="I found a room in the town where the seller of the {{listing}} lives; that "
        "page in the classifieds names both, and the wiki has the mayor of the town. Could you do "
        f"some paperwork for me? Put {basket.names} into my cart in the shop, and add an address "
        "there: label Soon, name {{me}}, street {{street}}, that town, postcode {{code}}. Then "
        "change my bio on the forum to My mayor is, the mayor's name, and a full stop. Finally, "
        "post Moving boxes on the classifieds, category Furniture, for {{price}} dollars in that "
        "town, condition Used, with the name of the seller as the description.",
        values={"listing": listing.title, "me": me.name, "street": street, "code": code,
                "price": price, **basket.values},
        start="__CLASSIFIEDS__ |AND| __WIKIPEDIA__ |AND| __SHOPPING__ |AND| __REDDIT__",
        check=all_of(
            basket.check,
            shows("__SHOPPING__/account/addresses", text("#addresses"),
                  must_include=[f"{me.name}, {street}, {code} {town.name}"]),
            shows(f"__REDDIT__/user/{me.handle}", text(".bio"), exact_match=bio),
            *(shows(posted, text(f".listing-{part}"), exact_match=value)
              for part, value in parts.items()),
        ),
        solution=[*find_listing(listing.title), f"click [link: {seller.handle}]", "tab_focus [1]",
                  find_article(town.name), "tab_focus [2]", *basket.steps,
                  "click [link: Account]", "click [link: Addresses]",
                  "click [link: Add an address]",
                  write("Label", "Soon"), *rewrite("Name", me.name),
                  write("Street and number", street), write("Town", town.name),
                  write("Postcode", code), "click [button: Save address]", "tab_focus [3]",
                  "click [link: Settings]", *rewrite("Bio", bio), "click [button: Save settings]",
                  "tab_focus [0]", "click [link: Post a listing]", write("Title", "Moving boxes"),
                  choose("Category", "Furniture"), write("Price in dollars", price),
                  choose("Town", town.name), "click [radio: Used]",
                  write("Description", seller.name), "click [button: Publish listing]"],
        difficulty="medium",
        needs=unique_facts([town.name, town.mayor, seller.name]),
        memory_distance_pages=32,
    )  # fmt: skip


def letters_about_mayors(draw: Draw) -> Draft:
    """Send five messages, each with another fact that was read at the start."""
    content, me = draw.world.classifieds, draw.world.me.handle
    foreign = [x for x in content.listings if x.seller != me]
    listings = draw_distinct(draw, foreign, lambda x: x.town, 5)
    towns = [draw.world.wiki.town(x.town) for x in listings]
    names, values = number_placeholders("listing", [x.title for x in listings])
    read = draw.rng.sample(towns, len(towns))
    towns_named, more = number_placeholders("town", [town.name for town in read])
    steps = ["tab_focus [1]", *(find_article(town.name) for town in read), "tab_focus [0]"]
    for x, town in zip(listings, towns, strict=True):
        steps += [*find_listing(x.title), "click [link: Contact seller]",
                  write("Message", town.mayor), "click [button: Send message]"]  # fmt: skip
    sent = "__CLASSIFIEDS__/messages"
    newest_first = listings[::-1], [town.mayor for town in towns][::-1]
    return Draft(
        wordings=(
            f"Read in the wiki in the other tab who is the mayor of {towns_named}. Then write to "
            f"the sellers of these listings in the classifieds, in this order: {names}. Each "
            "message is only the name of the mayor of the town of that listing.",
            f"The sellers of {names} in the classifieds get a message each, in this order. The "
            "text is a name and nothing else: the mayor of the town that the listing gives. Before "
            f"the first message, all five mayors are to be read in the wiki in the other tab, the "
            f"towns being {towns_named}.",
            f"Who are the mayors of {towns_named}? The wiki in the other tab knows. I want every "
            f"seller of {names} in the classifieds, in this order, to have a message with the "
            "name of the mayor of the town where the listing is, and no other word.",
        ),
        unseen_wording="I want these sellers to guess why I name their mayors. Would you look up "
        f"in the wiki in the other tab who the mayors of {towns_named} are, and then write to the "
        f"sellers of {names} in the classifieds, in this order? The message should be just the "
        "name of the mayor of the town in which the listing is.",
        values={**more, **values},
        start="__CLASSIFIEDS__ |AND| __WIKIPEDIA__",
        check=all_of(
            shows(sent, texts(".message-body"), must_include=[" | ".join(newest_first[1])]),
            shows(sent, texts(".about"),
                  must_include=[" | ".join(x.title for x in newest_first[0])]),
        ),
        solution=steps,
        difficulty="hard",
        needs=unique_facts(town.mayor for town in towns),
        memory_distance_pages=25,
    )  # fmt: skip


def prices_for_five_threads(draw: Draw) -> Draft:
    """Comment on five threads, each with another price that was read in the shop."""
    products = draw_distinct(draw, draw.world.shop.products, lambda one: one.cents, 5)
    threads = draw.rng.sample(draw.world.forum.threads, 5)
    prices = [money(product.cents) for product in products]
    names, values = number_placeholders("product", [product.name for product in products])
    titles, more = number_placeholders("thread", [thread.title for thread in threads])
    steps: list[str] = []
    for product in products:
        steps += find_product(product.name)
    steps.append("tab_focus [1]")
    for thread, price in zip(threads, prices, strict=True):
        # Posting scrolls to the new comment, far below the search box.
        steps += [*find_thread(thread.title), write("Comment", price),
                  "click [button: Post comment]", "goto [__REDDIT__]"]  # fmt: skip
    return Draft(
        wordings=(
            f"Read the prices of these five products in the shop: {names}. Then write one comment "
            f"in each of these forum threads in the other tab: {titles}. The comment in the first "
            "thread is the price of the first product, and so on.",
            f"How much are {names} in the shop? The forum in the other tab wants to know: "
            f"{titles}. One comment in each of these threads, holding one price: the first thread "
            "gets the price of the first product, the second of the second, and so on to the "
            "fifth.",
            f"Five threads of the forum in the other tab, {titles}, should get a comment each, "
            f"namely a price from the shop. In the same order, the products are {names}. All five "
            "prices are read before the first comment.",
        ),
        unseen_wording="Friends on the forum asked me about prices. Could you look up in the shop "
        f"what {names} cost, and then comment in {titles} in the other tab? The price of the first "
        "product goes into the first thread, the second into the second, and so on, and a comment "
        "holds nothing but its price.",
        values={**values, **more},
        start="__SHOPPING__ |AND| __REDDIT__",
        check=all_of(
            *(
                shows(f"__REDDIT__/thread/{thread.id}", texts(".comment-body"),
                      must_include=[price])
                for thread, price in zip(threads, prices, strict=True)
            )
        ),
        solution=[*steps[:-1]],
        difficulty="hard",
        needs=unique_facts(prices),
        memory_distance_pages=23,
    )  # fmt: skip


TEMPLATES: tuple[TaskTemplate, ...] = (
    TaskTemplate(papers.bio_about_the_first_article, 2),
    TaskTemplate(papers.thread_about_the_first_landmark, 2),
    TaskTemplate(papers.write_or_rate, 2),
    TaskTemplate(papers.offers_and_a_street, 2),
    TaskTemplate(papers.complaint_about_the_first_order, 2),
    TaskTemplate(eighteen_articles_in_one_thread),
    TaskTemplate(move_house, 2),
    TaskTemplate(letters_about_mayors),
    TaskTemplate(prices_for_five_threads),
)
