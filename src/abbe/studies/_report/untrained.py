"""Whether attention has been learned at all: there is no advice on random or uniform weights.

Either sign is enough. Fresh initial weights are so small that attention is uniform in nearly all heads, as it is where
queries or keys are zero. Large random weights, or normalised queries and keys, give attention that looks selective
without having learned anything; then the loss is that of guessing.
docs/explanation/report-rules.md has the measurements.
"""

from __future__ import annotations

from ...words.finding import NOT_LEARNED, NOTICE, Fact, Finding
from ...words.numbers import heads_of, percent, sentence
from ...words.thresholds import NEAR_UNIFORM
from .._engine.lookup import Lookup
from .head_verdicts import head_facts, is_near_uniform
from .result import Sample

UNIFORM_HEADS = 0.9  # of all heads near the entropy ceiling; at most 0.02 in trained models
GUESSING = 0.97  # of ln(vocabulary): untrained models had 0.995 and more in every window, trained ones at most 0.96


def hardly_learned(table: Lookup, sample: Sample | None) -> Finding | None:
    """The verdict, if attention is uniform in nearly all heads or the next token is merely guessed."""
    measured = {place: facts for place, facts in head_facts(table).items() if facts.entropy_share is not None}
    near = tuple(place for place, facts in measured.items() if is_near_uniform(facts))
    uniform = bool(measured) and len(near) >= UNIFORM_HEADS * len(measured)
    loss, guessing = (None, None) if sample is None else (sample.loss, sample.guessing)
    guesses = loss is not None and guessing is not None and loss >= GUESSING * guessing
    if not (uniform or guesses):
        return None
    signs = []
    if uniform:
        words = heads_of(len(near), len(measured), "is", "are")
        signs.append(f"{words} within {percent(1 - NEAR_UNIFORM)} of the entropy ceiling at {table.longest:,} tokens")
    if guesses:
        signs.append(
            f"the next token is predicted no better than by guessing (loss {loss:.2f} nats, guessing {guessing:.2f})"
        )
    numbers: dict[str, Fact] = {
        "heads near the entropy ceiling": len(near), "heads": len(measured),
        "loss of the next token, nats": loss, "loss of guessing, nats": guessing,
    }  # fmt: skip
    rule = (
        f"At least {percent(UNIFORM_HEADS)} of the heads have a mean entropy of {percent(NEAR_UNIFORM)} of the mean of "
        f"ln n or more, or the loss on the window shown is at least {percent(GUESSING)} of ln V, the loss of guessing "
        "among all V tokens. For a trained model the second means that it cannot predict this text. Only causal "
        "language models have that loss."
    )
    return Finding(NOT_LEARNED, f"{NOTICE} {sentence(', and '.join(signs))}.", rule, numbers, near)
