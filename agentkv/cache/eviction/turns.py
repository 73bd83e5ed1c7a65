"""The confidence of whole turns, for a gate that decides between them."""

from collections.abc import Sequence


class Turns:
    """Sums up the confidence of the tokens that each sequence decodes between two inputs.

    A turn is the tokens decoded one by one; it ends with the next forward of several tokens.
    """

    def __init__(self, sums: Sequence[float] = (), counts: Sequence[int] = ()) -> None:
        self.sums, self.counts = list(sums), list(counts)
        """Per sequence: sum of the confidences of the turn so far, and number of its tokens."""

    def decide(self, confidences: Sequence[float], num_new: int) -> list[float] | None:
        """Note the confidence after a forward of `num_new` tokens, and return the mean of each turn
        that it ends; 0 for a turn without tokens. None: it ends no turn."""
        if not self.counts:
            self.sums, self.counts = [0.0] * len(confidences), [0] * len(confidences)
        if num_new == 1:
            self.sums = [total + each for total, each in zip(self.sums, confidences, strict=True)]
            self.counts = [count + 1 for count in self.counts]
            return None
        ended = zip(self.sums, self.counts, strict=True)
        means = [total / count if count else 0.0 for total, count in ended]
        self.sums, self.counts = [0.0] * len(confidences), [0] * len(confidences)
        return means

    def reorder(self, index: Sequence[int]) -> None:
        """Make sequence i a copy of what sequence index[i] was."""
        if self.counts:
            self.sums = [self.sums[i] for i in index]
            self.counts = [self.counts[i] for i in index]
