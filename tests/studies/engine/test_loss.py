"""The loss of windows: against log-probabilities written out, in pieces, and refusals."""

from __future__ import annotations

import pytest
import tiny_runs
import torch

import abbe
from abbe.models import logits_in_pieces, windows
from abbe.runs import loss as _loss
from abbe.runs.loss import check_causal, next_token_losses, window_losses


def test_losses_are_those_of_the_log_probabilities(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_runs.model("llama")
    cut = windows(tiny_runs.TEXT, [12, 30], 2, 0, tokenizer=model.tokenizer, context=model.context)
    tokens = cut[-1].tokens
    probabilities = model.network(input_ids=tokens[None]).logits[0].double().log_softmax(-1).detach()
    expected = torch.stack([-probabilities[i, tokens[i + 1]] for i in range(len(tokens) - 1)])
    torch.testing.assert_close(next_token_losses(model, tokens), expected, rtol=1e-5, atol=1e-6)
    of_all = window_losses(model, cut)
    torch.testing.assert_close(of_all[-1], expected.mean(), rtol=1e-5, atol=1e-6)
    monkeypatch.setattr(_loss, "LOGITS_AT_ONCE", 1000)  # a few rows at once
    torch.testing.assert_close(window_losses(model, cut), of_all, rtol=1e-6, atol=1e-7)


@torch.no_grad()
@pytest.mark.parametrize("name", ["gpt2", "gemma2"])
def test_the_body_runs_once_and_comes_back(name: str) -> None:
    """gemma2 bends its logits behind the head; pieces of them are bent, too."""
    model = tiny_runs.model(name)
    network, tokens = model.network, torch.arange(2, 32)
    whole, calls = network(input_ids=tokens[None]).logits[0], []
    body = network.base_model
    body.register_forward_hook(lambda *_: calls.append(1))
    pieces = list(logits_in_pieces(network, tokens, 7 * whole.shape[-1]))
    assert [len(piece) for piece in pieces] == [7, 7, 7, 7, 2]
    assert len(calls) == 1
    torch.testing.assert_close(torch.cat(pieces), whole, rtol=0, atol=1e-5)
    assert network.base_model is body
    stopped = logits_in_pieces(network, tokens, 1)
    next(stopped)
    assert network.base_model is not body
    stopped.close()  # as an error in the loop's body does
    assert network.base_model is body
    assert torch.equal(network(input_ids=tokens[None]).logits[0], whole)


def test_pieces_under_a_swap(monkeypatch: pytest.MonkeyPatch) -> None:
    model, tokens = tiny_runs.model("llama"), torch.arange(2, 32)
    own = next_token_losses(model, tokens)
    with abbe.swap(model, "sparsemax"):
        whole = next_token_losses(model, tokens)
        monkeypatch.setattr(_loss, "LOGITS_AT_ONCE", 1000)
        torch.testing.assert_close(next_token_losses(model, tokens), whole, rtol=1e-6, atol=1e-6)
    assert float((whole - own).abs().max()) > 0.01


def test_windows_are_reported_as_they_are_done() -> None:
    model, windows_done = tiny_runs.model(), []
    cut = windows(tiny_runs.TEXT, [12], 3, 0, tokenizer=model.tokenizer)
    assert window_losses(model, cut, windows_done.append).shape == (3,)
    assert windows_done == list(cut)


def test_only_causal_language_models_have_a_loss() -> None:
    check_causal(tiny_runs.model("gpt2"), "capacity")
    with pytest.raises(abbe.AbbeError, match="tiny bert is an encoder: capacity needs a causal language model"):
        check_causal(tiny_runs.model("bert"), "capacity")
    with pytest.raises(abbe.AbbeError, match="is an encoder-decoder"):
        check_causal(tiny_runs.model("t5"), "capacity")
    whole = tiny_runs.model("gpt2")
    headless = abbe.models.wrap(whole.network.base_model, whole.tokenizer, "headless")
    with pytest.raises(abbe.AbbeError, match="headless has no language-model head"):
        check_causal(headless, "capacity")
