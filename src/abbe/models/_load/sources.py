"""Where models come from: the one that comes with abbe, the cache of pulled ones, the hub; of which kind a model is."""

from __future__ import annotations

import difflib
import json
import logging
import os
import re
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib import import_module, resources
from pathlib import Path
from typing import Any, Literal, NamedTuple

from ..._errors import AbbeError, first_line, one_line

Kind = Literal["decoder", "encoder", "encoder-decoder"]


@contextmanager
def quiet() -> Iterator[None]:
    """No progress bars, advice or warnings inside; all settings are restored at the end."""
    with ExitStack() as restore, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        hub, transformers = import_module("huggingface_hub.utils"), import_module("transformers.utils.logging")
        for settings in (hub.logging, transformers):
            restore.callback(settings.set_verbosity, settings.get_verbosity())
            settings.set_verbosity(logging.CRITICAL)
        restore.callback(hub.disable_progress_bars if hub.are_progress_bars_disabled() else hub.enable_progress_bars)
        hub.disable_progress_bars()
        enabled = transformers.is_progress_bar_enabled()
        restore.callback(transformers.enable_progress_bar if enabled else transformers.disable_progress_bar)
        transformers.disable_progress_bar()
        yield


def choose(config: Any, where: str | Path, saved: str | None = None) -> tuple[str, Kind]:
    """The auto class (its name in transformers) for a model, and the kind of network that it gives.

    From the class that the weights were saved as; a head that the weights lack is never initialised.
    """
    from transformers.models.auto import modeling_auto as auto

    kind = str(config.model_type)
    saved = saved or (getattr(config, "architectures", None) or [None])[0]
    causal = auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    masked = auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES
    pairs = auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES
    if saved is not None and saved.endswith("EncoderModel") and kind in auto.MODEL_FOR_TEXT_ENCODING_MAPPING_NAMES:
        return "AutoModelForTextEncoding", "encoder"
    if getattr(config, "is_encoder_decoder", False):
        if kind in pairs:
            return "AutoModelForSeq2SeqLM" if saved in (None, pairs[kind]) else "AutoModel", "encoder-decoder"
    elif kind in masked and not getattr(config, "is_decoder", False):
        return "AutoModelForMaskedLM" if saved == masked[kind] else "AutoModel", "encoder"
    elif kind in causal:
        names = (causal[kind],) if isinstance(causal[kind], str) else causal[kind]
        return "AutoModelForCausalLM" if saved in (None, *names) else "AutoModel", "decoder"
    raise AbbeError(f"{where} holds a {saved or kind}, which is not a text model that abbe can load")


NAME = "abbe-gpt2-5M"  # in tables; `load("embedded")` loads it
FACTS = "facts.json"  # written by the training script
EMBEDDED_FILES = ("model.safetensors", "config.json", "tokenizer.json", "tokenizer_config.json", FACTS)


def embedded_folder() -> Path:
    """The folder of the embedded model; a missing file is an error.

    Returns:
        The folder.

    Raises:
        AbbeError: the installation is damaged.

    Examples:
        >>> (abbe.models.embedded_folder() / "model.safetensors").is_file()
        True
    """
    folder = Path(str(resources.files("abbe").joinpath("embedded")))
    if missing := [name for name in EMBEDDED_FILES if not (folder / name).is_file()]:
        raise AbbeError(f"this installation is damaged: the embedded model lacks {missing[0]}; install abbe again")
    return folder


def embedded_about() -> str:
    """One sentence on shape, training and quality of the embedded model, from the facts of the training run.

    Returns:
        The sentence.

    Examples:
        >>> abbe.models.embedded_about()
        'GPT-2 shape, 6 layers x ...
    """
    with one_line("this installation is damaged: the embedded model's facts.json cannot be read; install abbe again"):
        facts = json.loads((embedded_folder() / FACTS).read_text(encoding="utf-8"))
        return (
            f"GPT-2 shape, {facts['layers']} layers x {facts['heads']} heads, {facts['parameters'] / 1e6:.3g} M "
            f"parameters, trained on {facts['books']} public-domain texts ({facts['training_bytes'] / 1e6:.3g} MB); "
            f"{facts['held_out_bits_per_byte']:.2f} bits per byte on held-out text "
            f"(5-gram: {facts['five_gram_bits_per_byte']:.2f})"
        )


# The files of a text model, by exact name: "*.json" would also match the folders of other frameworks.
FILES = [
    "config.json", "generation_config.json",
    "model.safetensors", "model.safetensors.index.json", "model-?????-of-?????.safetensors",
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "vocab.json",
    "vocab.txt", "merges.txt", "tokenizer.model", "spiece.model", "sentencepiece.bpe.model",
]  # fmt: skip


def looks_like_hub_id(name: str) -> bool:
    """ "owner/model", or a bare name of the early days such as gpt2."""
    part = r"[A-Za-z0-9_][\w.-]{0,95}"
    return re.fullmatch(rf"{part}(/{part})?", name) is not None and not name.endswith((".git", ".", "-"))


def hub_folder(name: str, revision: str | None) -> Path:
    """The local snapshot of a hub model: fetched if there is a network, else from the cache."""
    from huggingface_hub import errors, snapshot_download

    at = f" at revision {revision!r}" if revision else ""
    try:
        return Path(snapshot_download(name, revision=revision, allow_patterns=FILES))
    except errors.LocalEntryNotFoundError as error:
        if cached := cached_folder(name, revision):
            return cached
        cause = error.__cause__
        offline = isinstance(cause, errors.OfflineModeIsEnabled)
        why = "HF_HUB_OFFLINE is set" if offline else f"the hub cannot be reached ({first_line(cause or error)})"
        raise AbbeError(f"model {name!r}{at} is not a folder here and not in the offline cache, and {why}") from error
    except errors.GatedRepoError as error:
        raise AbbeError(f"model {name!r} is gated on the hub: accept its terms there and log in, then retry") from error
    except errors.RevisionNotFoundError as error:
        raise AbbeError(f"model {name!r} has no revision {revision!r} on the hub") from error
    except errors.RepositoryNotFoundError as error:
        raise AbbeError(f"model {name!r} is not known to abbe, not a folder here, and not on the hub") from error
    except (errors.HfHubHTTPError, errors.HFValidationError, OSError) as error:
        raise AbbeError(f"cannot fetch {name!r}{at} from the hub: {first_line(error)}") from error


def cached_folder(name: str, revision: str | None = None) -> Path | None:
    """A snapshot that another program started; whether it is complete shows when it is read."""
    from huggingface_hub import try_to_load_from_cache

    if not looks_like_hub_id(name):
        return None
    file = try_to_load_from_cache(name, "config.json", revision=revision)
    return Path(file).parent if isinstance(file, str) else None


PULLABLE = ("smollm2", "minilm")
ABOUT = "ABOUT.json"


def cache_folder() -> Path:
    """Where pulled models lie: $ABBE_CACHE, else $XDG_CACHE_HOME/abbe, else ~/.cache/abbe.

    Returns:
        The folder, whether it is there or not.

    Examples:
        >>> abbe.models.cache_folder().name
        '...'
    """
    if own := os.environ.get("ABBE_CACHE"):
        return Path(own).expanduser()
    if shared := os.environ.get("XDG_CACHE_HOME"):
        return Path(shared).expanduser() / "abbe"
    return Path.home() / ".cache" / "abbe"


def pulled_folder(name: str) -> Path:
    """The folder of a pulled model, whether it is there or not.

    Args:
        name: "smollm2" or "minilm".

    Returns:
        The folder.

    Examples:
        >>> abbe.models.pulled_folder("smollm2").name
        'smollm2'
    """
    return cache_folder() / "models" / name


def is_pulled(name: str) -> bool:
    """Whether a model is in the cache; a folder appears only when it is complete.

    Args:
        name: "smollm2" or "minilm".

    Returns:
        True if `load(name)` will find it.

    Examples:
        >>> abbe.models.is_pulled("no such model")
        False
    """
    return (pulled_folder(name) / ABOUT).is_file()


def pulled_facts(name: str) -> dict[str, Any]:
    """Facts about a pulled model: what it is, its source, hash and licence.

    Args:
        name: "smollm2" or "minilm".

    Returns:
        Facts by name.

    Raises:
        AbbeError: it is not in the cache.

    Examples:
        >>> abbe.models.pulled_facts("no such model")
        Traceback (most recent call last):
        ...
        abbe._errors.AbbeError: model 'no such model' is not in ...: run `abbe pull no such model` first
    """
    path = pulled_folder(name) / ABOUT
    if not path.is_file():
        raise AbbeError(f"model {name!r} is not in {path.parent}: run `abbe pull {name}` first")
    facts: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return facts


EMBEDDED = "embedded"
NAMES = (EMBEDDED, *PULLABLE)


class Source(NamedTuple):
    """A folder with a model: the name to show, where it lies and came from, and one line on it if there is one."""

    name: str
    folder: Path
    origin: str
    about: str | None = None


def source(name: str, revision: str | None = None, fetch: bool = True) -> Source:
    """The folder that a name means; a hub id is fetched only if it may be."""
    path = Path(name).expanduser()
    if name in (EMBEDDED, NAME):
        return Source(NAME, embedded_folder(), EMBEDDED, embedded_about())
    if name in PULLABLE:
        return Source(name, pulled_folder(name), str(pulled_folder(name)), str(pulled_facts(name)["what"]))
    if path.exists():
        return Source(name, path, str(path))
    known, origin = ", ".join(NAMES), f"{name}@{revision or 'main'}"
    if not fetch:
        if (cached := cached_folder(name)) is None:
            raise AbbeError(f"there is no folder {name!r}, and no such model in the hub's cache; abbe knows {known}")
        return Source(name, cached, origin)
    # A typo in a known name must not become a request to the hub.
    if "/" not in name and (close := difflib.get_close_matches(name.lower(), NAMES, n=1, cutoff=0.75)):
        raise AbbeError(f"unknown model {name!r}. Did you mean {close[0]!r}?")
    if not looks_like_hub_id(name):
        raise AbbeError(f"there is no folder {name!r}, and it is not a hub id; abbe knows {known}")
    return Source(name, hub_folder(name, revision), origin)
