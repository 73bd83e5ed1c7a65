import io

from PIL import Image

from agentkv_env.ocr import Ocr
from agentkv_env.sites import World
from agentkv_env.sites.images import label, poster, scene
from agentkv_env.sites.shop.pictures import picture
from agentkv_env.sites.site import money


def test_what_the_shop_s_pictures_say_can_be_read(world: World) -> None:
    shop = world.shop
    tagged = next(each for each in shop.products if each.club_cents is not None)
    expected = {
        "shipping": f"FROM {shop.free_shipping_dollars} DOLLARS",
        "coupon-1": f"CODE {shop.coupons[0].code}",
        "coupon-2": f"{shop.coupons[1].percent} PERCENT OFF",
        "label-1": f"MODEL {shop.products[0].model}",
        "label-2": f"WEIGHT {shop.products[1].grams} grams",
        f"tag-{tagged.number}": f"CLUB {money(tagged.club_cents)}",
        f"parcel-{shop.orders[0].number}": f"TRACKING {shop.orders[0].tracking}",
    }
    drawn = {
        key: Image.open(io.BytesIO(picture(world.region, world.shop, key))).convert("RGB")
        for key in expected
    }
    read = Ocr().read(drawn)
    unread = {key: read[key] for key, text in expected.items()
              if text not in [line.text for line in read[key]]}  # fmt: skip
    assert not unread


def test_pictures_depend_on_nothing_but_their_arguments() -> None:
    assert scene("Kettle", key="a", tag="CLUB $3.50") == scene("Kettle", key="a", tag="CLUB $3.50")
    assert scene("Kettle", key="a") != scene("Kettle", key="b")
    assert label(["A"], key="k") == label(["A"], key="k")


def test_a_line_that_is_too_long_is_drawn_smaller_and_still_inside() -> None:
    wide = Image.open(io.BytesIO(poster(["A VERY LONG HEADLINE INDEED, REALLY"], key="k")))
    edge = wide.convert("L").crop((0, 40, 4, 220))
    assert min(edge.get_flattened_data()) > 128


def test_the_same_world_draws_the_same_pictures(world: World) -> None:
    again = World(world.seed)
    for key in ("shipping", "coupon-1", "label-5", "photo-kite-0"):
        assert picture(world.region, world.shop, key) == picture(again.region, again.shop, key)


def test_an_unknown_picture_is_none(world: World) -> None:
    for key in ("", "label", "label-", "label-x", "photo-", "photo-unicorn-0", "coupon-9", "ship"):
        assert picture(world.region, world.shop, key) is None
