"""attention_patterns: which heads look at the token before, at the token after an earlier copy, at the first one.

Every score stands beside its chance value, what a head with uniform attention has on the same queries.
Induction (Olsson et al., 2022, arXiv 2209.11895) is measured on random tokens, which no text can have taught.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl
import torch
from torch import Tensor

from abbe.measures import last_occurrence, pattern_keys
from abbe.models import AttentionCall, LoadedModel, Tap, read_text, tap, windows
from abbe.runs.window import check_model, check_tokens, run_model

ON_TEXT = ("previous_token", "first_token")
ON_REPEATS = ("induction", "same_token")
PATTERNS = ("previous_token", "induction", "first_token", "same_token")

# Random weights, even large ones, stay below 1.5 x chance; a head that only leans towards a pattern is not enough.
LEAST_INDUCTION, LEAST_PREVIOUS, TIMES_CHANCE = 0.2, 0.3, 10


def attention_patterns(model: LoadedModel, *, tokens: int = 256, repeats: int = 4, seed: int = 0) -> pl.DataFrame:
    """One row for every layer and head of a GPT-2: mean weights on four keys, and their chance values.

    previous_token: the key just before the query. first_token: key 0. Both over `repeats` windows of the embedded
    sample, as long as the sequences of the other two.
    induction: the key after the earlier occurrence of the query's token. same_token: that occurrence itself. Both over
    `repeats` sequences of `tokens` different random tokens that come twice; the queries are those of the second time.
    High means that the head does this, low that it does not; `..._chance` is the mean of one over the number of keys.
    """
    cut = windows(read_text(), [2 * tokens], repeats, seed, tokenizer=model.tokenizer, context=model.context)
    with tap(model) as open_tap:
        check_model(model, open_tap, check_tokens(model, cut))
        reader = _Reader(open_tap)
        for window in cut:
            reader.read(model, window.tokens, ON_TEXT)
        for sequence in repeated_passages(model, tokens, repeats, seed):
            reader.read(model, sequence, ON_REPEATS)
        return reader.table()


def repeated_passages(model: LoadedModel, tokens: int, repeats: int, seed: int) -> list[Tensor]:
    """Sequences of different random tokens that come twice; none of them is special."""
    plain = torch.tensor(sorted({*model.tokenizer.get_vocab().values()} - {*model.tokenizer.all_special_ids}))
    generator = torch.Generator().manual_seed(seed)
    passages = [plain[torch.randperm(len(plain), generator=generator)[:tokens]] for _ in range(repeats)]
    return [torch.cat([passage, passage]) for passage in passages]


@dataclass(frozen=True)
class Learned:
    """An answer and the numbers it rests on; true or false like its answer."""

    answer: bool
    sentence: str

    def __bool__(self) -> bool:
        return self.answer


def learned_attention(patterns: pl.DataFrame) -> Learned:
    """Whether a model has learned to look at tokens for what they are and where they stand.

    The rule: one head has an induction score of at least 0.2, one a previous-token score of at least 0.3, and both are
    above 10 x their chance values. Induction takes two layers that work together, so random weights never show it.
    """
    best = [_best(patterns, "induction", LEAST_INDUCTION), _best(patterns, "previous_token", LEAST_PREVIOUS)]
    answer = all(one.answer for one in best)
    verdict = "has learned attention" if answer else "has not learned attention"
    return Learned(answer, f"{verdict}: {'; '.join(one.sentence for one in best)}")


def _best(patterns: pl.DataFrame, pattern: str, least: float) -> Learned:
    head = patterns.sort(pattern, descending=True).row(0, named=True)
    score, chance = head[pattern], head[f"{pattern}_chance"]
    sentence = (
        f"best {pattern.replace('_', '-')} score {score:.3g}, layer {head['layer']} head {head['head']} "
        f"(needed: {least:g} and {TIMES_CHANCE} x the chance of {chance:.2g})"
    )
    return Learned(score >= least and score > TIMES_CHANCE * chance, sentence)


def targets_of(tokens: Tensor) -> dict[str, Tensor]:
    """Key that every pattern expects of each query, -1 where it expects none.

    The earlier occurrence is the last one before the query. A query whose key would be itself does not count.
    """
    first = torch.where(torch.arange(len(tokens)) > 0, 0, -1)
    return pattern_keys(tokens) | {"first_token": first, "same_token": last_occurrence(tokens)}


def weight_on(weights: Tensor, targets: Tensor) -> Tensor:
    """(head,): the weights (head, query, key) of the queries on their targets, summed over queries that have one."""
    wanted = (targets >= 0).nonzero()[:, 0]
    return weights[:, wanted, targets[wanted]].sum(-1, dtype=torch.float64)


class _Reader:
    """Sums of weights and of chance, by layer and pattern."""

    def __init__(self, open_tap: Tap) -> None:
        self.numbers = {name: number for number, name in enumerate(open_tap.layers)}
        self.sums: dict[tuple[int, str], Tensor] = {}
        self.queries: dict[str, int] = defaultdict(int)
        open_tap.listen(self._read)

    @torch.no_grad()
    def read(self, model: LoadedModel, tokens: Tensor, patterns: Sequence[str]) -> None:
        self.targets = {pattern: targets for pattern, targets in targets_of(tokens).items() if pattern in patterns}
        for pattern, targets in self.targets.items():
            self.queries[pattern] += int((targets >= 0).sum())
        run_model(model, tokens)

    def _read(self, call: AttentionCall) -> None:
        queries = torch.arange(call.query.shape[-2])
        visible, weights = call.visible(queries)[0], call.weights(queries)[0]
        uniform = (visible / visible.sum(-1, keepdim=True)).expand_as(weights)
        for pattern, targets in self.targets.items():
            self._add(self.numbers[call.name], pattern, weight_on(weights, targets))
            self._add(self.numbers[call.name], f"{pattern}_chance", weight_on(uniform, targets))

    def _add(self, layer: int, name: str, more: Tensor) -> None:
        self.sums[layer, name] = self.sums.get((layer, name), 0) + more

    def table(self) -> pl.DataFrame:
        layers = []
        for layer in self.numbers.values():
            columns: dict[str, Any] = {"layer": layer, "head": range(len(self.sums[layer, PATTERNS[0]]))}
            for pattern in PATTERNS:
                for name in (pattern, f"{pattern}_chance"):
                    columns[name] = (self.sums[layer, name] / self.queries[pattern]).tolist()
            layers.append(pl.DataFrame(columns, schema_overrides={"layer": pl.Int64, "head": pl.Int64}))
        return pl.concat(layers)
