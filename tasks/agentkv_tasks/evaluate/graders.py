"""What scoring may ask beside the page: a judge model, and the admin interface of a shop."""

from dataclasses import dataclass

from agentkv_tasks.evaluate.judge import Judge
from agentkv_tasks.evaluate.magento import MagentoAdmin
from agentkv_tasks.evaluate.strings import CannotScore


@dataclass(frozen=True)
class Graders:
    """The graders of a run; those that are None leave the tasks that need them unjudged."""

    judge: Judge | None = None
    admin: MagentoAdmin | None = None

    def the_judge(self, purpose: str) -> Judge:
        """Return the judge. Raises CannotScore with `purpose` if there is none."""
        if self.judge is None:
            raise CannotScore(f"{purpose}, which needs a judge model (--judge)")
        return self.judge

    def the_admin(self) -> MagentoAdmin:
        """Return the admin interface. Raises CannotScore if there is none."""
        if self.admin is None:
            raise CannotScore(
                "this check reads Magento's admin interface, which needs an `admin` in the file of "
                "sites"
            )
        return self.admin


NOBODY = Graders()
"""No grader: whatever needs one is unjudged."""
