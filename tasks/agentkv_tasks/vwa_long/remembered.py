"""Long questions about something that many errands, or a change, come after."""

import re

from agentkv_env.sites.forum.content import Thread
from agentkv_tasks.template import Draft, Draw, all_of, says, shows, text
from agentkv_tasks.vwa75.routes import article_url, join_facts, says_all, switch_site
from agentkv_tasks.vwa75.steps import done, rewrite
from agentkv_tasks.vwa_long.errands import comment, contact, keep, rate, save, upvote
from agentkv_tasks.vwa_long.rounds import (
    draw_distinct,
    draw_listings,
    draw_products,
    draw_threads,
    enumeration,
    number_placeholders,
)


def founder_of_the_first_company(draw: Draw) -> Draft:
    """Answer with a name from the first page after fifteen products came onto the wishlist."""
    maker = draw.rng.choice(draw.world.wiki.makers)
    wishes = keep(draw_products(draw, 15))
    return Draft(
        wordings=(
            "Read who founded the company whose article is open. Then add these fifteen products "
            f"to my wishlist in the shop, in this order: {wishes.names}. Answer with the name of "
            "the founder.",
            f"My wishlist in the shop should hold {wishes.names}, added in this order. Who is the "
            "founder of the company on the first page? Answer once the wishlist is complete.",
            f"To the wishlist, one after the other: {wishes.names}. To answer at the end: the "
            "founder of the company that the wiki shows at the start.",
        ),
        unseen_wording="I will be asked about this company later, so I need the name of its "
        f"founder. Could you first put {wishes.names} onto my wishlist in the shop, in this order, "
        "and give me the name when you are back?",
        values=wishes.values,
        start=article_url(maker.name),
        check=all_of(wishes.check, says(exact_match=maker.founder)),
        solution=[*switch_site("Shop"), *wishes.steps, done(maker.founder)],
        needs=[maker.founder],
        memory_distance_pages=len(wishes.steps) + 2,
    )


def points_before_my_votes(draw: Draw) -> Draft:
    """Answer with the points of two threads before the task's own votes changed them."""
    one, other, *rest = _draw_threads_with_own_points(draw, 14)
    votes = upvote([one, other, *rest])
    return Draft(
        wordings=(
            f"Upvote these fourteen threads on the forum, in this order: {votes.names}. Each vote "
            "changes the points of its thread. Answer with the points that the first and the "
            "second thread had before my vote, joined by a comma.",
            f"An upvote on each of these forum threads, in this order: {votes.names}. How many "
            "points did the first two of them have before it? Answer with both numbers, joined by "
            "a comma.",
            "I want to know what my votes change, so the answer should be the points of the first "
            f"and of the second thread as they were before. Upvote, in this order: {votes.names}. "
            "A comma goes between the two numbers.",
        ),
        unseen_wording="My club bets on votes, and only the points without mine count. Will you "
        f"upvote {votes.names} on the forum, in this order, and tell me how many points the first "
        "and the second of them had before? Put a comma between the two numbers.",
        values=votes.values,
        start="__REDDIT__",
        check=all_of(votes.check, says_all(one.score, other.score)),
        solution=[*votes.steps, done(join_facts(one.score, other.score))],
        difficulty="medium",
        needs=[str(one.score), str(other.score)],
        memory_distance_pages=len(votes.steps) - 2,
    )


def _draw_threads_with_own_points(draw: Draw, count: int) -> list[Thread]:
    """Draw threads of 100 or more points, none of which has another's points after a vote."""
    threads = list(draw.world.forum.threads)
    draw.rng.shuffle(threads)
    chosen: list[Thread] = []
    for thread in threads:
        if thread.score >= 100 and all(abs(thread.score - x.score) > 1 for x in chosen):
            chosen.append(thread)
    return chosen[:count]


def rating_with_my_stars(draw: Draw) -> Draft:
    """Rate seven sellers and answer with the rating that the first of them has from then on."""
    content = draw.world.classifieds
    listings = draw_distinct(draw, draw_listings(draw, 40), lambda x: x.seller, 7)
    stars, words = draw.rng.choice(
        ((2, "Late twice."), (3, "Slow to answer."), (5, "Friendly on the phone."))
    )
    given = [one.stars for one in content.seller(listings[0].seller).ratings]
    mean = (sum(given) + stars) / (len(given) + 1)
    answer = f"{mean:.1f} of 5 from {len(given) + 1} buyers"
    first, rest = rate(draw, listings[:1], stars, words), rate(draw, listings[1:], stars, words)
    names, values = number_placeholders("listing", [x.title for x in listings])
    return Draft(
        wordings=(
            "Open the seller of each of these listings in the classifieds, in this order, and rate "
            f"the seller with {{{{stars}}}} stars and the words {{{{words}}}}: {names}. After the "
            "first rating, look at the rating on that seller's page again. Answer at the end with "
            "that line, as the page shows it with my rating in it.",
            f"The sellers of {names} get {{{{stars}}}} stars from me, in this order, each with the "
            "words {{words}}. What does the page of the first of them say in the row Rating after "
            "mine is counted? Answer with the whole row when all are rated.",
            f"{{{{stars}}}} stars and the comment {{{{words}}}} for the seller of each of these "
            f"listings, in this order: {names}. The answer should be the row Rating on the first "
            "seller's page, in the state after my rating.",
        ),
        unseen_wording=f"I bought {names} in the classifieds and was served the same every time. "
        "Would you rate each of these sellers for me, in this order, with {{stars}} stars and "
        "{{words}}? I am curious what that does to the first of them, so please tell me at the end "
        "the row Rating of that page as it is with my rating counted.",
        values={**values, "stars": stars, "words": f'"{words}"'},
        start="__CLASSIFIEDS__",
        check=all_of(first.check, rest.check, says(must_include=[answer])),
        solution=[*first.steps, "click [link: Back to the seller]", *rest.steps, done(answer)],
        difficulty="medium",
        needs=[answer],
        memory_distance_pages=len(rest.steps),
    )


def prices_before_the_sale(draw: Draw) -> Draft:
    """Answer with three prices that the task itself lowered before eight messages."""
    content, me = draw.world.classifieds, draw.world.me.handle
    mine = draw.rng.sample([x for x in content.listings if x.seller == me], 3)
    lower = [x.price * draw.rng.choice((5, 6, 7, 8)) // 10 for x in mine]
    message = draw.rng.choice(("Is the box still there?", "Does it rust?", "Is it heavy?"))
    letters = contact(draw_listings(draw, 8), message)
    values: dict[str, str | int] = {"message": f'"{message}"'}
    steps: list[str] = []
    for number, (x, price) in enumerate(zip(mine, lower, strict=True), start=1):
        values |= {f"mine{number}": x.title, f"price{number}": price}
        steps += ["click [link: My listings]", f"click [link: Edit {x.title}]",
                  *rewrite("Price in dollars", price), "click [button: Save changes]"]  # fmt: skip
    sale = enumeration([f"the {{{{mine{n}}}}} to {{{{price{n}}}}} dollars" for n in (1, 2, 3)])
    before = [f"${x.price}" for x in mine]
    return Draft(
        wordings=(
            f"Lower the prices of my three listings in the classifieds: {sale}. Then write the "
            f"message {{{{message}}}} to the sellers of these listings, in this order: "
            f"{letters.names}. Answer with the prices that my three had before, in the order "
            "above, with dollar signs, joined by commas.",
            f"What did my listings in the classifieds cost until today? Change {sale}. After that "
            f"ask the sellers of {letters.names}, in this order, {{{{message}}}}. Then answer with "
            "the three old prices in the order of the changes, with dollar signs, joined by "
            "commas.",
            f"Sale in the classifieds: {sale}. Messages in the classifieds, in this order: "
            "{{message}} about "
            f"{letters.names}. Answer: the three prices from before the sale, in its order, with "
            "dollar signs, joined by commas.",
        ),
        unseen_wording="I need money and space. Could you reduce my three listings in the "
        f"classifieds, {sale}, and then write {{{{message}}}} to the sellers of {letters.names}, "
        "in this order? My bookkeeping wants the three old prices in the order I named my "
        "listings, with dollar signs and commas in between.",
        values={**values, **letters.values},
        start="__CLASSIFIEDS__",
        check=all_of(
            *(
                shows(f"__CLASSIFIEDS__/listing/{x.id}", text(".listing-price"),
                      exact_match=f"${price}")
                for x, price in zip(mine, lower, strict=True)
            ),
            letters.check,
            says_all(*before),
        ),
        solution=[*steps, *letters.steps, done(join_facts(*before))],
        difficulty="hard",
        needs=before,
        memory_distance_pages=len(steps) + len(letters.steps) - 1,
    )  # fmt: skip


def code_in_the_first_letter(draw: Draw) -> Draft:
    """Answer with a code and a sender from the first page after comments and saved listings."""
    forum = draw.world.forum
    letters = [(number, letter, re.findall(r"\b\d{4}\b", letter.body))
               for number, letter in enumerate(forum.letters, start=1)]  # fmt: skip
    number, letter, codes = draw.rng.choice([each for each in letters if each[2]])
    remark = draw.rng.choice(("Good to know.", "I was there too.", "That is half the story."))
    comments = comment(draw_threads(draw, 5, without=letter.sender), remark)
    saved = save(draw, draw_listings(draw, 6))
    return Draft(
        wordings=(
            "Read the message that is open: remember the sender and the number of four digits. "
            f"Then write the comment {{{{remark}}}} in each of these forum threads: "
            f"{comments.names}. Then save these listings in the classifieds: {saved.names}. Answer "
            "with the sender and the number, joined by a comma.",
            f"Save the listings {saved.names} in the classifieds, but before that comment "
            f"{{{{remark}}}} on the forum threads {comments.names}. Who wrote the message that is "
            "open at the start, and which number of four digits is in it? Answer with both, joined "
            "by a comma.",
            f"Comments on the forum, all of them {{{{remark}}}}: {comments.names}. Saved in the "
            f"classifieds afterwards: {saved.names}. I want two things from the message on the "
            "first page as the answer, with a comma between them: who sent it, and its number of "
            "four digits.",
        ),
        unseen_wording="This message on my screen matters tonight: who sent it, and the number of "
        "four digits in it. Before that, could you leave {{remark}} as a comment in each of "
        f"{comments.names} and save {saved.names} for me in the classifieds? After all that, give "
        "me the sender and the number, with a comma in between.",
        values={**comments.values, **saved.values, "remark": f'"{remark}"'},
        start=f"__REDDIT__/message/{number}",
        check=all_of(comments.check, saved.check, says_all(letter.sender, codes[0])),
        solution=[*comments.steps, *switch_site("Classifieds"), *saved.steps,
                  done(join_facts(letter.sender, codes[0]))],
        difficulty="medium",
        needs=[letter.sender, codes[0]],
        memory_distance_pages=len(comments.steps) + len(saved.steps) + 2,
    )  # fmt: skip
