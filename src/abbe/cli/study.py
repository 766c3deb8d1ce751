"""The command of a study: its options are the parameters of its function, whose sources are parsed, not imported
(`abbe._declared`), so that help and completion need no torch."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import typer

from .. import studies as public
from .._declared import Declared, described, described_function, studies
from .._errors import AbbeError
from ._options import RESUMES, as_command, current
from ._shown import print_json, show_result

RAY = "ray"
LEFT_OUT = ("folder", "tokenizer", "progress", "loss")  # --out and --quiet take their place; a function is none
_EACH = "each"  # of report: many models, by `report_each`
_SHARING = ("shard", "engine", "address", "actors")


def command_of(study: Declared) -> tuple[Callable[..., None], tuple[str, ...]]:
    """The function that typer sees, and its examples."""
    about = described(study)
    own = [option for option in about.options if option.name not in LEFT_OUT]
    defaults = {option.name: option.default for option in own}

    def run(
        *, each: str | None = None, out: Path | None = None, figures_folder: Path | None = None, opened: bool = False,
        as_json: bool = False, quiet: bool = False, shard: str | None = None, engine: str | None = None,
        address: str | None = None, actors: int | None = None, **values: Any,
    ) -> None:  # fmt: skip
        """Run the study and show its result.

        Args:
            each: report on many models instead of one, such as 'checkpoints/*', with an index page.
            out: folder for run and page; by default abbe-FOLDER. A stopped run resumes from it.
            as_json: print tables, findings and manifest as JSON.
            quiet: no cost line, progress bar or table; only the path of the page.
            shard: make one share of the parts: I/N such as 3/16, or slurm for a task of a job array; then abbe merge.
            engine: "ray": run on actors, each with a copy of the model; on this machine, or with --address on a
                cluster.
            address: the Ray cluster: auto, HOST:6379 or ray://HOST:10001.
            actors: number of actors; by default one per core, or per GPU with --device cuda.
        """
        current.if_stopped = RESUMES
        folder = out or _default_folder(study, defaults | values | ({"model": _EACH} if each else {}))
        called = study
        if each is not None:
            if "model" in values:
                raise AbbeError(f"--each takes the place of the model {values['model']}: quote it, --each 'runs/*'")
            called, values = studies()["report_each"], {"models": each} | values
        if shard is not None and (figures_folder is not None or opened):
            option = "--figures" if figures_folder is not None else "--open"
            raise AbbeError(f"a shard makes no page and no figures: give {option} to abbe merge instead")
        with ExitStack() as stack:
            share = _engine(stack, shard, engine, address, actors, values)
            result = getattr(public, called.function)(**values, folder=folder, progress=not quiet)
        if share is not None:
            if as_json:
                print_json({"shard": shard, "made": share.made, "total": share.total, "missing": share.missing})
            typer.echo(share, err=as_json)
            return
        page = folder / result.page
        show_result(result, page, figures=figures_folder, as_json=as_json, quiet=quiet, opened=opened)

    name = f"{study.command.replace(' ', '-')}{'-MODEL' if 'model' in defaults else ''}"
    absent = (*(() if study.function == "report" else (_EACH,)), *(() if study.shared else _SHARING))
    more = [
        replace(option, meaning=option.meaning.replace("FOLDER", name))
        for option in described_function(run).options
        if option.name not in absent
    ]
    help = " ".join(about.text.partition("\n\n")[0].split())
    return as_command(run, study.command, study.extra, help, [*own, *more], ("model", "other")), about.examples


def _default_folder(study: Declared, given: Mapping[str, Any]) -> Path:
    """Such as abbe-report-smollm2; `named_by` is an option whose value, or name, is part of it, too."""
    value = given.get(study.named_by) or ""
    ending = study.named_by if value is True else str(value)
    if Path(ending).is_absolute() or ending.startswith(("./", "../")):
        ending = Path(ending).name  # another model: its name without folders, as for the first
    ending = "".join(letter if letter.isalnum() or letter in ".-" else "-" for letter in ending)
    model, name = given.get("model"), ""
    if model is not None:
        name = re.sub(r"[^A-Za-z0-9._-]+", "-", Path(model).name or model).strip("-.") or "model"
    return Path("-".join(part for part in ("abbe", study.command.replace(" ", "-"), name, ending) if part))


def _engine(
    stack: ExitStack, shard: str | None, engine: str | None, address: str | None, actors: int | None,
    given: Mapping[str, Any],
) -> Any:  # fmt: skip
    """Enter the shard, which is returned, or the engine."""
    if shard is not None:
        if any(option is not None for option in (engine, address, actors)):
            raise AbbeError("--shard and --engine (--address, --actors) are two ways to share the work: give one")
        from ..runs.executors import shard as one_share  # light, but torch comes with it

        return stack.enter_context(one_share(shard))
    if engine is None:
        if address is not None or actors is not None:
            raise AbbeError("--address and --actors are for an engine: add --engine ray")
        return None
    if engine != RAY:
        raise AbbeError(f"there is no engine {engine!r}: choose {RAY}, or leave --engine out")
    device = given.get("device") or ""
    if given.get("device_map") is not None:
        raise AbbeError("--device-map needs several GPUs per actor: use abbe.on_ray(gpus=...) in Python, or --shard")
    if device.startswith("cuda:"):
        raise AbbeError(f"--device is {device}, but Ray gives every actor its own GPU: give --device cuda")
    from ..runs.ray import on_ray  # as above

    stack.enter_context(on_ray(address, actors=actors, gpus={"cuda": 1, "auto": None}.get(device, 0)))
    return None
