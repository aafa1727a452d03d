"""What the engine's log must say for a promise of the preset to be true. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from compose.record import Deployment


def faults(deployment: Deployment, log: Sequence[str]) -> Iterator[str]:
    """Promises that the log of a started engine disproves, or does not prove.

    The options alone prove nothing: engines of other dates let the load mode decide over lazy reading,
    or switch it off on an integrated GPU, and 26.8 GiB more stay resident.
    """
    text = "\n".join(log)
    lazy = re.search(r"lazy read enabled", text) is not None
    if deployment.has_table and deployment.lazy_mode == "on" and not lazy:
        yield "lazy_mode is on, but the log has no line `lazy read enabled`: the n-gram table is resident"
    if deployment.lazy_mode == "off" and lazy:
        yield "lazy_mode is off, but the log says `lazy read enabled`"
    mapped = re.search(r"\w+_Mapped model buffer size", text) is not None
    if "mmap" in deployment.load_mode and not mapped:
        yield f"load_mode is {deployment.load_mode}, but no buffer in the log is mapped"
    if deployment.load_mode in ("none", "dio") and mapped and not lazy:
        yield f"load_mode is {deployment.load_mode}, but the log shows a mapped buffer"
    if not re.search(r"buffer size\s*=", text):
        yield "the log names no buffer size: it must be written at verbosity 4 or more"
