"""Taps and swaps leave no trace: restored models, registries and files; models that do not disturb each other."""

from __future__ import annotations

import copy
import gc
import io
import pickle
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import tiny_models as tiny
import torch
from swap_reference import reference_output
from threads import in_two_threads
from tiny_models import gpt2, llama, make, t5, text_pair, tokens
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import AttentionInterface, AttentionMaskInterface, GPT2LMHeadModel

from abbe import AbbeError, swap, tap
from abbe.models import AttentionCall

pytestmark = pytest.mark.usefixtures("no_grad")
Open = Callable[[Any], Any]

OPEN: dict[str, Open] = {"tap": tap, "swap": lambda network: swap(network, "entmax:alpha=1.5,learn=true")}
BOTH = pytest.mark.parametrize("opened", OPEN.values(), ids=OPEN)


def everything(network: nn.Module) -> Any:
    """All that a tap or swap touches: config objects by identity, their settings, hooks, parts, registered names."""
    configs = [
        (name, key, id(value), value.to_dict(), value._attn_implementation)
        for name, module in network.named_modules()
        for key, value in vars(module).items()
        if hasattr(value, "_attn_implementation")
    ]
    hooks = [
        (len(module._forward_pre_hooks), len(module._forward_hooks), len(module._forward_pre_hooks_with_kwargs))
        for module in network.modules()
    ]
    states = network._load_state_dict_pre_hooks, network._state_dict_pre_hooks
    parts = list(network.state_dict()), [*dict(network.named_modules())], sorted(vars(network)), list(map(len, states))
    return configs, hooks, parts, dict(AttentionInterface._global_mapping), dict(AttentionMaskInterface._global_mapping)


def listen(handle: Any, consumer: Callable[[AttentionCall], object]) -> None:
    handle.listen(lambda call, *weights_of: consumer(call))


@BOTH
@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
@tiny.builds(tiny.gpt2, tiny.llama, tiny.t5)
def test_everything_is_restored(build: Any, implementation: str, opened: Open) -> None:
    network = build(attn_implementation=implementation)
    inputs = tiny.text_pair() if build is tiny.t5 else {"input_ids": tiny.tokens()}
    before, plain = everything(network), network(**inputs).logits
    with opened(network) as handle:
        handle.check(**inputs)
        listen(handle, lambda call: None)
        network(**inputs)
        assert everything(network) != before
        name = network.config._attn_implementation  # misleads nobody
        assert not any(word in name for word in ("sdpa", "flash", "flex_attention", "eager", "/"))
        assert name in AttentionInterface._global_mapping.keys() & AttentionMaskInterface._global_mapping.keys()
        assert ("abbe_normalizers.0.0.learned.alpha.raw" in network.state_dict()) == (opened is not tap)
    assert everything(network) == before
    assert network.config._attn_implementation == implementation
    assert torch.equal(network(**inputs).logits, plain)


@BOTH
def test_everything_is_restored_after_an_exception(opened: Open) -> None:
    network = tiny.gpt2()
    before = everything(network)

    def fail(call: AttentionCall) -> None:
        raise RuntimeError("a consumer failed")

    def run() -> None:
        with opened(network) as handle:
            listen(handle, fail)
            network(input_ids=tiny.tokens())

    with pytest.raises(RuntimeError, match="a consumer failed"):
        run()
    assert everything(network) == before
    with pytest.raises(IndexError), opened(network) as handle:
        handle.check(input_ids=tiny.tokens(65))  # one token more than there are positions
    assert everything(network) == before


@BOTH
@pytest.mark.parametrize(
    ("owner", "method", "good"),
    [
        (AttentionInterface, "register", 0),
        (AttentionMaskInterface, "register", 0),
        (nn.Module, "register_forward_pre_hook", 0),
        (nn.Module, "register_forward_pre_hook", 1),
        (nn.Module, "register_forward_hook", 0),
        (nn.Module, "register_forward_hook", 4),
    ],
)
def test_a_failed_start_leaves_no_trace(
    monkeypatch: pytest.MonkeyPatch, owner: Any, method: str, good: int, opened: Open
) -> None:
    """The first calls of a method are good, the next one fails."""
    network, honest, calls = tiny.llama(), getattr(owner, method), []
    before = everything(network)

    def failing(*args: Any, **more: Any) -> Any:
        calls.append(args)
        return honest(*args, **more) if len(calls) <= good else 1 / 0

    monkeypatch.setattr(owner, method, failing)
    with pytest.raises(ZeroDivisionError), opened(network):
        pass
    assert len(calls) == good + 1
    assert everything(network) == before


@BOTH
def test_a_failed_check_changes_nothing_and_can_be_followed_by_a_good_one(opened: Open) -> None:
    network = tiny.gpt2()
    with opened(network) as handle:
        wanted, hooks = network(input_ids=tiny.tokens()).logits, everything(network)[1]
        with pytest.raises(IndexError):
            handle.check(input_ids=tiny.tokens(65))
        with pytest.raises(AbbeError, match="at least 2 tokens"):  # found in the second run
            handle.check(input_ids=tiny.tokens(1))
        assert everything(network)[1] == hooks
        assert torch.equal(network(input_ids=tiny.tokens()).logits, wanted)
        assert handle.check(input_ids=tiny.tokens()) < 1e-5


def test_a_swap_is_restored_once_or_twice() -> None:
    network = tiny.llama()
    before, plain = everything(network), network(input_ids=tiny.tokens()).logits
    handle = swap(network, "sparsemax")
    assert tiny.relative_error(plain, network(input_ids=tiny.tokens()).logits) > 1e-2
    handle.restore()
    handle.restore()
    assert everything(network) == before
    for use in (handle.__enter__, lambda: handle.listen(print), lambda: handle.check(input_ids=tiny.tokens())):
        with pytest.raises(AbbeError, match="was restored already; call swap again"):
            use()


def test_nothing_lies_on_a_tap() -> None:
    network = tiny.llama()
    with tap(network):
        before = everything(network)
        for again in OPEN.values():
            for inner in (network, network.model):
                with pytest.raises(AbbeError, match="is tapped already; leave the other tap first"), again(inner):
                    pass
        assert everything(network) == before
    with tap(network.model) as t:
        assert t.check(input_ids=tiny.tokens()) < 1e-5
        with pytest.raises(AbbeError, match="LlamaForCausalLM is tapped already"), tap(network):
            pass
    swap(network, "sparsemax").restore()


@BOTH
def test_a_session_below_another_one_is_not_closed(opened: Open) -> None:
    network = tiny.llama()
    before = everything(network)
    below = swap(network, "sparsemax")
    swapped = everything(network)
    with opened(network):
        above = everything(network)
        with pytest.raises(AbbeError, match="another tap or swap of this LlamaForCausalLM was opened later: leave it"):
            below.restore()
        assert everything(network) == above
    assert everything(network) == swapped
    below.restore()
    assert everything(network) == before


@BOTH
def test_a_model_that_shares_its_config_is_left_alone(opened: Open) -> None:
    one = tiny.gpt2()
    two = GPT2LMHeadModel(one.config).eval()
    plain, heard = two(input_ids=tiny.tokens()).logits, []
    with opened(one) as handle:
        listen(handle, heard.append)
        assert two.config._attn_implementation == "sdpa"
        assert torch.equal(two(input_ids=tiny.tokens()).logits, plain)
        with opened(two) as other:
            assert other.check(input_ids=tiny.tokens()) < 1e-5
        assert not heard


def test_two_threads_with_two_models() -> None:
    networks, specs = [tiny.llama(), tiny.llama(num_hidden_layers=3)], ["sparsemax", "topk:k=2"]
    wanted = [reference_output(one, spec, input_ids=tiny.tokens()) for one, spec in zip(networks, specs, strict=True)]
    before = set(AttentionInterface._global_mapping)
    errors: dict[int, list[float]] = {0: [], 1: []}
    layers: dict[int, set[int]] = {0: set(), 1: set()}

    def work(i: int) -> None:
        for _ in range(8):
            with torch.no_grad(), swap(networks[i], specs[i]):
                errors[i].append(tiny.relative_error(wanted[i], networks[i](input_ids=tiny.tokens()).logits))
            with torch.no_grad(), tap(networks[i]) as t:
                errors[i].append(t.check(input_ids=tiny.tokens()))
                t.listen(lambda call: layers[i].add(call.layer))
                networks[i](input_ids=tiny.tokens())

    in_two_threads(work)
    assert [len(errors[i]) for i in range(2)] == [16, 16]
    assert max(errors[0] + errors[1]) < 2e-5
    assert layers == {0: {0, 1}, 1: {0, 1, 2}}
    assert set(AttentionInterface._global_mapping) <= before


@BOTH
def test_consumers_are_not_called_by_the_check_and_are_called_in_order(opened: Open) -> None:
    network, heard = tiny.llama(), []
    with opened(network) as handle:
        listen(handle, lambda call: heard.append(("a", call.layer)))
        listen(handle, lambda call: heard.append(("b", call.layer)))
        handle.check(input_ids=tiny.tokens())
        assert heard == []
        network(input_ids=tiny.tokens())
        network(input_ids=tiny.tokens())
    assert heard == [("a", 0), ("b", 0), ("a", 1), ("b", 1)] * 2


def test_nothing_is_kept_after_a_layer() -> None:
    network = tiny.llama()
    seen: list[list[weakref.ref[Any]]] = []

    def consumer(call: AttentionCall) -> None:
        gc.collect()
        assert all(ref() is None for refs in seen for ref in refs)  # the layers before
        parts = (call, call.query, call.key, call.value, call.hidden)
        seen.append([weakref.ref(part) for part in parts])

    with tap(network) as t:
        t.check(input_ids=tiny.tokens(), use_cache=False)
        t.listen(consumer)
        network(input_ids=tiny.tokens(), use_cache=False)
        gc.collect()
        assert len(seen) == 2
        assert all(ref() is None for refs in seen for ref in refs)


class NoTensorAsLargeAs(TorchDispatchMode):
    """Fails when any operation makes a tensor of so many bytes; a view counts as what it views."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for part in result if isinstance(result, (tuple, list)) else (result,):
            if isinstance(part, Tensor) and part.untyped_storage().nbytes() >= self.size:
                raise MemoryError(f"{func} made a tensor of shape {tuple(part.shape)}")
        return result


@pytest.mark.quick(1)
@pytest.mark.parametrize(
    ("build", "settings"),
    [
        (tiny.llama, {}),
        (tiny.gpt2, {"n_positions": 4096}),
        (tiny.bert, {"max_position_embeddings": 4096}),
        (tiny.gpt_oss, {"sliding_window": 5000}),  # a shorter window would make the model itself build a mask
    ],
    ids=["llama", "gpt2", "bert", "gpt-oss"],
)
def test_no_matrix_of_all_queries_and_keys(build: Any, settings: dict[str, Any]) -> None:
    network, rows, heard = build(**settings), torch.arange(0, 4096, 64), []
    with tap(network) as t:
        t.listen(lambda call: heard.append(call.logits(rows).shape))
        with NoTensorAsLargeAs(4096 * 4096):  # not even one bool for each pair
            network(input_ids=tiny.tokens(4096, batch=1))
            assert heard == [(1, 4, 64, 4096)] * 2
            if build is not tiny.gpt_oss:  # which computes eagerly when it is not tapped
                t.check(input_ids=tiny.tokens(4096, batch=1))


@pytest.mark.parametrize("spec", ["entmax:alpha=1.5", pytest.param("sparsemax", marks=pytest.mark.slow)])
@tiny.builds(tiny.llama, tiny.bert)
def test_no_matrix_under_a_swap(build: Any, spec: str) -> None:
    network = build(max_position_embeddings=4096)
    with swap(network, spec), NoTensorAsLargeAs(4096 * 4096):
        network(input_ids=tiny.tokens(4096, batch=1))


def test_the_guard_of_the_memory_test_works() -> None:
    network = tiny.llama(attn_implementation="eager")
    with NoTensorAsLargeAs(1024 * 1024), pytest.raises(MemoryError):
        network(input_ids=tiny.tokens(1024, batch=1))


@BOTH
@pytest.mark.parametrize("name", tiny.UNROUTED)
def test_unrouted_models_are_refused_by_name(name: str, opened: Open) -> None:
    network = tiny.UNROUTED[name]()
    before = everything(network)
    expected = rf"^unsupported: {name} does not route its attention through transformers' attention interface"
    with pytest.raises(AbbeError, match=expected), opened(network):
        pass
    assert everything(network) == before


def test_a_layer_that_is_never_called_is_refused() -> None:
    network = tiny.gpt2()
    network.transformer.spare = copy.deepcopy(network.transformer.h[0])
    expected = r"GPT2LMHeadModel did not call 1 of its 3 attention modules.*transformer\.spare\.attn"
    with pytest.raises(AbbeError, match=expected), tap(network) as t:
        t.check(input_ids=tiny.tokens())


def test_a_model_with_one_unrouted_layer_is_refused() -> None:
    class HomemadeAttention(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x

    network = tiny.gpt2()
    network.transformer.h[1].attn = HomemadeAttention()
    with pytest.raises(AbbeError, match=r"unsupported: GPT2LMHeadModel .*\(HomemadeAttention\)"), tap(network):
        pass


@pytest.mark.parametrize("name", OPEN)
def test_only_models(name: str) -> None:
    @dataclass
    class Loaded:
        network: nn.Module

    for other in ("gpt2", None):
        with pytest.raises(AbbeError, match=f"{name} needs a transformers model .* got {type(other).__name__}"):
            OPEN[name](other)
    with OPEN[name](Loaded(tiny.llama())) as handle:  # as `load` gives it
        assert handle.check(input_ids=tiny.tokens()) < 1e-5


def test_without_a_check_only_the_projection_is_unknown() -> None:
    network, calls = tiny.llama(), []
    with tap(network) as t:
        t.listen(calls.append)
        network(input_ids=tiny.tokens())
        assert t.error is None
    assert [call.layer for call in calls] == [0, 1]
    assert all(call.projection is None and call.hidden is not None for call in calls)
    assert calls[0].weights().shape == (2, 4, tiny.LENGTH, tiny.LENGTH)


def test_dropout_of_a_model_in_training_is_kept() -> None:
    network = tiny.make("GPT2LMHeadModel", "GPT2Config", n_layer=1, n_head=2, n_embd=16, attn_pdrop=0.5).train()
    torch.manual_seed(0)
    wanted = network(input_ids=tiny.tokens()).logits
    with tap(network):
        torch.manual_seed(0)
        assert torch.equal(network(input_ids=tiny.tokens()).logits, wanted)


# -- Pickled while it is tapped: the plain model, and nothing of abbe; while it is swapped: with its plan --------------


def saved(network: nn.Module) -> bytes:
    target = io.BytesIO()
    torch.save(network, target)
    return target.getvalue()


def read(content: bytes) -> nn.Module:
    restored: nn.Module = torch.load(io.BytesIO(content), weights_only=False)
    return restored


@pytest.mark.parametrize("family", ["gpt2", "gemma2", "t5"])
def test_the_plain_model_is_saved_under_a_tap(family: str) -> None:
    build, inputs, _ = tiny.FAMILIES[family]
    network = build()
    want = network(**inputs()).logits
    with tap(network):
        content = saved(network)
    restored = read(content)
    assert torch.equal(restored(**inputs()).logits, want)
    assert torch.equal(network(**inputs()).logits, want)
    assert list(restored.state_dict()) == list(network.state_dict())
    assert restored.config.to_dict() == network.config.to_dict()
    assert restored.config._attn_implementation == network.config._attn_implementation
    assert b"abbe" not in content


@pytest.mark.parametrize("family", ["gpt2", "gemma2", "t5"])
def test_the_swapped_model_is_saved_with_its_plan(family: str) -> None:
    build, inputs, _ = tiny.FAMILIES[family]
    network = build()
    plain = network(**inputs()).logits
    with swap(network, "entmax:alpha=1.5,learn=true") as swapped:
        next(swapped.parameters()).add_(0.5)
        want, state = network(**inputs()).logits, list(network.state_dict())
        content = saved(network)
        with tap(network):
            tapped = saved(network)
        assert torch.equal(network(**inputs()).logits, want)  # the swap itself went on
    assert torch.equal(network(**inputs()).logits, plain)
    for written in (content, tapped, saved(read(content))):  # also the one that was read
        restored: Any = read(written)
        assert torch.equal(restored(**inputs()).logits, want)
        assert list(restored.state_dict()) == state
        assert torch.equal(copy.deepcopy(restored)(**inputs()).logits, want)
        restored.set_attn_implementation(network.config._attn_implementation)
        assert torch.equal(restored(**inputs()).logits, plain)


def pickled_hook(module: nn.Module, args: object) -> None:
    """At the top of a module, where pickle finds it."""


def test_hooks_of_others_stay_and_those_of_abbe_come_back() -> None:
    network = tiny.gpt2()
    network.register_forward_pre_hook(pickled_hook)
    hooks = [dict(module._forward_pre_hooks) for module in network.modules()]
    calls: list[int] = []
    with swap(network, "sparsemax") as swapped:
        listen(swapped, lambda call: calls.append(call.layer))
        under = [dict(module._forward_pre_hooks) for module in network.modules()]
        restored = read(saved(network))
        assert under != hooks
        assert [dict(module._forward_pre_hooks) for module in network.modules()] == under
        with pytest.raises(AbbeError, match="output_attentions"):
            network(**tiny.text(), output_attentions=True)
        network(**tiny.text())
    assert calls == [0, 1]
    assert list(restored._forward_pre_hooks.values()) == [pickled_hook]
    assert [dict(module._forward_pre_hooks) for module in network.modules()] == hooks
    assert not {"__reduce_ex__", "__deepcopy__"} & set(vars(network))


def test_pickle_and_a_part_of_the_model() -> None:
    network: Any = tiny.gpt2()
    with swap(network, "sparsemax"):
        for original in (network, network.transformer):
            restored = pickle.loads(pickle.dumps(original))
            assert isinstance(restored, type(original))
            assert torch.equal(restored(**tiny.text())[0], original(**tiny.text())[0])
    assert not torch.equal(restored(**tiny.text())[0], network.transformer(**tiny.text())[0])


def test_tensors_are_shared_until_they_are_written() -> None:
    """A large model is not held twice."""
    network = tiny.gpt2()
    with swap(network, "sparsemax"):
        _, (plain, _) = network.__reduce_ex__(2)
    held = plain.transformer
    assert all(a is b for a, b in zip(held.parameters(), network.transformer.parameters(), strict=True))


@tiny.builds(tiny.gpt2, tiny.llama)
def test_a_copy_of_a_swapped_model_is_refused(build: Any) -> None:
    network = build()
    with swap(network, "sparsemax"):
        twin = copy.deepcopy(network)
        with pytest.raises(AbbeError, match="but of a copy; swap the copy itself"):
            twin(input_ids=tiny.tokens())


# -- A tap or swap that would have no effect --------------------------------------------------------------------------


class Replaced(nn.Module):
    """Holds an attention module and never calls it, as libraries do that compute attention themselves."""

    def __init__(self, original: nn.Module) -> None:
        super().__init__()
        self.original = original

    def forward(self, hidden_states: Tensor, **_: Any) -> tuple[Tensor, None]:
        return hidden_states, None


@BOTH
@pytest.mark.parametrize("layers", [(0, 1), (1,)], ids=["all", "one"])
def test_attention_that_is_replaced_is_named(opened: Open, layers: tuple[int, ...]) -> None:
    network: Any = llama()
    for number in layers:
        network.model.layers[number].self_attn = Replaced(network.model.layers[number].self_attn)
    plain = network(input_ids=tokens()).logits
    path = rf"model\.layers\.{layers[0]}\.self_attn\.original"
    expected = rf"^unsupported: Replaced ran without the attention function of {path}, so"
    with opened(network) as session:
        for run in (network, session.check):
            with pytest.raises(AbbeError, match=expected):
                run(input_ids=tokens())
    assert torch.equal(network(input_ids=tokens()).logits, plain)


@BOTH
def test_a_module_that_attends_by_another_function_is_named(opened: Open) -> None:
    network: Any = llama()
    attention = network.model.layers[1].self_attn
    attention.forward = lambda hidden_states, **_: (hidden_states, None)
    expected = r"LlamaAttention ran without the attention function of model\.layers\.1\.self_attn"
    with opened(network), pytest.raises(AbbeError, match=expected):
        network(input_ids=tokens())


def test_a_network_that_calls_none_of_its_layers() -> None:
    network: Any = gpt2()
    result = network.transformer(input_ids=tokens())
    network.transformer.forward = lambda *_, **__: result
    expected = "GPT2LMHeadModel ran without the attention function of"
    with swap(network, "sparsemax"), pytest.raises(AbbeError, match=expected):
        network(input_ids=tokens())


def test_parts_that_do_not_run_are_fine() -> None:
    """An encoder whose states are given, cross attention without anything to read, and a layer that is left out."""
    network, pair = t5(), text_pair()
    states = network.encoder(input_ids=pair["input_ids"])
    with swap(network, "softmax"):
        network(encoder_outputs=states, decoder_input_ids=pair["decoder_input_ids"])
        network(**pair)
    crossing = gpt2(add_cross_attention=True)
    with swap(crossing, "softmax"):
        crossing(input_ids=tokens())
    deep = tiny.NO_FEED_FORWARD | {"num_hidden_layers": 6}
    dropping: Any = make("OPTForCausalLM", "OPTConfig", ffn_dim=48, word_embed_proj_dim=32, **deep, layerdrop=0.5)
    with swap(dropping.train(), "softmax"), torch.random.fork_rng():
        torch.manual_seed(3)  # drops all six layers in the first pass
        for _ in range(3):
            dropping(input_ids=tokens())


def test_only_the_first_pass_is_watched() -> None:
    network = llama()
    hooks = lambda: sum(len(module._forward_hooks) for module in network.modules())  # noqa: E731
    with swap(network, "sparsemax"):
        assert hooks() == 5  # two attention modules, two layers, and the network
        assert pickle.loads(pickle.dumps(network))(input_ids=tokens()).logits.isfinite().all()
        network(input_ids=tokens())
        assert hooks() == 0
    with swap(network, "sparsemax"):
        pass
    assert hooks() == 0
