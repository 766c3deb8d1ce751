"""Networks that are not from transformers, and the same with attention written out."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import abbe

WIDTH, HEADS, VOCABULARY, CONTEXT = 32, 4, 50, 128
Attend = Callable[[Tensor, Tensor, Tensor], Tensor]  # (batch, heads, length, width) each


def by_sdpa(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def by_abbe(spec: str) -> Attend:
    """As a swap calls it: with kernels also for small inputs."""

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        with abbe.normalizers.kernels_from(1 << 11):
            return abbe.attention(q, k, v, spec, causal=True)

    return attend


def causal_weights(q: Tensor, k: Tensor) -> Tensor:
    scores = q @ k.mT / q.shape[-1] ** 0.5
    return scores.masked_fill(torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1), -torch.inf).softmax(-1)


def by_hand(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return causal_weights(q, k) @ v


class CausalAttention(nn.Module):
    """As in nanoGPT."""

    def __init__(self, attend: Attend = by_sdpa) -> None:
        super().__init__()
        self.n_head = HEADS
        self.attend = attend
        self.qkv, self.proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.heads(x)
        return self.proj(self.attend(q, k, v).transpose(1, 2).contiguous().view(x.shape))

    def heads(self, x: Tensor) -> tuple[Tensor, ...]:
        return tuple(part.unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))


class NamedAttention(CausalAttention):
    """The same, whose class names torch's function."""

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.heads(x)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.proj(y.transpose(1, 2).contiguous().view(x.shape))


class Block(nn.Module):
    def __init__(self, attn: nn.Module) -> None:
        super().__init__()
        self.norm, self.attn = nn.LayerNorm(WIDTH), attn
        self.mlp = nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 64), nn.GELU(), nn.Linear(64, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.norm(x))
        return x + self.mlp(x)


class Decoder(nn.Module):
    def __init__(self, make: Callable[[], nn.Module] = NamedAttention, layers: int = 3) -> None:
        super().__init__()
        self.symbols, self.places = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.ModuleList(Block(make()) for _ in range(layers))
        self.logits = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.symbols(ids) + self.places(torch.arange(ids.shape[1]))
        for block in self.blocks:
            x = block(x)
        return self.logits(x)


def decoder(make: Callable[[], nn.Module] = NamedAttention, seed: int = 0, scale: float = 3.0) -> Decoder:
    """A decoder whose weights depend on the seed alone, with logits that differ enough to matter."""
    torch.manual_seed(seed)
    network = Decoder(make).eval()
    for block in network.blocks:
        if isinstance(block.attn, CausalAttention):
            block.attn.qkv.weight.data *= scale
    return network


def as_written(network: Decoder, attend: Attend) -> Decoder:
    """The same weights with another attention, written into the network."""
    other = Decoder(lambda: CausalAttention(attend)).eval()
    other.load_state_dict(network.state_dict())
    return other


class Patches(nn.Module):
    """A vision transformer's block as in timm: fused q, k, v and torch's function; images in."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.token = nn.Conv2d(3, WIDTH, 4, 4), nn.Parameter(torch.randn(1, 1, WIDTH))
        self.blocks = nn.Sequential(*(Block(FullAttention()) for _ in range(2)))
        self.head = nn.Linear(WIDTH, 10)

    def forward(self, images: Tensor) -> Tensor:
        x = self.embed(images).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(len(x), -1, -1), x], 1)
        return self.head(self.blocks(x)[:, 0])


class FullAttention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.num_heads = HEADS
        self.qkv, self.proj, self.proj_drop = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH), nn.Dropout(0.0)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        qkv = self.qkv(x).reshape(batch, length, 3, self.num_heads, -1).permute(2, 0, 3, 1, 4)
        x = F.scaled_dot_product_attention(*qkv.unbind(0), dropout_p=0.0)
        return self.proj_drop(self.proj(x.transpose(1, 2).reshape(batch, length, width)))


def encoder(norm_first: bool = False) -> nn.TransformerEncoder:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 64, batch_first=True, norm_first=norm_first)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval()


def ids(length: int = 24, batch: int = 2) -> Tensor:
    return torch.randint(VOCABULARY, (batch, length), generator=torch.Generator().manual_seed(1))


def states(length: int = 9, batch: int = 2) -> Tensor:
    return torch.randn(batch, length, WIDTH, generator=torch.Generator().manual_seed(2))
