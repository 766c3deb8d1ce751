"""Language models that only count, to compare a network with: unigrams, and n-grams with modified Kneser-Ney smoothing.

The smoothing is the interpolated one of Chen and Goodman (1998) with three discounts an order. What is special: an
n-gram is one 64-bit number, its last token in the lowest bits, so that sorted arrays and binary search do all the work.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

HALF = np.array([0.0, 0.5, 0.5, 0.5])  # discounts where there are too few n-grams to estimate them


class Unigrams:
    """Shares of the tokens in the training stream, with one count more for every token of the vocabulary."""

    def __init__(self, stream: np.ndarray, vocabulary: int) -> None:
        counts = np.bincount(stream, minlength=vocabulary) + 1
        self.probabilities = counts / counts.sum()

    def losses(self, stream: np.ndarray) -> np.ndarray:
        """Negative log likelihood of every token but the first, in nats."""
        losses: np.ndarray = -np.log(self.probabilities[stream[1:]])
        return losses


@dataclass(frozen=True)
class Order:
    """The n-grams of one length: what each keeps of its context's probability, and what the context gives away."""

    grams: np.ndarray  # sorted
    kept: np.ndarray  # (count - discount) / count of the context
    contexts: np.ndarray  # sorted
    given: np.ndarray  # share that goes to the next shorter context


class KneserNey:
    """Interpolated modified Kneser-Ney: P(w | h) = (c(hw) - D(c(hw))) / c(h) + given(h) P(w | h without its oldest).

    c counts occurrences for the longest n-grams, and for shorter ones the different tokens that come before them. Below
    the unigrams is the uniform distribution, so that nothing has probability 0.
    """

    def __init__(self, stream: np.ndarray, vocabulary: int, order: int = 5) -> None:
        self.vocabulary, self.order = vocabulary, order
        self.bits = max(1, int(vocabulary - 1).bit_length())
        if self.bits * order > 63:
            raise ValueError(f"{order} tokens of {self.bits} bits do not fit into 63 bits: lower the order")
        if len(stream) < order:
            raise ValueError(f"a stream of {len(stream)} tokens holds no {order}-gram")
        grams, counts = np.unique(self._keys(stream, order), return_counts=True)
        self.orders = [self._order(grams, counts)]
        for length in range(order - 1, 0, -1):
            # Every longer n-gram is there once, so this counts the different tokens before the shorter one.
            grams, counts = np.unique(grams & self._mask(length), return_counts=True)
            self.orders.insert(0, self._order(grams, counts))

    def probability(self, context: np.ndarray, tokens: np.ndarray) -> np.ndarray:
        """Probability of tokens (n,) after contexts (n, m), the latest token last; only the last order - 1 count."""
        context = context[:, max(0, context.shape[1] - self.order + 1) :].astype(np.int64)
        likely = np.full(len(tokens), 1 / self.vocabulary)
        before = np.zeros(len(tokens), dtype=np.int64)
        for length, order in enumerate(self.orders[: context.shape[1] + 1], start=1):
            if length > 1:
                before |= context[:, -length + 1] << (self.bits * (length - 2))
            likely = _interpolated(order, before, before << self.bits | tokens, likely)
        return likely

    def losses(self, stream: np.ndarray) -> np.ndarray:
        """Negative log likelihood of every token but the first, in nats; the first ones have shorter contexts."""
        losses = np.empty(len(stream) - 1)
        full = self.order - 1
        for place in range(1, min(full, len(stream))):
            losses[place - 1] = -np.log(self.probability(stream[None, :place], stream[place : place + 1])[0])
        if len(stream) > full:
            contexts = np.lib.stride_tricks.sliding_window_view(stream, full)[:-1] if full else stream[:, None][:, :0]
            first = max(full, 1)
            losses[first - 1 :] = -np.log(self.probability(contexts[first - full :], stream[first:]))
        return losses

    def _keys(self, stream: np.ndarray, length: int) -> np.ndarray:
        stream = stream.astype(np.int64)
        keys = np.zeros(len(stream) - length + 1, dtype=np.int64)
        for place in range(length):
            keys = keys << self.bits | stream[place : place + len(keys)]
        return keys

    def _mask(self, length: int) -> int:
        return (1 << (self.bits * length)) - 1

    def _order(self, grams: np.ndarray, counts: np.ndarray) -> Order:
        discounts = discounts_of(counts)[np.minimum(counts, 3)]
        # Sorted n-grams have their contexts in order, too.
        contexts, starts = np.unique(grams >> self.bits, return_index=True)
        totals = np.add.reduceat(counts, starts)
        repeats = np.diff(np.append(starts, len(grams)))
        kept = (counts - discounts) / np.repeat(totals, repeats)
        return Order(grams, kept, contexts, np.add.reduceat(discounts, starts) / totals)


def discounts_of(counts: np.ndarray) -> np.ndarray:
    """What is taken from a count of 1, 2, and 3 or more (places 1 to 3), from how many n-grams have counts 1 to 4."""
    n1, n2, n3, n4 = (int((counts == count).sum()) for count in (1, 2, 3, 4))
    if not (n1 and n2 and n3 and n4):
        return HALF
    y = n1 / (n1 + 2 * n2)
    discounts = np.array([0.0, 1 - 2 * y * n2 / n1, 2 - 3 * y * n3 / n2, 3 - 4 * y * n4 / n3])
    usable = (discounts[1:] > 0).all() and (discounts[1:] <= (1, 2, 3)).all()
    return discounts if usable else HALF


def _interpolated(order: Order, contexts: np.ndarray, grams: np.ndarray, shorter: np.ndarray) -> np.ndarray:
    """Where the context was seen: its own share and that of the shorter one; else the shorter one alone."""
    place, seen = _find(order.contexts, contexts)
    gram_place, known = _find(order.grams, grams)
    own = np.where(known, order.kept[gram_place], 0.0)
    mixed: np.ndarray = np.where(seen, own + order.given[place] * shorter, shorter)
    return mixed


def _find(sorted_keys: np.ndarray, wanted: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Places of keys in a sorted array, and whether they are there."""
    places = np.minimum(np.searchsorted(sorted_keys, wanted), len(sorted_keys) - 1)
    return places, sorted_keys[places] == wanted
