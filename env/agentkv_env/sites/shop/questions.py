"""Texts of customers' questions and reviews, without proper names."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ProductQuestion:
    """A question, the key of its answer, and the form of the answer."""

    text: str
    key: str
    value: str
    """Contains `{}` for the number."""
    numbers: range


ANY_PRODUCT = (
    ProductQuestion("How large is the parcel?", "Parcel size", "{} cm", range(35, 120)),
    ProductQuestion(
        "How long do spare parts stay on sale?", "Spare parts", "{} years", range(3, 16)
    ),
    ProductQuestion("How long does it take to set up?", "Setup time", "{} minutes", range(2, 46)),
    ProductQuestion("How many are sold in a week?", "Sold in a week", "{} pieces", range(3, 61)),
)
OF_CATEGORY = {
    "Audio": (
        ProductQuestion(
            "How long does the battery last?", "Battery life", "{} hours", range(4, 41)
        ),
        ProductQuestion("How long is the cable?", "Cable length", "{} cm", range(80, 301, 5)),
    ),
    "Bags": (
        ProductQuestion("How much fits inside?", "Volume", "{} litres", range(4, 91)),
        ProductQuestion("How many pockets are there?", "Pockets", "{}", range(1, 13)),
    ),
    "Bedroom": (
        ProductQuestion("How long has it been tested?", "Tested for", "{} nights", range(20, 401)),
        ProductQuestion("How many people made it?", "Made by", "{} people", range(2, 30)),
    ),
    "Camping": (
        ProductQuestion("How cold may the night be?", "Coldest night", "{} degrees", range(1, 15)),
        ProductQuestion("How long is it when packed?", "Packed length", "{} cm", range(18, 75)),
    ),
    "Garden": (
        ProductQuestion("How many winters does it last?", "Winters", "{} winters", range(2, 21)),
        ProductQuestion(
            "How much rain has it been tried in?", "Tried in", "{} storms", range(2, 40)
        ),
    ),
    "Kitchen": (
        ProductQuestion("How hot may it get?", "Greatest heat", "{} degrees", range(90, 300, 5)),
        ProductQuestion("How often may it be washed?", "Washes", "{} times", range(100, 900, 10)),
    ),
    "Lighting": (
        ProductQuestion("How long does the lamp last?", "Lamp life", "{} months", range(12, 90)),
        ProductQuestion("How bright is it?", "Brightness", "{} lumens", range(100, 990, 10)),
    ),
    "Office": (
        ProductQuestion(
            "How many hours a day may it be used?", "Daily use", "{} hours", range(3, 20)
        ),
        ProductQuestion("How many offices have one?", "In use at", "{} offices", range(20, 900)),
    ),
    "Pets": (
        ProductQuestion("For how heavy a pet is it made?", "Pet weight", "{} kg", range(2, 60)),
        ProductQuestion("From which age may a pet use it?", "Pet age", "{} months", range(2, 15)),
    ),
    "Sports": (
        ProductQuestion("From which age is it?", "Age", "{} years", range(5, 19)),
        ProductQuestion("How much weight does it bear?", "Most weight", "{} kg", range(60, 180)),
    ),
    "Tools": (
        ProductQuestion("How much weight does it bear?", "Most weight", "{} kg", range(20, 250)),
        ProductQuestion("How loud is it?", "Noise", "{} decibels", range(40, 99)),
    ),
    "Toys": (
        ProductQuestion("From which age is it?", "Age", "{} years", range(2, 13)),
        ProductQuestion(
            "How long does a game last?", "Playing time", "{} minutes", range(5, 121, 5)
        ),
    ),
}

REVIEWS = (
    (
        5,
        "Still like new",
        "I have used it in {place} for {count} months, and it is still like new.",
    ),
    (4, "Well made", "After {count} months nothing is loose. I would buy it again."),
    (
        4,
        "Good for the price",
        "My neighbours in {place} bought one as well. All {count} are happy.",
    ),
    (3, "Fair", "It took {count} days to come to {place}, but it works."),
    (2, "Too loud", "It makes a noise. I wrote to the shop {count} times."),
    (1, "Broken", "It broke after {count} weeks. The shop in {place} took it back."),
)
"""Stars, title and text of reviews of popular products."""
