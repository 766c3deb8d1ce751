"""Models on the Hugging Face hub: fetched once into the hub library's own cache, read from there as a folder."""

from __future__ import annotations

import re
from pathlib import Path

from ..._errors import AbbeError
from .quiet import first_line

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
