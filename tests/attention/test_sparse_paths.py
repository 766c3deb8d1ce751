"""Attention over the support: which path is taken, what it keeps, and that all paths agree."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from attention_problems import make
from inside import _blockwise, _sparse, kernels_switch, sparse_op
from inside import sparse_call as call
from normalizer_cases import slow
from safetensors.torch import load_file
from torch import Tensor
from torch.testing import assert_close
from torch.utils.data import DataLoader, Dataset

import abbe
from abbe import attention

SPEC = "entmax:alpha=1.5"
NEVER = 2.0


def gradients(out: Tensor, inputs: list[Tensor]) -> list[Tensor]:
    grad = torch.randn(out.shape, generator=torch.Generator().manual_seed(3))
    return [out, *torch.autograd.grad(out, inputs, grad)]


def float32(**how: Any) -> list[Tensor]:
    return make(**{"dtype": torch.float32, "queries": 300, "keys": 300, "width": 16} | how)


@pytest.fixture
def supports(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many supports each backward pass was given."""
    seen: list[int] = []
    real = call.gradients

    def spy(rule: Any, grad: Any, inputs: Any, kept: Any, needed: Any) -> Any:
        seen.append(len(kept))
        return real(rule, grad, inputs, kept, needed)

    monkeypatch.setattr(sparse_op, "gradients", spy)
    return seen


def test_attention_takes_the_support_of_large_problems(supports: list[int]) -> None:
    inputs = float32(queries=1100, keys=1100)
    with_support = gradients(attention(*inputs, SPEC, causal=True), inputs)
    assert len(supports) == 1
    assert supports[0] > 1
    assert_close(with_support, gradients(_blockwise(*inputs, SPEC, causal=True), inputs), rtol=1e-3, atol=2e-5)


def test_small_problems_and_learned_biases_take_full_rows(supports: list[int]) -> None:
    inputs = float32()
    gradients(attention(*inputs, SPEC), inputs)
    large = float32(queries=1100, keys=1100)
    bias = torch.zeros(1100, requires_grad=True)
    gradients(attention(*large, SPEC, position_bias=bias), [*large, bias])
    assert supports == []


def test_what_is_not_kept_is_made_again(supports: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = float32(batch=(2,))
    monkeypatch.setattr(call, "PACKED_BLOCK", 1 << 19)
    expected = gradients(_sparse(*inputs, SPEC, NEVER, causal=True), inputs)
    for kept in (0, 8 * 3000):
        monkeypatch.setattr(sparse_op, "KEPT_BYTES", kept)
        monkeypatch.setattr(sparse_op, "KEPT_PER_INPUT", 0)
        assert_close(gradients(_sparse(*inputs, SPEC, NEVER, causal=True), inputs), expected, rtol=0, atol=0)
    assert supports[1] == 0 < supports[2] < supports[0]


def test_few_entries_at_a_time_give_the_same_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = float32()
    expected = gradients(_sparse(*inputs, SPEC, NEVER, softcap=3.0), inputs)
    monkeypatch.setattr(call, "ENTRIES", 100)
    assert_close(gradients(_sparse(*inputs, SPEC, NEVER, softcap=3.0), inputs), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "spec", [f"scaled:of={SPEC},t=0.4,learn=true,heads=4", slow("entmax:alpha=1.4,learn=true,heads=4")]
)
def test_dense_heads_take_full_rows(spec: str, supports: list[int]) -> None:
    """One key head of two is nearly flat; with learned values per head, a sink and a mask."""
    inputs = float32(heads=4, kv_heads=2, batch=(2,))
    with torch.no_grad():
        inputs[0][:, :2] *= 0.01
        inputs[0][:, 2:] *= 3
    made = abbe.normalizer(spec)
    sink = torch.tensor([0.1, 0.0, -1.0, 0.5], requires_grad=True)
    mask = torch.rand(2, 4, 1, 300, generator=torch.Generator().manual_seed(0)) > 0.2
    learned = [*inputs, sink, *made.parameters()]
    options = {"causal": True, "mask": mask, "sink": sink}
    ours, wanted = (gradients(attend(*inputs, made, **options), learned) for attend in (_sparse, _blockwise))
    assert len(supports) == 1
    assert_close(ours, wanted, rtol=1e-3, atol=5e-5)
    inputs[0].detach().mul_(1e-3)
    with pytest.raises(TypeError, match="no sparse path"):
        _sparse(*inputs, SPEC)


def test_hostile_rows() -> None:
    """Ties, rows that are all equal, logits of 1e4, rows without keys, one key, -inf and NaN."""
    q, k, v = float32(heads=1, kv_heads=1, queries=8, keys=600)
    logits = torch.randn(8, 600, generator=torch.Generator().manual_seed(5))
    logits[0] = 0.0
    logits[1] = logits[1].round()
    logits[2] *= 1e4
    logits[3] = -torch.inf
    logits[4, 1:] = -torch.inf
    logits[5, ::2] = -torch.inf
    logits[6, 17] = torch.nan
    with torch.no_grad():
        for spec in (SPEC, "topk:k=3"):
            out = _sparse(q, k, v, spec, NEVER, scale=0.0, position_bias=logits)
            wanted = _blockwise(q, k, v, spec, scale=0.0, position_bias=logits)
            assert_close(out, wanted, rtol=1e-4, atol=1e-5, equal_nan=True)
            assert out[0, 6].isnan().all()
            assert out.isnan().sum() == out.shape[-1]


def test_second_derivatives() -> None:
    inputs = float32(queries=5, keys=7, width=3, heads=2, kv_heads=1)
    exact = [t.detach().double().requires_grad_() for t in inputs]

    def second(attend: Any, given: list[Tensor], *more: Any) -> list[Tensor]:
        first = torch.autograd.grad(attend(*given, SPEC, *more, causal=True, sink=0.2).square().sum(), given,
                                    create_graph=True)  # fmt: skip
        return list(torch.autograd.grad(sum(g.square().sum() for g in first), given))

    ours = second(_sparse, inputs, NEVER)
    assert_close([t.double() for t in ours], second(attention, exact), rtol=1e-3, atol=1e-4)


def test_dropout_drops_the_same_weights_in_backward() -> None:
    """With one value per key, output and gradients show what was dropped."""
    q, k, _ = float32(heads=2, kv_heads=2)
    v = torch.ones(2, 300, 1, requires_grad=True)
    torch.manual_seed(0)
    out = _sparse(q, k, v, SPEC, NEVER, dropout=0.5)
    (grad,) = torch.autograd.grad(out.sum(), v)
    assert_close(grad.sum((1, 2)), out.detach().sum((1, 2)), rtol=1e-5, atol=1e-4)
    assert 0.9 < float(out.detach().mean()) < 1.1
    assert float(out.detach().std()) > 0.05
    assert not torch.equal(out, _sparse(q, k, v, SPEC, NEVER, dropout=0.5))


@pytest.mark.parametrize("threads", [2, slow(3)])
def test_the_number_of_threads_changes_nothing(threads: int) -> None:
    inputs = float32(queries=500, keys=500, heads=3, kv_heads=1)
    before = torch.get_num_threads()
    solved = []
    try:
        for count in (1, threads):
            torch.set_num_threads(count)
            solved.append(gradients(_sparse(*inputs, SPEC, NEVER, causal=True), inputs))
    finally:
        torch.set_num_threads(before)
    assert_close(*solved, rtol=0, atol=0)


def test_inference_mode_and_what_comes_after() -> None:
    inputs = float32()
    with torch.inference_mode():
        before = _sparse(*inputs, SPEC, NEVER)
    assert_close(_sparse(*inputs, SPEC, NEVER).detach(), before.clone(), rtol=0, atol=0)


def test_half_precision_is_computed_in_float32() -> None:
    inputs = [t.detach().bfloat16().requires_grad_() for t in float32(queries=1100, keys=1100)]
    out = attention(*inputs, SPEC, causal=True)
    assert out.dtype == torch.bfloat16
    exact = [t.detach().float().requires_grad_() for t in inputs]
    wanted = attention(*exact, SPEC, causal=True)
    assert_close(out, wanted.bfloat16(), rtol=0, atol=0)
    ours, theirs = torch.autograd.grad(out.sum(), inputs[0])[0], torch.autograd.grad(wanted.sum(), exact[0])[0]
    assert_close(ours, theirs.bfloat16(), rtol=0, atol=0)


@pytest.mark.parametrize("spec", ["topk:k=257", "entmax:alpha=1.3"])
def test_half_precision_rounds_no_parameter_of_the_map(spec: str) -> None:
    inputs = [t.detach().bfloat16() for t in float32(keys=600)]
    output = _sparse(*inputs, spec, NEVER)
    assert_close(output, _sparse(*(t.float() for t in inputs), spec, NEVER).bfloat16(), rtol=0, atol=0)


def test_values_without_width_have_no_support(supports: list[int]) -> None:
    q, k, v = float32(queries=1100, keys=1100)
    out = attention(q, k, v[..., :0], SPEC)
    assert out.shape == (4, 1100, 0)
    assert float(torch.autograd.grad(out.sum(), q)[0].abs().max()) == 0
    assert supports == []


def test_memory_is_the_support_and_a_block() -> None:
    """Scratch of two blocks of 4 MiB, and 8 bytes per weight."""
    length = 1500
    q, k, v = float32(queries=length, keys=length, heads=2, kv_heads=1)
    saved: list[int] = []

    def keep(t: Tensor) -> Tensor:
        saved.append(t.untyped_storage().nbytes())
        return t

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda t: t):
        attention(q, k, v, SPEC)
    count = int((attention(q, k, v, SPEC, return_weights=True)[1] > 0).sum())
    assert sum(saved) < 10 * count + 4 * q.untyped_storage().nbytes() < 0.2 * 4 * 2 * length**2
    assert call.SCORE_BYTES <= 4 * 2**20


@pytest.mark.slow
@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_compiles_in_one_graph(dropout: float) -> None:
    """The operator is in the graph, forward and backward; with dropout it draws anew."""
    inputs = float32(queries=1100, keys=1100)
    options = {"causal": True, "sink": torch.zeros(4), "dropout": dropout}
    torch._dynamo.reset()

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return attention(q, k, v, SPEC, **options)

    compiled = torch.compile(attend, fullgraph=True)
    out = compiled(*inputs)
    if dropout:
        assert not torch.equal(out, compiled(*inputs))
        assert_close(out.mean(), attend(*inputs).mean(), rtol=0.2, atol=0.02)
        torch.autograd.grad(out.sum(), inputs)
        return
    assert_close(gradients(out, inputs), gradients(attend(*inputs), inputs), rtol=1e-5, atol=1e-6)


def test_the_operator_is_sound() -> None:
    q, k, v = float32(queries=20, keys=20, heads=2, kv_heads=1, batch=(1,))
    parameters = (None, None, torch.zeros(2), torch.ones(1), torch.tensor(0), "entmax15", 0.25, None, True, None)
    torch.library.opcheck(
        sparse_op._attention_op, (q, k, v, *parameters, 0.0), test_utils=("test_schema", "test_faketensor")
    )


_SEPARATE = """
import sys, warnings, torch, abbe
warnings.simplefilter("always")
BREAK
q, k, v = (torch.randn(2, 1100, 16, generator=torch.Generator().manual_seed(i)).requires_grad_() for i in range(3))
with warnings.catch_warnings(record=True) as seen:
    out = abbe.attention(q, k, v, "entmax:alpha=1.5", causal=True)
    out.sum().backward()
    exact = abbe.attention(q.double(), k.double(), v.double(), "entmax:alpha=1.5", causal=True)
assert (out - exact).abs().max() < 1e-4
print(len(seen), "numba" in sys.modules)
"""


def test_without_kernels_full_rows_are_taken(supports: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """In this process, as if ABBE_KERNELS were off; the switch itself is tested in processes of its own."""
    inputs = float32(queries=1100, keys=1100)
    monkeypatch.setattr(kernels_switch, "_on", False)
    without = gradients(attention(*inputs, SPEC, causal=True), inputs)
    assert supports == []
    monkeypatch.undo()
    assert_close(without, gradients(attention(*inputs, SPEC, causal=True), inputs), rtol=1e-3, atol=2e-5)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("setting", "broken", "said"),
    [("off", "", "0 False"), ("on", "import abbe._kernels.compiled as e; e.entry = lambda *a: 1 / 0", "1 True")],
)
def test_without_kernels_full_rows_answer(setting: str, broken: str, said: str) -> None:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "ABBE_KERNELS": setting}
    code = _SEPARATE.replace("BREAK", broken)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == said


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_does_not_hang() -> None:
    inputs = float32(requires_grad=False)
    expected = _sparse(*inputs, SPEC, NEVER)
    child = os.fork()
    if child == 0:
        same = torch.allclose(_sparse(*inputs, SPEC, NEVER), expected, atol=1e-5)
        os._exit(0 if same else 1)
    assert os.waitpid(child, 0)[1] == 0


def test_a_swapped_model_takes_it(monkeypatch: pytest.MonkeyPatch, sparse_calls: list[str]) -> None:
    """The embedded model, each layer once; with other numbers than its own softmax, and the reference's numbers."""
    model: Any = abbe.load("embedded")
    tokens = model.tokenizer(abbe.read_text().content[:2000], return_tensors="pt").input_ids[:, :300]
    with torch.no_grad(), abbe.swap(model, SPEC):
        ours = model.network(input_ids=tokens, use_cache=False).logits
        layers = len(sparse_calls)
        monkeypatch.setattr("abbe._attention.attend.SPARSE_FROM", 1 << 62)
        wanted = model.network(input_ids=tokens, use_cache=False).logits
    assert sparse_calls == ["entmax15"] * layers
    assert layers == model.network.config.num_hidden_layers
    assert_close(ours, wanted, rtol=1e-3, atol=1e-3)


_BITS = """
import sys, torch, abbe
from abbe._attention.attend import _sparse
from safetensors.torch import save_file
solved = {}
for spec in ("entmax:alpha=1.5", "entmax:alpha=1.3", "topk:k=9"):
    for length in (17, 64, 600):
        draw = torch.Generator().manual_seed(length)
        inputs = [torch.randn(2, length, 24, generator=draw).requires_grad_() for _ in range(3)]
        out = _sparse(*inputs, spec, 2.0, causal=True, softcap=5.0)
        for i, part in enumerate([out.detach(), *torch.autograd.grad(out.square().sum(), inputs)]):
            solved[f"{spec} {length} {i}"] = part.contiguous()
save_file(solved, sys.argv[1])
"""


@pytest.mark.slow
def test_a_cold_cache_gives_the_bits_of_a_warm_one(tmp_path: Path) -> None:
    cache, solved = tmp_path / "cache", []
    for name in ("cold", "warm", "half"):
        if name == "half":
            for file in cache.rglob("*entry_of*"):
                file.unlink()
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "NUMBA_CACHE_DIR": str(cache)}
        subprocess.run([sys.executable, "-c", _BITS, str(tmp_path / name)], env=environment, check=True)
        solved.append(load_file(tmp_path / name))
    cold, *others = solved
    for other in others:
        assert [name for name in cold if not torch.equal(cold[name], other[name])] == []


# -- Worker processes, and an alpha that learns -----------------------------------------------------------------------


SECONDS = 60  # a worker that hangs is an error after so long


def seeded(seed: int, length: int = 1100, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(1, length, 8, generator=generator, dtype=torch.float64).to(dtype) for _ in range(3)]


class Attended(Dataset[Tensor]):
    """Each item is an attention of its own, with gradients."""

    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: int) -> Tensor:
        inputs = [x.requires_grad_() for x in seeded(index)]
        out = abbe.attention(*inputs, SPEC, causal=True)
        return torch.cat([out.detach(), *torch.autograd.grad(out.sum(), inputs)])


@pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="needs fork")
def test_workers_of_a_data_loader_do_not_hang() -> None:
    """Forked after the parent has used its threads, of which a child has none."""
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        expected = [Attended()[i] for i in range(2)]
        loader = DataLoader(Attended(), batch_size=None, num_workers=2, multiprocessing_context="fork", timeout=SECONDS)
        for given, wanted in zip(loader, expected, strict=True):
            assert_close(given, wanted)
    finally:
        torch.set_num_threads(threads)


def test_an_alpha_that_learns_has_the_gradient_of_full_rows(sparse_calls: list[str]) -> None:
    grads = []
    for dtype in (torch.float32, torch.float64):
        made = abbe.normalizer("entmax:alpha=1.4,learn=true").to(dtype)
        q, k, v = seeded(5, dtype=dtype)
        abbe.attention(q, k, v, made, causal=True).square().sum().backward()
        grads.append([parameter.grad for parameter in made.parameters()])
    assert sparse_calls == ["entmax"]  # in float32; float64 takes full rows
    assert bool((grads[0][0] != 0).all())
    assert_close(grads[0], grads[1], check_dtype=False, rtol=2e-3, atol=1e-3)


# -- Which heads take full rows ---------------------------------------------------------------------------------------


LENGTH, WIDTH = 800, 16


@pytest.fixture
def sparse_heads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many heads went over their support, once per call."""
    seen: list[int] = []
    real = sparse_op.attend

    def spy(rule: object, inputs: sparse_op.Inputs, limit: int) -> object:
        seen.append(inputs.q.shape[1])
        return real(rule, inputs, limit)

    monkeypatch.setattr(sparse_op, "attend", spy)
    return seen


def inputs(spreads: Sequence[float], needs_grad: bool) -> list[Tensor]:
    """A head for each spread of the logits."""
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(len(spreads), LENGTH, WIDTH, generator=generator) for _ in range(3))
    return [x.requires_grad_(needs_grad) for x in (q * torch.tensor(spreads)[:, None, None], k, v)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("p", "needs_grad", "expected"),
    [(0.5, False, [2]), (0.5, True, [2]), (0.75, False, []), (0.75, True, [2]), (0.95, False, []), (0.95, True, [])],
)
def test_gradients_make_the_support_pay_longer(
    p: float, needs_grad: bool, expected: list[int], sparse_heads: list[int]
) -> None:
    """Of flat rows, top-p of 0.5, 0.75 and 0.95 give a weight to about 17, 38 and 75 % of the keys."""
    abbe.attention(*inputs([1.0, 1.0], needs_grad), f"topp:p={p}", causal=True)
    assert sparse_heads == expected


@pytest.mark.slow
def test_heads_of_almost_one_density_stay_together(sparse_heads: list[int]) -> None:
    """One head at 24 % and one at 31 %: splitting them would cost more than it saves."""
    given = inputs([1.1, 0.8], False)
    assert_close(
        abbe.attention(*given, "topp:p=0.6", causal=True),
        abbe.attention(*given, "topp:p=0.6", causal=True, return_weights=True)[0],
        rtol=1e-4, atol=1e-5,
    )  # fmt: skip
    assert sparse_heads in ([], [2])


def test_a_dense_head_leaves_the_others_sparse(sparse_heads: list[int]) -> None:
    given = inputs([8.0, 0.1, 8.0], False)
    out = abbe.attention(*given, "topp:p=0.9", causal=True)
    assert sparse_heads == [2]
    assert_close(out, abbe.attention(*given, "topp:p=0.9", causal=True, return_weights=True)[0], rtol=1e-4, atol=1e-5)
