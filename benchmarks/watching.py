"""Cost of a monitor: a training step that is read against a plain one, in turn in one run on a GPT-2-shaped model."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

import abbe

Row = dict[str, object]

LENGTH, EVERY = 512, 50


def monitor_rows(emit: Callable[[Row], None], pairs: int, batches: tuple[int, ...]) -> None:
    """12 layers of 12 heads of width 64, AdamW: best times of plain steps and of read steps.

    Ratios are those of both, by the clock and in seconds of the processor, which other programs disturb less.
    """
    import transformers

    for batch in batches:
        torch.manual_seed(0)
        config = transformers.GPT2Config(loss_type="ForCausalLM")
        network = transformers.GPT2LMHeadModel(config).train()
        optimizer = torch.optim.AdamW(network.parameters(), lr=1e-4)
        tokens = torch.randint(0, config.vocab_size, (batch, LENGTH))
        times: dict[bool, list[tuple[float, float]]] = {False: [], True: []}
        with abbe.Monitor(network, every=2) as monitor:  # from the second on, every other step is read
            for step in range(1, 2 * pairs + 3):
                start = time.perf_counter(), time.process_time()
                loss = network(input_ids=tokens, labels=tokens).loss
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                monitor.step(loss)
                if step > 2:  # kernels are loaded and memory is there
                    times[step % 2 == 0].append((time.perf_counter() - start[0], time.process_time() - start[1]))
            assert monitor.silent is None, monitor.silent
            inside = min(monitor.result().steps["read_seconds"][2:])
        (plain, busy), (read, busy_read) = (map(min, zip(*times[kind], strict=True)) for kind in (False, True))
        shape = f"{batch}x{LENGTH}"
        emit({"part": "monitor", "name": "plain step", "shape": shape, "seconds": plain})
        emit({"part": "monitor", "name": "step that is read", "shape": shape, "seconds": read, "ratio": read / plain})
        emit({"part": "monitor", "name": "plain step, processor", "shape": shape, "seconds": busy})
        ratio = busy_read / busy
        emit({"part": "monitor", "name": "read step, processor", "shape": shape, "seconds": busy_read, "ratio": ratio})
        emit({"part": "monitor", "name": "of that within the monitor", "shape": shape, "seconds": inside})
        average = 1 + (read / plain - 1) / EVERY
        emit({"part": "monitor", "name": f"average at every={EVERY}", "shape": shape, "ratio": average})
