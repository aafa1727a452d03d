"""Draws the tensors of a test model from one seed, and writes the GGUF file whole or not at all."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import gguf
import numpy as np
import numpy.typing as npt

from paths import replacing
from tests.makers.tokenizer import Vocabulary

Array = npt.NDArray[np.float32]


class Draw:
    """Adds tensors to a GGUF file. Shapes are given in ggml order, ne0 (the row length) first."""

    def __init__(self, writer: gguf.GGUFWriter, seed: int) -> None:
        self._writer = writer
        self._rng = np.random.default_rng(seed)

    def put(self, name: str, values: Array, *, half: bool = True) -> None:
        """Add a tensor from values; `half` stores f16, else f32."""
        self._writer.add_tensor(name, values.astype(np.float16 if half else np.float32))

    def normal(self, name: str, *shape: int, gain: float = 1.0, half: bool = True) -> None:
        """Gaussian weights whose product with a vector of RMS 1 has RMS `gain`."""
        drawn = self._rng.standard_normal(shape[::-1], dtype=np.float32)
        self.put(name, drawn * np.float32(gain / np.sqrt(shape[0])), half=half)

    def uniform(self, name: str, *shape: int, low: float, high: float) -> None:
        """f32 values spread evenly between two bounds."""
        self.put(name, self._rng.uniform(low, high, shape[::-1]).astype(np.float32), half=False)

    def norm(self, name: str, *shape: int) -> None:
        """A norm's f32 gains, all near one but no two alike, so that exchanged rows are seen."""
        self.uniform(name, *shape, low=0.8, high=1.2)


@contextmanager
def gguf_file(path: Path, architecture: str) -> Iterator[gguf.GGUFWriter]:
    """Collect keys and tensors, then write the file when the block ends without an error."""
    with replacing(path) as temporary:
        writer = gguf.GGUFWriter(temporary, architecture)
        yield writer
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()


class Echo:
    """A rule for the next token that a model and its draft head can share.

    The printable tokens form one cycle in a shuffled order, and each is followed by the next in the
    cycle. A head that agrees with the rule on a share P of the tokens errs on the others, and these
    lie evenly along the cycle: a text that follows the rule therefore meets them at the rate 1 - P.
    """

    def __init__(self, words: Vocabulary, width: int, seed: int) -> None:
        rng = np.random.default_rng([seed, words.size, width])
        self._cycle = rng.permutation(np.array(words.body))
        self._size = words.size
        self.embedding: Array = rng.standard_normal((words.size, width), dtype=np.float32)

    def successors(self, agreement: float = 1.0) -> npt.NDArray[np.int64]:
        """The next token by token id; `agreement` is the share of the cycle that follows the rule."""
        cycle, steps = self._cycle, np.arange(len(self._cycle))
        follower = np.roll(cycle, -1)
        errs = np.floor((steps + 1) * (1 - agreement)) > np.floor(steps * (1 - agreement))
        follower = np.where(errs, np.roll(cycle, -7), follower)
        table = cycle[np.arange(self._size) % len(cycle)]
        table[cycle] = follower
        return table

    def acceptance(self, agreement: float, draft_max: int) -> float:
        """Accepted drafts as a share of all drafts in a long greedy text that follows the rule.

        Each round drafts `draft_max` tokens, keeps those before the first wrong one, and then gets
        one right token from the trunk.
        """
        right, drafts = self.successors(), self.successors(agreement)
        token, accepted, rounds = int(self._cycle[0]), 0, 20 * len(self._cycle)
        for _ in range(rounds):
            for _ in range(draft_max):
                if drafts[token] != right[token]:
                    break
                token, accepted = int(right[token]), accepted + 1
            token = int(right[token])
        return accepted / (rounds * draft_max)

    def output(self, *, peak: float, noise: float, agreement: float = 1.0, seed: int = 0) -> Array:
        """An output matrix [vocabulary, width]: `peak` is the logit of the rule's token for an
        embedding that reaches the output unchanged, `noise` the RMS of logits drawn at random.

        Only printable tokens get a row, so a greedy text holds no control and no special token.
        """
        rng = np.random.default_rng([seed, 1])
        width = self.embedding.shape[1]
        rows = np.zeros_like(self.embedding)
        rows[self._cycle] = rng.standard_normal((len(self._cycle), width)) * (noise / np.sqrt(width))
        table = self.successors(agreement)
        np.add.at(rows, table[self._cycle], self.embedding[self._cycle] * (peak / width))
        return rows
