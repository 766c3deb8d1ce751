"""Networks that are not from transformers: their layers, and the form in which studies call them.

What is special: nothing is asked of the network. Its layers, their heads, what predicts the next token and where tokens
are embedded are seen in one pass over four tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from types import CodeType, FunctionType, SimpleNamespace
from typing import Any, Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .._attention import attention
from .._errors import AbbeError
from ._network import evaluating, place_of
from ._session import Session
from ._session.call import RawCall
from ._session.intercept import Interception, stated_heads
from ._session.modules import readable_modules, skipped_lines
from ._session.network import NetworkSession, tensors_in, unseen

Run = Callable[[Any, Tensor], Any]  # of a network and token ids (1, length): a pass
Loss = Callable[[Any, Tensor], Tensor]  # of the same: losses (1, length - 1), or logits (1, length, vocabulary)

_CONTEXTS = ("block_size", "context_length", "context", "max_seq_len", "max_len", "n_ctx", "n_positions", "ctx_len")
_NAMES = frozenset({"scaled_dot_product_attention", "multi_head_attention_forward"})


class SeenLayer(NamedTuple):
    """An attention module, as a pass has shown it, or as its class states it."""

    module: nn.Module
    path: str
    heads: int
    causal: bool = True  # not known unless it was seen
    width: int = 0  # of a head
    normalizer: str = ""  # its own, if it is not softmax


def stated_layers(network: nn.Module) -> list[SeenLayer]:
    """The modules whose methods name one of the functions, with the heads that they state; refused if one does not."""
    layers = []
    for path, module in network.named_modules():
        if isinstance(module, nn.MultiheadAttention) or any(map(_names_attention, _methods(type(module)))):
            if (heads := stated_heads(module)) is None:
                raise AbbeError(
                    f"{type(network).__name__} ({path}) does not say how many heads it has: give inputs=..., the "
                    "arguments of a pass that shows it"
                )
            layers.append(SeenLayer(module, path or type(network).__name__, heads))
    if not layers:
        raise unseen(network)
    return layers


def _methods(kind: type[nn.Module]) -> Iterator[FunctionType]:
    for one in kind.__mro__:
        if one.__module__.partition(".")[0] != "torch":
            yield from (member for member in vars(one).values() if isinstance(member, FunctionType))


def _names_attention(function: FunctionType) -> bool:
    names = set(_names_in(function.__code__))
    known = function.__globals__
    ours = known.get("attention") is attention or getattr(known.get("abbe"), "attention", None) is attention
    return not names.isdisjoint(_NAMES) or ("attention" in names and ours)


def _names_in(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for part in code.co_consts:
        if isinstance(part, CodeType):
            yield from _names_in(part)


def seen_layers(network: nn.Module, run: Callable[[], Any]) -> tuple[list[SeenLayer], Any]:
    """The layers that a pass shows, in the order of the network, and its output."""
    seen: dict[nn.Module, SeenLayer] = {}

    def see(raw: RawCall) -> Tensor:
        heads, queries, width = raw.query.shape[1:]
        square = queries == raw.key.shape[-2]
        ahead = torch.ones(queries, raw.key.shape[-2], dtype=torch.bool, device=raw.query.device).triu(1)
        causal = raw.causal
        if raw.mask is not None and square and not causal:
            hidden = ~raw.mask if raw.mask.dtype == torch.bool else raw.mask < -1e4
            causal = bool((hidden | ~ahead).all())
        known = seen.get(raw.module)
        if known is not None and known.heads != heads:
            raise AbbeError(f"unsupported: {raw.where} attends with {known.heads} heads, and then with {heads}")
        own = "" if raw.rule is None else str(raw.rule[0].normalizer)
        of_all = causal and (known is None or known.causal)
        seen[raw.module] = SeenLayer(raw.module, watch.paths[raw.module], heads, of_all, width, own)
        assert raw.own is not None
        return raw.own()

    watch = Interception(network, see, lambda path, kwargs: None, lambda path, output: None)
    with ExitStack() as undo, torch.no_grad(), evaluating(network):
        watch.open(undo)
        output = run()
    if not seen:
        raise unseen(network)
    return [seen[module] for module in watch.paths if module in seen], output


def session_of(network: nn.Module, prefix: str) -> Session | NetworkSession:
    """The session for a network, not open yet."""
    from transformers import PreTrainedModel

    if isinstance(network, PreTrainedModel):
        return Session(network, prefix)
    return NetworkSession(network.network, network) if isinstance(network, OwnNetwork) else NetworkSession(network)


def readable(network: nn.Module) -> tuple[dict[nn.Module, str], list[str]]:
    """The modules whose attention can be seen, with their paths, and a line for each that cannot be read.

    Of a network that is not from transformers both are known only after a pass.
    """
    from transformers import PreTrainedModel

    if not isinstance(network, PreTrainedModel):
        return {}, []
    modules, unread = readable_modules(network)
    return modules, skipped_lines(unread)


def layers_for(network: nn.Module, inputs: object) -> list[SeenLayer]:
    """The layers that `inputs`, the arguments of a pass, show; without inputs those that classes state."""
    if isinstance(network, OwnNetwork):
        return network.layers
    if inputs is None:
        return stated_layers(network)
    kwargs: Any = inputs if isinstance(inputs, Mapping) else {}
    args: Any = () if isinstance(inputs, Mapping) else inputs if isinstance(inputs, tuple) else (inputs,)
    return seen_layers(network, lambda: network(*args, **kwargs))[0]


class OwnNetwork(nn.Module):
    """A network that is not from transformers, as studies call one that is.

    Args:
        network: any module that reads token ids and attends by one of the functions that are seen.
        run: a pass; `network(tokens)` if not given.
        loss: of the next tokens; from the logits if not given.
        context: the longest input in tokens; if not given, as far as the network states it.
    """

    base_model_prefix = ""  # no part is known to give the last states

    def __init__(
        self, network: nn.Module, run: Run | None = None, loss: Loss | None = None, context: int | None = None
    ) -> None:
        super().__init__()
        self.network, self._run, self._loss = network, run, loss
        looked_up: list[tuple[nn.Embedding, Tensor]] = []
        probe = torch.tensor([[3, 2, 1, 0]], device=place_of(network) or "cpu")  # positions would be 0, 1, 2, 3
        with ExitStack() as undo:
            for part in network.modules():
                if isinstance(part, nn.Embedding):
                    see: Any = lambda part, args: looked_up.append((part, args[0]))  # noqa: E731
                    undo.callback(part.register_forward_pre_hook(see).remove)
            try:
                self.layers, output = seen_layers(network, lambda: self._pass(probe))
            except AbbeError:
                raise
            except Exception as error:
                raise AbbeError(
                    f"{type(network).__name__} fails on the token ids 3, 2, 1, 0 ({' '.join(str(error).split())}): "
                    "give run=..., a function of the network and token ids (1, length) that makes a pass"
                ) from error
        every = [(part, ids.tolist()) for part, ids in looked_up if isinstance(ids, Tensor) and ids.numel() == 4]
        self._embedding = next((part for part, ids in every if ids == [[3, 2, 1, 0]]), None)
        places = next((part for part, ids in every if [0, 1, 2, 3] in (ids, *ids)), None)
        logits = self._logits(output, probe)
        self.vocabulary = 0 if logits is None else logits.shape[-1]
        if loss is not None and self._embedding is not None:
            self.vocabulary = self._embedding.num_embeddings
        stated = (
            getattr(owner, name, None) for owner in (network, getattr(network, "config", None)) for name in _CONTEXTS
        )
        known = [context, *stated, None if places is None else places.num_embeddings]
        heads, width = max(layer.heads for layer in self.layers), self.layers[0].width
        self.config = _Facts(
            num_hidden_layers=len(self.layers), num_attention_heads=heads, head_dim=width, vocab_size=self.vocabulary,
            hidden_size=heads * width if self._embedding is None else self._embedding.embedding_dim,
            max_position_embeddings=next((n for n in known if isinstance(n, int) and n > 1), None),
            is_encoder_decoder=False,
            normalizers=[layer.normalizer for layer in self.layers],
            functions=[getattr(one, "__qualname__", repr(type(one))) for one in (type(network), run, loss) if one],
        )  # fmt: skip

    @property
    def kind(self) -> Literal["decoder", "encoder"]:
        """A decoder if no layer shows later tokens."""
        return "decoder" if all(layer.causal for layer in self.layers) else "encoder"

    @property
    def base_model(self) -> OwnNetwork:
        """Itself: nothing is known of its parts."""
        return self

    def forward(self, input_ids: Tensor, **_: object) -> Any:
        """A pass, whose output has the logits of every token, or its first tensor as the last states."""
        output = self._pass(input_ids)
        logits = self._logits(output, input_ids)
        if logits is not None:
            return SimpleNamespace(logits=logits)
        return SimpleNamespace(last_hidden_state=next(tensors_in(output)))

    def token_losses(self, tokens: Tensor) -> Tensor | None:
        """By the loss that was given, of every token (1, length) except the first: (length - 1,); None without one."""
        if self._loss is None:
            return None
        made = self._loss(self.network, tokens)
        if isinstance(made, Tensor) and made.dim() == 3 and made.shape[1] in (tokens.shape[1], tokens.shape[1] - 1):
            return F.cross_entropy(
                made[0, : tokens.shape[1] - 1].float(), tokens[0, 1:].to(made.device), reduction="none"
            )
        if not isinstance(made, Tensor) or made.numel() != tokens.shape[1] - 1:
            got = f"a tensor of shape {tuple(made.shape)}" if isinstance(made, Tensor) else type(made).__name__
            raise AbbeError(
                f"loss gave {got} for token ids of shape {tuple(tokens.shape)}, but must give the loss of every token "
                "except the first, (1, length - 1), or logits (1, length, vocabulary)"
            )
        return made.reshape(-1).float()

    def get_input_embeddings(self) -> nn.Module | None:
        """The embedding that looked up the tokens, None if there was none."""
        return self._embedding

    def get_output_embeddings(self) -> Any:
        """What transformers' language-model head says of itself; None without logits or a loss."""
        has_loss = self.vocabulary or self._loss is not None
        return SimpleNamespace(out_features=max(1, self.vocabulary)) if has_loss else None

    def can_generate(self) -> bool:
        """False: how it generates is not known."""
        return False

    def _pass(self, tokens: Tensor) -> Any:
        return self.network(tokens) if self._run is None else self._run(self.network, tokens)

    def _logits(self, output: Any, tokens: Tensor) -> Tensor | None:
        """The logits of every token, (1, length, vocabulary): the first tensor of this form that is large enough."""
        least = 0 if self._embedding is None else self._embedding.num_embeddings
        given = (x for x in tensors_in(output) if x.dim() == 3 and x.shape[:2] == tokens.shape and x.shape[-1] >= least)
        return next(given, None)


def class_name(network: object) -> str:
    """The name of a network's class.

    Args:
        network: of transformers, or another one as studies take it.

    Examples:
        >>> abbe.models.class_name(abbe.load("embedded").network)
        'GPT2LMHeadModel'
    """
    return type(network.network if isinstance(network, OwnNetwork) else network).__name__


class _Facts(SimpleNamespace):
    """What studies read from the configuration of a transformers model."""

    per_layer_attributes = ()

    def get_text_config(self) -> _Facts:
        return self

    def to_dict(self) -> dict[str, Any]:
        return dict(vars(self))

    to_diff_dict = to_dict
