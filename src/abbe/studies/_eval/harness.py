"""lm-evaluation-harness (the extra `eval`): its tasks, and the model class `abbe` that answers their requests.

Imported only when a study runs, or lm-eval looks for its model `abbe`. The requests of a task are built once, so that
all contenders answer the same objects; lm-eval's cache of requests is not used.
"""

from __future__ import annotations

import copy
import difflib
import hashlib
import json
import logging
import os
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr
from functools import cached_property, lru_cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lm_eval import evaluate
from lm_eval.models.huggingface import HFLM
from lm_eval.tasks import TaskManager

from ..._arguments import plain
from ..._errors import AbbeError
from ..._files import finite
from ...models import DeviceLike, DtypeLike, LoadedModel, as_swapped, load, quiet, swap
from ...runs.loss import check_causal

VERSION = version("lm_eval")
_USUAL = "cuda:0"  # what the program of lm-eval asks for if nobody else does
_YAML = (".yaml", ".yml")
# Places of the machine, and what the requests show.
_NOT_IDENTITY = ("dataset_kwargs", "fewshot_config", "metadata")
Part = dict[str, Any]


class AbbeLM(HFLM):  # type: ignore[misc]
    """A model of abbe for lm-eval, under a plan if there is one: `lm_eval --model abbe` after `import abbe`.

    Args:
        pretrained: what `abbe.load` takes, or what it gave.
        plan: what `abbe.swap` takes, or the folder of a run that left a plan; in effect from now on.
        batch_size: requests per pass.
        device: as for `abbe.load`.
        dtype: as for `abbe.load`.
        on_batch: called after every pass; with it, lm-eval shows no progress of its own.
        more: other arguments of lm-eval's class for transformers.
    """

    def __init__(
        self, pretrained: str | LoadedModel, plan: Any = None, batch_size: int | str = 1,
        device: DeviceLike | None = None, dtype: DtypeLike | None = None,
        on_batch: Callable[[], object] | None = None, **more: Any,
    ) -> None:  # fmt: skip
        if device == _USUAL and not torch.cuda.is_available():
            device = None
        model = pretrained if isinstance(pretrained, LoadedModel) else load(pretrained, device=device, dtype=dtype)
        check_causal(model, "lm-eval")
        if plan is not None:
            swap(model, as_swapped(plan))
        given = {"backend": "causal", "max_length": model.context} | more | {"trust_remote_code": False}
        with _no_advice():
            # lm-eval gives the tokenizer a padding token: a copy.
            super().__init__(model.network, tokenizer=copy.deepcopy(model.tokenizer), batch_size=batch_size, **given)
        self.truncated = 0  # requests that are longer than the context
        self._on_batch = on_batch

    def loglikelihood(self, requests: Sequence[Any], disable_tqdm: bool = False) -> Any:
        return super().loglikelihood(requests, disable_tqdm or self._on_batch is not None)

    def loglikelihood_rolling(self, requests: Sequence[Any], disable_tqdm: bool = False) -> Any:
        return super().loglikelihood_rolling(requests, disable_tqdm or self._on_batch is not None)

    def generate_until(self, requests: Sequence[Any], disable_tqdm: bool = False) -> Any:
        return super().generate_until(requests, disable_tqdm or self._on_batch is not None)

    def _loglikelihood_tokens(
        self, requests: Sequence[tuple[Any, list[int], list[int]]], disable_tqdm: bool = False, **more: Any
    ) -> Any:
        for _, context, answer in requests:
            if len(answer) > self.max_length:
                raise AbbeError(f"an answer has {len(answer)} tokens, and the model reads {self.max_length}")
            self.truncated += len(context) + len(answer) > self.max_length + 1  # nothing reads the last token
        return super()._loglikelihood_tokens(requests, disable_tqdm or self._on_batch is not None, **more)

    def tok_batch_encode(
        self, strings: Sequence[str], padding_side: str = "left", left_truncate_len: int | None = None, **more: Any
    ) -> Any:
        if left_truncate_len:
            self.truncated += sum(len(self.tok_encode(one)) > left_truncate_len for one in strings)
        return super().tok_batch_encode(strings, padding_side, left_truncate_len, **more)

    def _model_call(self, *args: Any, **more: Any) -> Any:
        return self._told(super()._model_call(*args, **more))

    def _model_generate(self, *args: Any, **more: Any) -> Any:
        return self._told(super()._model_generate(*args, **more))

    def _told(self, answers: Any) -> Any:
        if self._on_batch is not None:
            self._on_batch()
        return answers


@contextmanager
def _no_advice() -> Iterator[None]:
    """Inside, lm-eval and transformers give no advice; errors are raised."""
    logger = logging.getLogger("lm_eval")
    before = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        with quiet():
            yield
    finally:
        logger.setLevel(before)


@contextmanager
def _one_line(what: str) -> Iterator[None]:
    """An error of lm-eval, or of the packages that it calls, as one line."""
    try:
        yield
    except AbbeError as error:
        raise AbbeError(f"{what}: {error}") from None
    except Exception as error:
        words = str(error).strip().partition("\n")[0].removesuffix(".")
        raise AbbeError(f"{what}: {words or type(error).__name__}") from error


class HarnessTask:
    """A task of lm-eval with its requests.

    Args:
        name: of the task.
        task: of lm-eval; its requests are built here.
        limit: of its documents, the first of which are used.
        num_fewshot: examples in front of every question; None for what the task says.
        seed: of the examples, and of generation.
    """

    def __init__(self, name: str, task: Any, limit: int | None, num_fewshot: int | None, seed: int) -> None:
        if getattr(task, "UNSAFE_CODE", False):
            raise AbbeError("it runs code that the model writes, which abbe does not: use lm-eval itself")
        if getattr(task, "MULTIMODAL", False):
            raise AbbeError("it shows images or sound, and abbe reads text")
        self.name, self._task, self._limit, self._seed = name, task, limit, seed
        own = task.get_config("num_fewshot")  # as lm-eval has it: a task that says 0 keeps it
        if own is None or (num_fewshot is not None and own != 0):
            task.set_config(key="num_fewshot", value=num_fewshot or 0)
        task.set_fewshot_seed(seed)
        task.build_all_requests(limit=limit)
        task.build_all_requests = lambda **_: None  # lm-eval would build them again for every contender
        self.requests: list[Any] = task.instances
        self.documents = len({request.doc_id for request in self.requests})
        self.text = "\n".join(str(part) for request in self.requests for part in request.args)
        #: score of guessing; None where there are no choices
        choices = task.OUTPUT_TYPE == "multiple_choice" and "acc_mutual_info" not in task.aggregation()
        per_document = np.bincount([request.doc_id for request in self.requests])
        self.chance = float((1 / per_document[per_document > 0]).mean()) if choices else None

    @cached_property
    def facts(self) -> dict[str, Any]:
        """What the manifest says; `digest` covers how requests and scores are made."""
        config = {key: one for key, one in self._task.dump_config().items() if key not in _NOT_IDENTITY}
        return {
            "version": self._task.VERSION,
            "digest": hashlib.sha256(json.dumps(config, sort_keys=True, default=str).encode()).hexdigest(),
            "output": self._task.OUTPUT_TYPE,
            "num_fewshot": config.get("num_fewshot"),
            "documents": self.documents,
            "requests": len(self.requests),
        }

    def answered(self, model: AbbeLM) -> Part:
        """Scores of a model as lm-eval gives them, and the values of all documents behind them, for JSON."""
        for request in self.requests:  # those of the contender before
            request.resps, request.filtered_resps = [], {}
        model.truncated = 0
        random.seed(self._seed)
        np.random.seed(self._seed % 2**32)  # noqa: NPY002 - tasks draw from it
        with torch.random.fork_rng(devices=[]), torch.no_grad(), _no_advice(), _one_line(f"task {self.name}"):
            torch.manual_seed(self._seed)
            tasks = {"tasks": {self.name: self._task}}
            found = evaluate(lm=model, task_dict=tasks, limit=self._limit, log_samples=True, bootstrap_iters=0)
        values: dict[str, list[Any]] = {}
        for sample in found["samples"][self.name]:
            for metric in sample["metrics"]:
                values.setdefault(f"{metric},{sample['filter']}", []).append(_for_json(sample[metric]))
        scores = {key: plain(found["results"][self.name][key]) for key in values}
        return dict(finite({"values": values, "scores": scores, "truncated": model.truncated}))

    def aggregate(self, key: str) -> Callable[[Sequence[Any]], float]:
        """How lm-eval makes a score from the values of documents."""
        function: Callable[[Sequence[Any]], float] = self._task.aggregation().get(key.partition(",")[0], np.mean)
        return function

    def higher_is_better(self, key: str) -> bool | None:
        higher: Mapping[str, bool | None] = self._task.higher_is_better()
        return higher.get(key.partition(",")[0])


def _for_json(value: Any) -> Any:
    value = plain(value)
    return [_for_json(one) for one in value] if isinstance(value, (list, tuple)) else value


def load_tasks(names: Sequence[str], limit: int | None, num_fewshot: int | None, seed: int) -> list[HarnessTask]:
    """Tasks of lm-eval by name or pattern, of a folder with their YAML files, or of one such file."""
    tasks: dict[str, HarnessTask] = {}
    for given in names:
        with (
            open(os.devnull, "w") as nowhere,
            redirect_stderr(nowhere),
            _no_advice(),
        ):  # progress bars without an option
            for name, task in _found(given).items():
                if name in tasks:
                    raise AbbeError(f"task {name} is given twice: name each task once")
                with _one_line(f"task {name}"):
                    tasks[name] = HarnessTask(name, task, limit, num_fewshot, seed)
    return list(tasks.values())


def _found(given: str) -> dict[str, Any]:
    path = Path(given).expanduser()
    if path.is_dir() or path.suffix in _YAML:
        if not path.exists():
            raise AbbeError(f"there is no file {path}")
        manager = TaskManager(include_path=str(path if path.is_dir() else path.parent), include_defaults=False)
        wanted = manager.all_subtasks if path.is_dir() else [str(path)]
        if not wanted:
            raise AbbeError(f"{path} holds no task of lm-eval: put a YAML file per task there")
    else:
        manager = _own_tasks()
        wanted = manager.match_tasks([given])
        if not wanted:
            near = difflib.get_close_matches(given, manager.all_tasks, 3)
            hint = f"did you mean {' or '.join(near)}?" if near else "name one of `lm_eval ls tasks`, or a folder"
            raise AbbeError(f"lm-eval {VERSION} has no task {given!r}: {hint}")
    with _one_line(f"task {given} cannot be loaded"):
        found: dict[str, Any] = manager.load(wanted)["tasks"]
    return found


@lru_cache(maxsize=1)
def _own_tasks() -> Any:
    """Reads the thousands of files that come with lm-eval, which takes seconds."""
    return TaskManager()
