"""Long navigation tasks that need a name or code read many pages before the end."""

from agentkv_env.sites.shop.content import Product
from agentkv_tasks.template import Draft, Draw, all_of, reaches
from agentkv_tasks.vwa75.routes import (
    article_url,
    draw_authors,
    draw_listings,
    draw_posters,
    draw_towns,
    find_author,
    find_seller,
    join_facts,
    mayor_birth_year,
    says_all,
    switch_site,
)
from agentkv_tasks.vwa75.steps import done, find_article, find_listing, find_product, find_thread


def _draw_products(draw: Draw, count: int) -> list[Product]:
    return draw.rng.sample(draw.world.shop.products, count)


def mayor_after_an_author(draw: Draw) -> Draft:
    """Search the wiki for a mayor whose name was read before a visit to the forum."""
    (town,) = draw_towns(draw, 1)
    ((one, since), (other, later)) = draw_authors(draw, 2)
    answer = join_facts(since, later)
    return Draft(
        wordings=(
            "Open the wiki article about {{town}} and remember its mayor. Then go to the forum "
            "and open the page of the author of the thread {{one}}, then the page of the author "
            "of the thread {{other}}. Then go back to the wiki and open the article about the "
            "mayor. Answer with the two years in which the authors joined the forum, joined by a "
            "comma.",
            "Who is the mayor of {{town}} in the wiki? Then look in the forum: in which years did "
            "the authors of the threads {{one}} and {{other}} join? At the end, open the wiki "
            "article about the mayor and answer with the two years. Put a comma between them.",
            "I need two years with a comma between them: when the author of the forum thread "
            "{{one}} joined, and when the author of the thread {{other}} did. Before the forum, "
            "find out in the wiki who is the mayor of {{town}}; after it, open the wiki article "
            "about the mayor and answer there.",
        ),
        unseen_wording=(
            "Could you look up the mayor of {{town}} in the wiki, then find out in the forum in "
            "which years the authors of the threads {{one}} and {{other}} joined, and go back to "
            "the wiki to open the article about the mayor? I would like to have the two years, "
            "joined by a comma."
        ),
        values={"town": town.name, "one": one.title, "other": other.title},
        start="__WIKIPEDIA__",
        check=all_of(reaches(article_url(town.mayor)), says_all(since, later)),
        solution=[
            find_article(town.name),
            *switch_site("Forum"),
            *find_author(one),
            *find_author(other),
            *switch_site("Wiki"),
            find_article(town.mayor),
            done(answer),
        ],
        needs=[one.author, other.author, town.mayor, str(since), str(later)],
        difficulty="hard",
        memory_distance_pages=9,
    )


def product_of_an_order(draw: Draw) -> Draft:
    """Search the shop for a product whose name was read in an order before a visit to the wiki."""
    shop = draw.world.shop
    order = draw.rng.choice(shop.orders)
    product = shop.products[order.lines[0][0] - 1]
    towns = draw_towns(draw, 4)
    years = [town.founded for town in towns]
    return Draft(
        wordings=(
            "Open my order {{order}} in the shop and remember the first product in it. Then look "
            "up in the wiki in which years {{a}}, {{b}}, {{c}} and {{d}} were founded. Then go "
            "back to the shop, search for the product and open its page. Answer with the four "
            "years, joined by commas.",
            "What is the first product in my shop order {{order}}? Remember it. Look up the row "
            "Founded of {{a}}, {{b}}, {{c}} and {{d}} in the wiki. At the end, find the product "
            "in the shop and open its page. Answer with the four years, joined by commas.",
            "I need four years, joined by commas: when {{a}}, {{b}}, {{c}} and {{d}} were "
            "founded, according to the wiki. Before the wiki, see which product is the first in "
            "my order {{order}} in the shop; after it, search the shop for that product, open its "
            "page and answer there.",
        ),
        unseen_wording=(
            "I want to see a product again and to settle a bet about towns. Could you see which "
            "product is the first in my order {{order}} in the shop, look up in the wiki in which "
            "years {{a}}, {{b}}, {{c}} and {{d}} were founded, and then find the product in the "
            "shop and open its page? Please answer with the four years, joined by commas."
        ),
        values={"order": order.number}
        | {letter: town.name for letter, town in zip("abcd", towns, strict=True)},
        start="__SHOPPING__",
        check=all_of(reaches(f"__SHOPPING__/product/{product.number}"), says_all(*years)),
        solution=[
            "click [link: Orders]",
            f"click [link: Order {order.number}]",
            *switch_site("Wiki"),
            *(find_article(town.name) for town in towns),
            *switch_site("Shop"),
            *find_product(product.name),
            done(join_facts(*years)),
        ],
        needs=[product.name, *map(str, years)],
        difficulty="hard",
        memory_distance_pages=8,
    )


def founder_after_two_labels(draw: Draw) -> Draft:
    """Open a founder's article after reading two model numbers from shop images."""
    maker = draw.rng.choice(draw.world.wiki.makers)
    one, other = _draw_products(draw, 2)
    return Draft(
        wordings=(
            "Open the wiki article about {{maker}} and remember its founder. Then go to the shop "
            "and read the model number on the label of the {{one}}, then on the label of the "
            "{{other}}. Then go back to the wiki and open the article about the founder. Answer "
            "with the two model numbers, joined by a comma.",
            "Who is the founder of {{maker}} in the wiki? Then read in the shop which model "
            "numbers are on the labels of the {{one}} and the {{other}}. At the end, open the "
            "wiki article about the founder and answer with the two model numbers, joined by a "
            "comma.",
            "I need two model numbers from the shop, joined by a comma: the one on the label of "
            "the {{one}} and the one on the label of the {{other}}. Before the shop, find out in "
            "the wiki who is the founder of {{maker}}; after it, open the wiki article about the "
            "founder and answer there.",
        ),
        unseen_wording=(
            "Can you look up the founder of {{maker}} in the wiki, read the model numbers on the "
            "labels of the {{one}} and the {{other}} in the shop, and then go back to the wiki "
            "and open the article about the founder? I need the two model numbers, joined by a "
            "comma."
        ),
        values={"maker": maker.name, "one": one.name, "other": other.name},
        start="__WIKIPEDIA__",
        check=all_of(reaches(article_url(maker.founder)), says_all(one.model, other.model)),
        solution=[
            find_article(maker.name),
            *switch_site("Shop"),
            *find_product(one.name),
            *find_product(other.name),
            *switch_site("Wiki"),
            find_article(maker.founder),
            done(join_facts(one.model, other.model)),
        ],
        needs=[maker.founder, one.model, other.model],
        difficulty="hard",
        reads_image=True,
        turns_on=one.model,
        memory_distance_pages=8,
    )


def architect_after_two_photos(draw: Draw) -> Draft:
    """Open an architect's article after reading two serial numbers from photos."""
    landmark = draw.rng.choice(draw.world.wiki.landmarks)
    one, other = draw_listings(draw, "serial", 2)
    serials = (one.photo.fact, other.photo.fact)
    return Draft(
        wordings=(
            "Open the wiki article about the {{landmark}} and remember its architect. Then go to "
            "the classifieds and read the serial number in the photo of the {{one}}, then in the "
            "photo of the {{other}}. Then go back to the wiki and open the article about the "
            "architect. Answer with the two serial numbers, joined by a comma.",
            "Who is the architect of the {{landmark}} in the wiki? Then read on the classifieds "
            "which serial numbers are in the photos of the {{one}} and the {{other}}. At the end, "
            "open the wiki article about the architect and answer with the two serial numbers, "
            "joined by a comma.",
            "I need two serial numbers from the classifieds, joined by a comma: the one in the "
            "photo of the {{one}} and the one in the photo of the {{other}}. Before the "
            "classifieds, find out in the wiki who is the architect of the {{landmark}}; after "
            "them, open the wiki article about the architect and answer there.",
        ),
        unseen_wording=(
            "I am writing about the {{landmark}}. Would you look up its architect in the wiki, "
            "read the serial numbers in the photos of the {{one}} and the {{other}} on the "
            "classifieds, and then go back to the wiki and open the article about the architect? "
            "Please answer with the two serial numbers, joined by a comma."
        ),
        values={"landmark": landmark.name, "one": one.title, "other": other.title},
        start="__WIKIPEDIA__",
        check=all_of(reaches(article_url(landmark.architect)), says_all(*serials)),
        solution=[
            find_article(landmark.name),
            *switch_site("Classifieds"),
            *find_listing(one.title),
            *find_listing(other.title),
            *switch_site("Wiki"),
            find_article(landmark.architect),
            done(join_facts(*serials)),
        ],
        needs=[landmark.architect, *serials],
        difficulty="hard",
        reads_image=True,
        turns_on=serials[0],
        memory_distance_pages=8,
    )


def organiser_after_two_posters(draw: Draw) -> Draft:
    """Open an organizer's article after reading two codes from forum posters."""
    festival = draw.rng.choice(draw.world.wiki.festivals)
    (one, first), (other, second) = draw_posters(draw, 2)
    return Draft(
        wordings=(
            "Open the wiki article about the {{festival}} and remember its organiser. Then go to "
            "the forum and read the code on the poster in the thread {{one}}, then in the thread "
            "{{other}}. Then go back to the wiki and open the article about the organiser. Answer "
            "with the two codes, joined by a comma.",
            "Who is the organiser of the {{festival}} in the wiki? Then read in the forum which "
            "codes are on the posters in the threads {{one}} and {{other}}. At the end, open the "
            "wiki article about the organiser and answer with the two codes, joined by a comma.",
            "I need two codes from the forum, joined by a comma: the one on the poster in the "
            "thread {{one}} and the one on the poster in the thread {{other}}. Before the forum, "
            "find out in the wiki who is the organiser of the {{festival}}; after it, open the "
            "wiki article about the organiser and answer there.",
        ),
        unseen_wording=(
            "We want to go to the {{festival}}. Could you look up its organiser in the wiki, read "
            "the codes on the posters in the forum threads {{one}} and {{other}}, and then go "
            "back to the wiki and open the article about the organiser? I need the two codes, "
            "joined by a comma."
        ),
        values={"festival": festival.name, "one": one.title, "other": other.title},
        start="__WIKIPEDIA__",
        check=all_of(reaches(article_url(festival.organiser)), says_all(first.code, second.code)),
        solution=[
            find_article(festival.name),
            *switch_site("Forum"),
            *find_thread(one.title),
            *find_thread(other.title),
            *switch_site("Wiki"),
            find_article(festival.organiser),
            done(join_facts(first.code, second.code)),
        ],
        needs=[festival.organiser, first.code, second.code],
        difficulty="hard",
        reads_image=True,
        turns_on=f"CODE {first.code}",
        memory_distance_pages=8,
    )


def author_with_a_model_number_in_mind(draw: Draw) -> Draft:
    """Combine a label in the shop, a mayor in the wiki and an author in the forum."""
    (product,) = _draw_products(draw, 1)
    (town,) = draw_towns(draw, 1)
    ((thread, _),) = draw_authors(draw, 1)
    born = mayor_birth_year(draw, town)
    return Draft(
        wordings=(
            "First read the model number on the label of the {{product}} in the shop. Then look "
            "in the wiki, in the second tab, when the mayor of {{town}} was born. Then open the "
            "page of the author of the thread {{thread}} in the forum, in the third tab. Answer "
            "there with the model number and the year, joined by a comma.",
            "Which model number is on the label of the {{product}} in the shop? When was the "
            "mayor of {{town}} born, according to the wiki in the second tab? At the end, open "
            "the page of the author of the forum thread {{thread}} in the third tab and answer "
            "with both, joined by a comma.",
            "I want two facts, joined by a comma: the model number on the label of the "
            "{{product}} in the shop, and the birth year of the mayor of {{town}} in the wiki in "
            "the second tab. When they are given, the page of the author of the forum thread "
            "{{thread}} should be open in the third tab.",
        ),
        unseen_wording=(
            "Could you read the model number on the label of the {{product}} in the shop, and "
            "find out in the wiki in the second tab when the mayor of {{town}} was born? Then "
            "please open the page of the author of the thread {{thread}} in the forum in the "
            "third tab, and answer there with the model number and the year, joined by a comma."
        ),
        values={"product": product.name, "town": town.name, "thread": thread.title},
        start="__SHOPPING__ |AND| __WIKIPEDIA__ |AND| __REDDIT__",
        check=all_of(
            reaches(f"__REDDIT__/user/{thread.author}"), says_all(product.model, born)
        ),
        solution=[
            *find_product(product.name),
            "tab_focus [1]",
            find_article(town.name),
            f"click [link: {town.mayor}]",
            "tab_focus [2]",
            *find_author(thread),
            done(join_facts(product.model, born)),
        ],
        needs=[town.mayor, thread.author, product.model, str(born)],
        difficulty="hard",
        reads_image=True,
        turns_on=product.model,
        memory_distance_pages=8,
    )  # fmt: skip


def mayor_after_a_seller(draw: Draw) -> Draft:
    """Open a mayor's article after looking up a seller."""
    (town,) = draw_towns(draw, 1)
    (one,) = draw_listings(draw, "serial", 1)
    (other,) = draw_listings(draw, "price", 1)
    names = [draw.world.classifieds.seller(x.seller).name for x in (one, other)]
    return Draft(
        wordings=(
            "Open the wiki article about {{town}} and remember its mayor. Then go to the "
            "classifieds and open the page of the seller of the {{one}}, then the page of the "
            "seller of the {{other}}. Then go back to the wiki and open the article about the "
            "mayor. Answer with the names of the two sellers, joined by a comma.",
            "Who is the mayor of {{town}} in the wiki? Then look on the classifieds for the names "
            "of the sellers of the {{one}} and the {{other}}. At the end, open the wiki article "
            "about the mayor and answer with the two names, joined by a comma.",
            "I need two names from the classifieds, joined by a comma: the seller of the {{one}} "
            "and the seller of the {{other}}. Before the classifieds, find out in the wiki who is "
            "the mayor of {{town}}; after them, open the wiki article about the mayor and answer "
            "there.",
        ),
        unseen_wording=(
            "Can you look up the mayor of {{town}} in the wiki, find the names of the sellers of "
            "the {{one}} and the {{other}} on the classifieds, and then go back to the wiki and "
            "open the article about the mayor? I need the two names, joined by a comma."
        ),
        values={"town": town.name, "one": one.title, "other": other.title},
        start="__WIKIPEDIA__",
        check=all_of(reaches(article_url(town.mayor)), says_all(*names)),
        solution=[
            find_article(town.name),
            *switch_site("Classifieds"),
            *find_seller(one),
            *find_seller(other),
            *switch_site("Wiki"),
            find_article(town.mayor),
            done(join_facts(*names)),
        ],
        needs=[one.seller, other.seller, town.mayor, *names],
        difficulty="hard",
        memory_distance_pages=9,
    )


def tour_of_four_sites(draw: Draw) -> Draft:
    """Visit four sites in more than twenty steps and answer with four facts."""
    (town,) = draw_towns(draw, 1)
    (one, since), (other, later) = draw_authors(draw, 2)
    (listing,) = draw_listings(draw, "serial", 1)
    (product,) = _draw_products(draw, 1)
    seller = draw.world.classifieds.seller(listing.seller).name
    facts = (mayor_birth_year(draw, town), since, later, seller)
    return Draft(
        wordings=(
            "Look up in the wiki when the mayor of {{town}} was born. Then look up in the forum "
            "in which year the author of the thread {{one}} joined, then the author of the thread "
            "{{other}}. Then look up on the classifieds the name of the seller of the "
            "{{listing}}. At the end, open the {{product}} in the shop. Answer with the four "
            "facts in this order, joined by commas.",
            "When was the mayor of {{town}} born, according to the wiki? In which years did the "
            "authors of the forum threads {{one}} and {{other}} join? What is the name of the "
            "seller of the {{listing}} on the classifieds? Then go to the shop and open the page "
            "of the {{product}}. Answer there with all four facts in this order, joined by commas.",
            "I need four facts in this order, joined by commas: the birth year of the mayor of "
            "{{town}} (wiki), the years in which the author of the thread {{one}} and the author "
            "of the thread {{other}} joined (forum), and the name of the seller of the "
            "{{listing}} (classifieds). When they are given, the page of the {{product}} should "
            "be open in the shop.",
        ),
        unseen_wording=(
            "I have a long list today. Would you find out in the wiki when the mayor of {{town}} "
            "was born, in the forum in which years the authors of the threads {{one}} and "
            "{{other}} joined, and on the classifieds the name of the seller of the {{listing}}? "
            "At the end, please open the {{product}} in the shop and answer with the four facts "
            "in this order, joined by commas."
        ),
        values={
            "town": town.name,
            "one": one.title,
            "other": other.title,
            "listing": listing.title,
            "product": product.name,
        },
        start="__HOMEPAGE__",
        check=all_of(reaches(f"__SHOPPING__/product/{product.number}"), says_all(*facts)),
        solution=[
            "click [link: Wiki]",
            find_article(town.name),
            f"click [link: {town.mayor}]",
            *switch_site("Forum"),
            *find_author(one),
            *find_author(other),
            *switch_site("Classifieds"),
            *find_seller(listing),
            *switch_site("Shop"),
            *find_product(product.name),
            done(join_facts(*facts)),
        ],
        needs=[town.mayor, one.author, other.author, listing.seller, *map(str, facts)],
        difficulty="hard",
        memory_distance_pages=17,
    )
