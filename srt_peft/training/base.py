"""What a base and an adapter are, as far as it can be told before they are loaded, and the base's tokenizer.

A person who has named the wrong folder is told so at once, and not after an hour of tokenising.
"""
# ruff: noqa: PLC0415 - transformers and the hub take seconds to import

from __future__ import annotations

import json
import logging
from hashlib import blake2b
from pathlib import Path
from typing import Any

from srt_peft.errors import OptionError, did_you_mean

_LOGGER = logging.getLogger("srt_peft")
_INDEX = "model.safetensors.index.json"
_ENDS = 2**22
_ADAPTER = ["adapter_config.json", "adapter_model.safetensors"]


def check_base(base: str, revision: str | None, adapter: str | None, max_length: int) -> None:
    """Refuse, before any text is read, a base or an adapter of which it can be told without loading it."""
    config, folder, faults = config_of(base, revision), Path(base), []
    if folder.is_dir() and not any(folder.glob("*.safetensors")):
        faults.append(NO_WEIGHTS.format(base=base))
    elif lacking := _lacking_shards(folder):
        faults.append(f"model.base = {base!r} lacks {lacking[0]}, which its {_INDEX} names: fetch the base again")
    text = config.get_text_config(decoder=True)
    limit = getattr(text, "max_position_embeddings", None)
    if isinstance(limit, int) and 0 < limit < max_length:
        told = f"data.max_length = {max_length}: model.base = {base!r} has positions for {limit} tokens"
        if getattr(text, "rope_parameters", None) is None and getattr(text, "rope_theta", None) is None:
            faults.append(f"{told} (max_position_embeddings). Set data.max_length to {limit} or less")
        else:  # which has no table of positions that would end, but was never trained so far out
            _LOGGER.warning("%s: longer examples are beyond what it was trained on.", told)
    if faults:
        raise OptionError("the model", faults)
    if adapter is not None:
        adapter_folder(adapter)


def _lacking_shards(folder: Path) -> list[str]:
    index = folder / _INDEX
    if (folder / "model.safetensors").exists() or not index.is_file():
        return []
    try:
        named = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
    except (ValueError, KeyError, TypeError, AttributeError):
        return [f"a whole {_INDEX}"]
    return sorted(name for name in named if not (folder / name).is_file())


def fingerprint(base: str, revision: str | None) -> str:
    """What tells a base's weights apart from others: its commit on the hub; here, the ends and sizes of its files."""
    folder = Path(base)
    if not folder.is_dir():
        return str(commit_of(base, revision) or revision)
    return _digest(sorted([folder / "config.json", *folder.glob("*.safetensors")]))


def commit_of(base: str, revision: str | None) -> str | None:
    """The commit of a base on the hub: its configuration says it, or, with a newer transformers, lies under it."""
    if Path(base).is_dir():
        return None
    from transformers.utils.hub import cached_file, extract_commit_hash

    said = getattr(config_of(base, revision), "_commit_hash", None)
    return said or extract_commit_hash(cached_file(base, "config.json", revision=revision), None)


def adapter_fingerprint(adapter: str) -> str:
    """What tells the weights of an adapter apart from others: those that an update begins from."""
    folder = adapter_folder(adapter)
    return _digest([folder / name for name in _ADAPTER])


def _digest(paths: list[Path]) -> str:
    """Of the ends and sizes of these files."""
    digest = blake2b(digest_size=16)
    for path in paths:
        size = path.stat().st_size
        with path.open("rb") as file:  # whole, it would take minutes; and a header and a tail do not agree by chance
            head = file.read(_ENDS)
            file.seek(max(size - _ENDS, 0))
            digest.update(f"{path.name} {size} ".encode() + head + file.read(_ENDS))
    return digest.hexdigest()


def check_ids(model: Any, tokenizer: Any, largest: int) -> None:
    """Refuse a tokenizer that gives ids for which the model has no embedding; `largest` is that of the texts."""
    rows = model.get_input_embeddings().weight.shape[0]
    largest = max(largest, tokenizer.pad_token_id)
    if largest >= rows:
        token = tokenizer.convert_ids_to_tokens(largest)
        raise refused(
            f"the tokenizer gives the id {largest} ({token!r}), and the base has embeddings for ids 0 to {rows - 1}: "
            "expected the base's own tokenizer. Put that beside its weights, or resize the embeddings and save both"
        )


def load_tokenizer(base: str | Path, revision: str | None = None) -> Any:
    """The base's tokenizer; where it has no padding token, the end-of-sequence token serves, and that is told."""
    from transformers import AutoTokenizer

    base = str(base)
    config_of(base, revision)
    try:
        tokenizer = AutoTokenizer.from_pretrained(base, revision=revision, trust_remote_code=False)
    except (OSError, ValueError, ImportError) as error:
        if "trust_remote_code" in str(error):
            raise refused(f"model.base = {base!r}: its tokenizer {_REMOTE}") from error
        raise refused(
            f"model.base = {base!r} has no tokenizer that can be read ({line_of(error)}): expected tokenizer.json and "
            "tokenizer_config.json beside the weights. Save them there with tokenizer.save_pretrained"
        ) from error
    if tokenizer.pad_token_id is None:
        if tokenizer.eos_token_id is None:
            raise refused(
                f"model.base = {base!r}: its tokenizer has neither a padding nor an end-of-sequence token, and "
                "examples cannot be told apart without one. Set eos_token in its tokenizer_config.json"
            )
        tokenizer.pad_token = tokenizer.eos_token
        _LOGGER.info("the tokenizer has no padding token; %r serves for it.", tokenizer.eos_token)
    return tokenizer


def config_of(base: str, revision: str | None) -> Any:
    """The base's configuration, once it is known to be a causal language model that needs no code of its own."""
    from huggingface_hub.errors import StrictDataclassError
    from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, AutoConfig

    folder = Path(base)
    try:
        config = AutoConfig.from_pretrained(base, revision=revision, trust_remote_code=False)
    except (OSError, ValueError, KeyError, StrictDataclassError) as error:
        if "trust_remote_code" in str(error):
            fault = _REMOTE
        elif folder.is_file():
            fault = f"is a file: expected the folder that it lies in, {str(folder.parent)!r}, or a name on the hub"
        elif base.startswith((".", "/", "~")) and not folder.exists():
            beside = [p.name for p in folder.parent.iterdir()] if folder.parent.is_dir() else []
            near = did_you_mean(folder.name, beside)
            fault = f"does not exist{near}: expected a folder that save_pretrained has written, or a name on the hub"
        elif folder.is_dir() and not (folder / "config.json").is_file():
            fault = "is a folder without a config.json: expected one that save_pretrained has written"
        elif folder.is_dir():
            reason = line_of(error, -1 if isinstance(error, StrictDataclassError) else 0)
            fault = f"has a config.json that transformers cannot read ({reason}). Save the base again, or fetch it anew"
        else:
            at = f" at revision {revision!r}" if revision else ""
            fault = (
                f"is neither a folder here nor a model that the hub gives{at} ({line_of(error)}). Check the spelling; "
            )
            fault += f"where there is no network, fetch it beforehand: hf download {base}"
        raise refused(f"model.base = {base!r} {fault}") from error
    if type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING:
        kind = type(config).__name__.removesuffix("Config")
        raise refused(f"model.base = {base!r} is a {kind}: expected a causal language model")
    return config


_REMOTE = "needs code of its own from the hub, and srt-peft never runs such code. Choose another base"
NO_WEIGHTS = (
    "model.base = {base!r} has no weights in safetensors: expected model.safetensors. Files like "
    "pytorch_model.bin can hold code and are never read; load it where you trust it, and save_pretrained it"
)


def refused(fault: str) -> OptionError:
    """The error for one fault of the model's."""
    return OptionError("the model", [fault])


def line_of(error: BaseException, which: int = 0) -> str:
    """One line of an error of others."""
    return (str(error).strip().splitlines() or [type(error).__name__])[which].strip().rstrip(":.")


def adapter_folder(adapter: str) -> Path:
    """Where the adapter's files lie, fetched if it is one on the hub; safetensors only."""
    folder = Path(adapter)
    if folder.is_file():
        raise refused(f"model.adapter = {adapter!r} is a file: expected the folder that PEFT's save_pretrained wrote")
    if not folder.is_dir():
        from huggingface_hub import snapshot_download

        try:
            folder = Path(snapshot_download(adapter, allow_patterns=_ADAPTER))
        except (OSError, ValueError) as error:
            raise refused(
                f"model.adapter = {adapter!r} is neither a folder here nor an adapter that the hub gives "
                f"({line_of(error)}). Check the spelling, or leave it out to begin a new one"
            ) from error
    missing = " and no ".join(name for name in _ADAPTER if not (folder / name).is_file())
    if missing:
        raise refused(f"model.adapter = {adapter!r} has no {missing}: expected what PEFT's save_pretrained writes")
    return folder
