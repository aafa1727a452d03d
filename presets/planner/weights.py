"""Where the weights go: the engine's placement rules over the tensors of a header.

Repeating layers and the output go to the device, the input layer (token embeddings) stays on the host, a
tied output is copied to the device, and a table marked for lazy reading stays in the file.
Source: llama-model.cpp load_tensors, llama-model-loader.cpp create_tensor, ggml-cuda.cu get_alloc_size.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from patches.traits import Traits
from presets.gguf import Header, Tensor, row_bytes
from presets.planner.architecture import MTP_NEVER_LOADED, Architecture
from presets.planner.options import Options, pad
from presets.planner.terms import Device, Term

INPUTS: Final = frozenset(
    f"{name}.{kind}"
    for name in ("token_embd", "position_embd", "token_embd_norm", "token_types", "per_layer_token_embd")
    for kind in ("weight", "bias")
)
"""Tensors of the input layer (LLM_TENSOR_LAYER_INPUT)."""
LAZY: Final = "per_layer_token_embd.weight"
LAZY_ARCHITECTURES: Final = ("qwen4exp", "gemma4")
"""Architectures that mark the table TENSOR_READ_LAZY."""
OUTPUT_NORM_INPUTS: Final = {"lfm2": "token_embd_norm.weight", "lfm2moe": "token_embd_norm.weight"}
"""Architectures whose `token_embd_norm` is the output norm in truth."""
OUTPUT_FIRST: Final = ("gemma3n", "gemma4", "gemma4-assistant")
"""Architectures that ask for a tied output before the embedding: even on the CPU it is there twice."""
HOST_ALIGNMENT: Final = 32
DEVICE_ALIGNMENT: Final = 128
ROW_PADDING: Final = 512
"""HIP pads the last row of a quantized tensor to this many elements (MATRIX_ROW_PADDING)."""
_BLOCK: Final = re.compile(r"^blk\.(\d+)\.")


@dataclass(frozen=True, kw_only=True)
class Placement:
    """Bytes of weights: on the device, on the host, and the n-gram table with whether it is read lazily."""

    device: int
    host: int
    table: int
    lazy: bool


def place(
    header: Header,
    arch: Architecture,
    options: Options,
    traits: Traits,
    device: Device,
    *,
    mtp: bool,
) -> Placement:
    """Place every tensor.

    Args:
        mtp: whether blocks for multi-token prediction are loaded (draft-mtp is on, or this is a head).
    """
    on_device = on_host = table = 0
    first, overrides = first_offloaded(arch, options, device), options.overrides()
    for tensor in loaded(header, arch, mtp=mtp):
        forced = next((host for pattern, host in overrides if pattern.search(tensor.name)), None)
        if tensor.name == LAZY and arch.name in LAZY_ARCHITECTURES:
            table += pad(tensor.nbytes, HOST_ALIGNMENT)
        elif forced is not None and device.kind != "cpu":
            on_host += pad(tensor.nbytes, HOST_ALIGNMENT) if forced else 0
            on_device += 0 if forced else device_bytes(tensor, device)
        elif is_input(tensor, arch) or not offloaded(tensor, first, arch, device):
            on_host += pad(tensor.nbytes, HOST_ALIGNMENT)
        else:
            on_device += device_bytes(tensor, device)
    tied = header.by_name.get("token_embd.weight")
    if tied is not None and "output.weight" not in header.by_name:
        if device.kind != "cpu" and first <= len(arch.layers):
            on_device += device_bytes(tied, device)
        elif arch.name in OUTPUT_FIRST and not is_mapped(options, traits, device):
            on_host += pad(tied.nbytes, HOST_ALIGNMENT)
    return Placement(
        device=on_device, host=on_host, table=table, lazy=is_lazy(table, options, traits, device)
    )


def first_offloaded(arch: Architecture, options: Options, device: Device) -> int:
    """The first layer on the device; the output counts as one more layer (load_tensors: i_gpu_start)."""
    if device.kind == "cpu":
        return len(arch.layers) + 1
    if options.n_gpu_layers is None or options.n_gpu_layers < 0:
        return 0
    return max(len(arch.layers) + 1 - options.n_gpu_layers, 0)


def loaded(header: Header, arch: Architecture, *, mtp: bool) -> Iterable[Tensor]:
    """The tensors that the engine creates; those of unused extra blocks are skipped."""
    skip = arch.extra and (not mtp or arch.name in MTP_NEVER_LOADED)
    trunk = len(arch.layers) - arch.extra
    for tensor in header.tensors:
        match = _BLOCK.match(tensor.name)
        if not (skip and match and int(match[1]) >= trunk):
            yield tensor


def is_input(tensor: Tensor, arch: Architecture) -> bool:
    """Whether a tensor belongs to the input layer, which stays on the host."""
    return tensor.name in INPUTS and OUTPUT_NORM_INPUTS.get(arch.name) != tensor.name


def offloaded(tensor: Tensor, first: int, arch: Architecture, device: Device) -> bool:
    """Whether a tensor's layer is on the device; tensors without a number belong to the output."""
    if device.kind == "cpu":
        return False
    match = _BLOCK.match(tensor.name)
    return (int(match[1]) if match else len(arch.layers)) >= first


def device_bytes(tensor: Tensor, device: Device) -> int:
    """Bytes in a device buffer: HIP pads the last row of quantized tensors, all are aligned."""
    size = tensor.nbytes
    if device.backend == "rocm" and tensor.type not in ("f32", "f16", "bf16"):
        rest = -tensor.shape[0] % ROW_PADDING
        if rest:
            size += row_bytes(tensor.type, rest)
    return pad(size, DEVICE_ALIGNMENT)


def is_lazy(table: int, options: Options, traits: Traits, device: Device) -> bool:
    """Whether the table is read on demand (lazy_read::add and the AUTO rule of load_tensors)."""
    if not table or options.lazy_mode == "off":
        return False
    if options.lazy_mode == "on":
        return True
    return traits.lazy_auto[device.kind] and table > traits.lazy_min_bytes


def is_mapped(options: Options, traits: Traits, device: Device) -> bool:
    """Whether weights stay in the mapped file (load_tensors: AUTO becomes NONE without mmap support)."""
    mode = traits.load_auto[device.kind] if options.load_mode == "auto" else options.load_mode
    return mode.startswith("mmap")


def terms(placement: Placement, traits: Traits) -> list[Term]:
    """The terms of the target's weights."""
    found = [
        Term(
            name="weights_device", bytes=placement.device, where="device", certainty="exact",
            formula="sum of the tensors of offloaded layers and the output, rows padded as HIP does",
        ),
        Term(
            name="weights_host", bytes=placement.host, where="host", certainty="exact",
            formula="sum of the tensors of the input layer and of layers on the CPU, aligned to 32 B",
        ),
    ]  # fmt: skip
    if placement.table and placement.lazy:
        found.append(
            Term(
                name="ngram_table", bytes=min(placement.table, traits.lazy_resident_bytes), where="host",
                certainty="measured", formula=f"pages of the {placement.table} B table that stay in RAM",
            )
        )  # fmt: skip
    elif placement.table:
        found.append(
            Term(
                name="ngram_table", bytes=placement.table, where="host", certainty="exact",
                formula="per_layer_token_embd whole in RAM: lazy reading is off here",
            )
        )  # fmt: skip
    return [term for term in found if term.bytes]
