"""Train the language model that comes with abbe: a small GPT-2 on public-domain books, some hours on two cores.

    python scripts/train_embedded.py --texts FOLDER            # trains, then writes src/abbe/embedded/
    python scripts/train_embedded.py --texts FOLDER --steps 20 --out try

A run that was stopped goes on from its last checkpoint in --work. Until step 950 the learning
rate does not depend on --steps, so that a run may be given another before. The same command with a
finished checkpoint only writes and measures the model again.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from corpus import END_OF_TEXT, HELD_OUT_SHARE, Batches, Book, Stage, read_books, token_stream, train_tokenizer
from evaluation import evaluate
from export import write_files
from model_card import write_card
from muon import Muon
from safetensors.torch import load_file, save_file

SEED = 20261116
LAYERS, HEADS, WIDTH, CONTEXT = 6, 8, 256, 1024
BATCH = 8 * CONTEXT  # tokens
# Short windows first: among few keys the previous token is soon found, among a thousand it takes hours.
# Then passages that come twice more often: they make heads that look for an earlier copy of a token.
STAGES = (Stage(0, 64, 1 / 8), Stage(300, 256, 1 / 8), Stage(800, CONTEXT, 1 / 8), Stage(950, CONTEXT, 1 / 4))
POSITION_SIZE = 0.1  # standard deviation of the position embeddings at the start
# Share of the full learning rate at some steps, straight lines between them, 0 at the end.
RATES = ((0, 0.01), (99, 1.0), (540, 1.0), (950, 0.6746))
MATRIX_RATE, OTHER_RATE, POSITION_RATE = 0.02, 3e-3, 3e-4
SAVE_EVERY, VALIDATE_EVERY, VALIDATION_WINDOWS = 50, 100, 16


def new_network(tokenizer: Any) -> Any:
    end = tokenizer.token_to_id("<|endoftext|>")
    config = transformers.GPT2Config(
        vocab_size=tokenizer.get_vocab_size(),
        n_positions=CONTEXT,
        n_embd=WIDTH,
        n_layer=LAYERS,
        n_head=HEADS,
        activation_function="gelu_pytorch_tanh",  # GPT-2's own formula, as one operation
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        bos_token_id=end,
        eos_token_id=end,
    )
    torch.manual_seed(SEED)
    network = transformers.GPT2LMHeadModel(config)
    network.transformer.wpe.weight.data.copy_(sinusoids())
    return network


def sinusoids() -> torch.Tensor:
    """Position embeddings to start from: "the token before" is then one linear map for all positions, soon learned."""
    place = torch.arange(CONTEXT)[:, None]
    rates = 10_000 ** (-torch.arange(WIDTH // 2) / (WIDTH // 2))
    waves = torch.cat([torch.sin(place * rates), torch.cos(place * rates)], 1)
    return waves * (POSITION_SIZE / waves.std())


class Training:
    """The network with its two optimizers; everything that a checkpoint must hold."""

    def __init__(self, network: Any, steps: int, work: Path) -> None:
        self.network, self.steps, self.work = network, steps, work
        kinds: dict[str, list[torch.nn.Parameter]] = {"fused": [], "matrix": [], "position": [], "other": []}
        for name, parameter in network.named_parameters():
            kinds[_kind(name, parameter)].append(parameter)
        self.optimizers: list[torch.optim.Optimizer] = [
            Muon([{"params": kinds["fused"], "parts": 3}, {"params": kinds["matrix"]}], lr=MATRIX_RATE),
            torch.optim.AdamW(
                [{"params": kinds["other"]}, {"params": kinds["position"], "lr": POSITION_RATE}],
                lr=OTHER_RATE,
                betas=(0.9, 0.95),
                weight_decay=0.01,
            ),
        ]
        self.full_rates = [[group["lr"] for group in optimizer.param_groups] for optimizer in self.optimizers]
        self.step, self.seconds = 0, 0.0
        self.curve: list[dict[str, float]] = []

    def rate(self) -> float:
        """Share of the full learning rate at this step."""
        steps, rates = zip(*(knot for knot in RATES if knot[0] < self.steps), (self.steps, 0.0), strict=True)
        return float(np.interp(self.step, steps, rates))

    def learn(self, batch: torch.Tensor) -> float:
        began = time.perf_counter()
        for optimizer, rates in zip(self.optimizers, self.full_rates, strict=True):
            for group, full in zip(optimizer.param_groups, rates, strict=True):
                group["lr"] = full * self.rate()
        loss = next_token_loss(self.network, batch)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.network.parameters(), 1.0)
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad()
        self.step += 1
        self.seconds += time.perf_counter() - began
        return loss.item()

    def save(self) -> None:
        """Two files, each put in place in one move: a run that is cut off keeps the checkpoint before."""
        tensors = {f"network.{name}": p.detach() for name, p in self.network.named_parameters()}
        for number, optimizer in enumerate(self.optimizers):
            for place, state in optimizer.state_dict()["state"].items():
                tensors |= {f"optimizer.{number}.{place}.{name}": value for name, value in state.items()}
        self.work.mkdir(parents=True, exist_ok=True)
        facts = {"step": str(self.step), "seconds": str(self.seconds), "curve": json.dumps(self.curve)}
        save_file(tensors, self.work / "next.safetensors", metadata=facts)
        (self.work / "next.safetensors").replace(self.work / "checkpoint.safetensors")

    def resume(self) -> None:
        from safetensors import safe_open

        path = self.work / "checkpoint.safetensors"
        if not path.exists():
            return
        tensors = load_file(path)
        parameters = dict(self.network.named_parameters())
        for name, parameter in parameters.items():
            parameter.data.copy_(tensors[f"network.{name}"])
        for number, optimizer in enumerate(self.optimizers):
            whole: dict[str, Any] = optimizer.state_dict()
            for name in tensors:
                kind, *rest = name.split(".")
                if kind == "optimizer" and int(rest[0]) == number:
                    whole["state"].setdefault(int(rest[1]), {})[rest[2]] = tensors[name]
            optimizer.load_state_dict(whole)
        with safe_open(path, "pt") as file:
            facts = file.metadata()
        self.step, self.seconds, self.curve = int(facts["step"]), float(facts["seconds"]), json.loads(facts["curve"])


def _kind(name: str, parameter: torch.nn.Parameter) -> str:
    """Which optimizer, with which settings, a parameter goes to."""
    if ".h." in name and parameter.ndim == 2:
        return "fused" if "c_attn" in name else "matrix"
    return "position" if "wpe" in name else "other"


def next_token_loss(network: Any, windows: torch.Tensor) -> torch.Tensor:
    """Mean negative log likelihood of the next token, in nats."""
    logits = network(windows[:, :-1]).logits
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), windows[:, 1:].flatten())


@torch.no_grad()
def validation_loss(network: Any, held_out: torch.Tensor) -> float:
    """Over windows spread evenly through the held-out text."""
    starts = torch.linspace(0, len(held_out) - CONTEXT - 1, VALIDATION_WINDOWS).long().tolist()
    windows = torch.stack([held_out[start : start + CONTEXT + 1] for start in starts])
    return sum(float(next_token_loss(network, part)) for part in windows.split(4)) / (VALIDATION_WINDOWS / 4)


def train(training: Training, batches: Batches, held_out: torch.Tensor) -> None:
    recent: list[float] = []
    while training.step < training.steps:
        recent.append(training.learn(batches[training.step]))
        if training.step % VALIDATE_EVERY == 0 or training.step == training.steps:
            point = {
                "step": training.step,
                "training": sum(recent) / len(recent),
                "validation": validation_loss(training.network, held_out),
                "seconds": round(training.seconds),
            }
            training.curve.append(point)
            recent.clear()
            print("  ".join(f"{name} {value:.4g}" for name, value in point.items()), flush=True)
        if training.step % SAVE_EVERY == 0 or training.step == training.steps:
            training.save()


def finish(training: Training, books: list[Book], tokenizer: Any, out: Path, figure: Path, note: str | None) -> None:
    """Write the model, then measure the files as they are, and write its card."""
    write_files(training.network, tokenizer, out, END_OF_TEXT)
    measured = evaluate(out, books, new_network(tokenizer))
    write_card(out, figure, recipe(training, tokenizer), measured, note)
    print(f"wrote {out}; {measured['learned']}", flush=True)


def recipe(training: Training, tokenizer: Any) -> dict[str, Any]:
    """How the model was made, for its card."""
    knots = [f"{rate:g} at step {step}" for step, rate in RATES]
    return {
        "layers": LAYERS,
        "heads": HEADS,
        "width": WIDTH,
        "context": CONTEXT,
        "batch": BATCH,
        "stages": [stage._asdict() for stage in STAGES],
        "seed": SEED,
        "steps": training.step,
        "tokens_seen": training.step * BATCH,
        "seconds": training.seconds,
        "curve": training.curve,
        "vocabulary": tokenizer.get_vocab_size(),
        "held_out_share": HELD_OUT_SHARE,
        "validation_windows": VALIDATION_WINDOWS,
        "optimizer": (
            f"Muon for the matrices of the blocks (learning rate {MATRIX_RATE:g}, momentum 0.95, weight decay 0.01), "
            f"AdamW for all else (learning rate {OTHER_RATE:g}, {POSITION_RATE:g} for the position embeddings, betas "
            "0.9 and 0.95, weight decay 0.01). "
            f"Learning rates as a share of these, straight lines between: {', '.join(knots)}, 0 at the end. Gradients "
            "clipped at norm 1; no dropout."
        ),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    root = Path(__file__).resolve().parents[1]
    parser.add_argument("--texts", type=Path, required=True, help="folder with the .txt files to learn from")
    parser.add_argument("--steps", type=int, default=2100, help=f"batches of {BATCH:,} tokens")
    parser.add_argument("--out", type=Path, default=root / "src" / "abbe" / "embedded", help="where the model goes")
    parser.add_argument("--work", type=Path, default=root / ".training", help="where checkpoints are kept")
    parser.add_argument(
        "--figure", type=Path, default=root / "docs" / "figures" / "embedded_loss.svg", help="loss curve"
    )
    parser.add_argument("--note", help="what else to say about the time, such as other work on the same cores")
    options = parser.parse_args()

    books = read_books(options.texts)
    tokenizer = train_tokenizer(books)
    held_out = torch.from_numpy(token_stream([book.held_out for book in books], tokenizer))
    batches = Batches(books, tokenizer, BATCH, STAGES, SEED)
    training = Training(new_network(tokenizer), options.steps, options.work)
    training.resume()
    sizes = ", ".join(f"{len(stream):,}" for stream in batches.streams)
    print(
        f"{len(books)} books; training tokens {sizes}; held out {len(held_out):,}; from step {training.step}",
        flush=True,
    )
    train(training, batches, held_out)
    finish(training, books, tokenizer, options.out, options.figure, options.note)


if __name__ == "__main__":
    main()
