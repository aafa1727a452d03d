"""Do these files belong together, and will this engine load them? Asked of names and headers alone."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from errors import BadInput, CheckFailed
from patches.traits import Traits
from presets import gguf
from presets.catalog import Head, Model, Quant

_WHY: Final[Mapping[str, str]] = {
    "hc_head": "it names its output tensors blk.N.nextn.hc_head_* (upstream since b11330); this engine would "
    "stop with: missing tensor 'output_hc_norm'",
    "output_hc": "it names its output tensors output_hc_*; this engine looks for blk.N.nextn.hc_head_* and "
    "would stop with: missing tensor 'blk.48.nextn.hc_head_norm.weight'",
    "shared": "it borrows the trunk's embedding and output (nextn_shared_target_tensors), which only the "
    "publisher's own fork can do; this engine would stop with: missing tensor 'token_embd.weight'",
}
_NO_FAMILY: Final = "its tensors are named as in no family of heads known here"


def pair(engine: str, traits: Traits, model: Model, head_name: str | None) -> None:
    """Refuse, before anything is downloaded, a head that this engine cannot load.

    Raises:
        BadInput: says why, and which heads of the model do fit.
    """
    if head_name is None:
        return
    family = model.head(head_name).family
    if family in traits.mtp_heads:
        return
    fitting = [name for name, head in model.heads.items() if head.family in traits.mtp_heads]
    raise BadInput(
        f"head {head_name} does not fit engine {engine}",
        why=_WHY[family] if traits.mtp_heads else "this engine loads no MTP head from a file of its own",
        hint=f"heads that fit: {', '.join(fitting)}"
        if fitting
        else "no head of this model fits; remove `head`",
    )


def check_model(model: Model, quant: Quant, first: Path) -> gguf.Header:
    """Read the headers of all shards and hold them against each other and the catalog.

    Raises:
        BadInput: a header is damaged, a shard is missing or belongs to another set, or the file is a head.
        CheckFailed: it is sound, but not the model that the catalog describes.
    """
    header = gguf.read_set(first)
    refuse_head(header, first.name)
    if header.architecture != model.architecture:
        raise CheckFailed(
            f"{first.name} is a model of another architecture",
            why=f"its header says {header.architecture or 'nothing'}, the catalog {model.architecture}",
            hint="./inv models.verify",
        )
    if model.tensors is not None and len(header.tensors) != model.tensors:
        raise CheckFailed(
            f"{first.name} has {len(header.tensors)} tensors",
            why=f"{model.name} has {model.tensors}",
            hint="./inv models.verify",
        )
    if len(quant.shards) != header.shards:
        raise CheckFailed(
            f"{first.name}: {header.shards} shards", why=f"the catalog lists {len(quant.shards)}"
        )
    return header


def refuse_head(header: gguf.Header, name: str) -> None:
    """Refuse an MTP head where a model is wanted: llama-server crashes on it without a word.

    Raises:
        BadInput: the file has blocks, but not the first one.
    """
    if is_head(header):
        raise BadInput(
            f"{name} is an MTP head, not a model",
            why="it holds the draft block alone; llama-server given it as the model crashes without a word",
            hint="give it as the head of a preset, with its trunk as the model",
        )


def check_head(head: Head, path: Path, trunk: gguf.Header) -> gguf.Header:
    """Read a head's header and hold it against its family and its trunk.

    Raises:
        BadInput: the header is damaged, or the head does not match the trunk.
        CheckFailed: the head is of another family than the catalog says.
    """
    header = gguf.read(path)
    found = family_of(header)
    if found != head.family:
        raise CheckFailed(
            f"{path.name} is a head of family {found or 'unknown'}",
            why=f"the catalog says {head.family}; judged by its tensor names",
            hint="./inv models.verify",
        )
    _match(header, path.name, trunk)
    return header


def own_head(path: Path, trunk: gguf.Header, engine: str, traits: Traits) -> gguf.Header:
    """Read the header of a draft file of the user's; an MTP head of qwen4exp must be one the engine loads.

    Raises:
        BadInput: the header is damaged, or the file does not fit the engine or the trunk.
    """
    header = gguf.read_set(path)
    family = family_of(header)
    if trunk.architecture == "qwen4exp" and is_head(header):
        if family not in traits.mtp_heads:
            raise BadInput(
                f"{path.name} does not fit engine {engine}", why=_WHY.get(family or "", _NO_FAMILY)
            )
        _match(header, path.name, trunk)
    return header


def is_head(header: gguf.Header) -> bool:
    """Whether a file holds a draft block without the trunk below it."""
    has_draft = bool(header.metadata.get(f"{header.architecture}.nextn_predict_layers"))
    return has_draft and not any(tensor.name.startswith("blk.0.") for tensor in header.tensors)


def _match(header: gguf.Header, name: str, trunk: gguf.Header) -> None:
    """Raises BadInput where a head is not one for this trunk, or its ratios are too short to load."""
    if header.architecture != trunk.architecture:
        raise BadInput(
            f"{name} is a head for {header.architecture}", why=f"the model is {trunk.architecture}"
        )
    if short := _short_ratios(header):
        raise BadInput(f"{name} cannot be loaded", why=short, hint="choose another head")
    for key, of_head, of_trunk in (
        ("embedding_length", _number(header, "embedding_length"), _number(trunk, "embedding_length")),
        ("blocks without the draft's", _trunk_blocks(header), _trunk_blocks(trunk)),
    ):
        if None not in (of_head, of_trunk) and of_head != of_trunk:
            raise BadInput(
                f"{name} is a head for another model", why=f"{key}: {of_head}, the model's {of_trunk}"
            )


def _trunk_blocks(header: gguf.Header) -> int | None:
    blocks = _number(header, "block_count")
    return None if blocks is None else blocks - (_number(header, "nextn_predict_layers") or 0)


def family_of(header: gguf.Header) -> str | None:
    """The family of a head by its tensor names; None for what is no head known here."""
    names = header.by_name
    if any(name.endswith("nextn.hc_head_norm.weight") for name in names):
        return "hc_head" if "token_embd.weight" in names else "shared"
    return "output_hc" if "output_hc_norm.weight" in names else None


def _short_ratios(header: gguf.Header) -> str:
    """Why the list of compression ratios cannot be read by the engine; "" when it can (#27836)."""
    blocks = _number(header, "block_count") or 0
    length = header.length(f"{header.architecture}.attention.compress_ratios")
    if 0 < length < blocks:
        return (
            f"attention.compress_ratios has {length} entries for {blocks} blocks; the engine wants one each"
        )
    return ""


def _number(header: gguf.Header, key: str) -> int | None:
    value = header.metadata.get(f"{header.architecture}.{key}")
    return value if isinstance(value, int) else None
