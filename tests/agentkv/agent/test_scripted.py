import pytest

from agentkv.models.scripted import RandomClicks, Solution, SolutionStuck, Stop
from agentkv_env.actions import extract, parse
from agentkv_env.page import Page


@pytest.mark.parametrize(
    ("step", "reply"),
    [
        ("click [link: Blue Kayak]", "at Blue Kayak\n```click [3]```"),
        ("click [link: Red (12) 'Kayak']", "at Red (12) 'Kayak'\n```click [4]```"),
        ("click [button: Add to cart]", "at Add to cart\n```click [7]```"),
        ("click [button: Add to cart #2]", "at Add to cart\n```click [18]```"),
        ("type [textbox: Search] [red [x]] [1]", "at Search\n```type [5] [red [x]] [1]```"),
        ("type [combobox: Sort by] [Price] [0]", "at Sort by\n```type [6] [Price] [0]```"),
        ("clear [textbox: Search]", "at Search\n```clear [5]```"),
        ("scroll [down]", "scroll\n```scroll [down]```"),
        ("goto [http://wiki.localhost/]", "goto\n```goto [http://wiki.localhost/]```"),
        ("go_back", "go_back\n```go_back```"),
        ("stop [42]", "done\n```stop [42]```"),
        ("stop []", "done\n```stop []```"),
    ],
)
def test_a_named_step_becomes_a_thought_and_a_numbered_action(
    page: Page, step: str, reply: str
) -> None:
    assert Solution([step]).begin("goal").reply(page).text == reply


def test_a_step_that_names_nothing_says_which_step_and_what_there_is(page: Page) -> None:
    talk = Solution(["click [link: Blue Kayak]", "click [button: Buy]"]).begin("goal")
    talk.reply(page)
    with pytest.raises(SolutionStuck, match=r"step 2 `click \[button: Buy\]`.*'Add to cart'"):
        talk.reply(page)


def test_asking_for_the_third_of_two_says_that_there_are_two(page: Page) -> None:
    with pytest.raises(SolutionStuck, match="only 2 elements match"):
        Solution(["click [button: Add to cart #3]"]).begin("goal").reply(page)


def test_a_line_that_is_no_action_is_stuck_too(page: Page) -> None:
    with pytest.raises(SolutionStuck, match="not an action"):
        Solution(["buy the kayak"]).begin("goal").reply(page)


def test_a_solution_does_not_go_on_past_a_failed_action(page: Page) -> None:
    talk = Solution(["click [link: Blue Kayak]", "stop []"]).begin("goal")
    talk.reply(page)
    with pytest.raises(SolutionStuck, match=r"click \[link: Blue Kayak\].*covered"):
        talk.reply(page, note="error: the link is covered")


def test_a_solution_without_a_stop_says_so_at_its_end(page: Page) -> None:
    talk = Solution(["scroll [down]"]).begin("goal")
    talk.reply(page)
    with pytest.raises(SolutionStuck, match="without a stop"):
        talk.reply(page)


def test_episodes_of_one_solution_do_not_share_their_place(page: Page) -> None:
    solution = Solution(["scroll [down]", "stop [7]"])
    solution.begin("goal").reply(page)
    assert solution.begin("goal").reply(page).text == "scroll\n```scroll [down]```"


def test_stop_stops_at_once(page: Page) -> None:
    assert parse(extract(Stop("7").begin("goal").reply(page).text)).answer == "7"


def test_random_clicks_are_on_the_page_and_repeat_with_their_seed(page: Page) -> None:
    def clicks(seed: int) -> list[int | None]:
        talk = RandomClicks().begin("goal", seed=seed)
        return [parse(extract(talk.reply(page).text)).element_id for _ in range(20)]

    assert clicks(1) == clicks(1) != clicks(2)
    assert set(clicks(1)) <= {3, 4, 5, 6, 7, 18}


def test_random_clicks_scroll_where_nothing_can_be_clicked() -> None:
    empty = Page("http://shop.localhost/", "", ())
    assert "scroll [down]" in RandomClicks().begin("goal").reply(empty).text
