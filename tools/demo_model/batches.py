"""Rows of training text. Row n of a run depends on the seed and on n alone, so a run can be resumed exactly."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

DOMAINS = ("chat", "code", "prose")
SHORT, LONG, LONG_EVERY = (4, 512), (1, 2048), 4
"""Rows and length of a micro-batch; both hold MICRO_TOKENS, and every LONG_EVERY-th is long."""
MICRO_TOKENS = 2048
CONTEXT_SHARE, CONTEXT_WEIGHT = 0.2, 0.5
"""Text that is only read (users, scaffolding) is learned a little: this share of it, at this weight."""


def shape(micro_batch: int) -> tuple[int, int]:
    """Rows and length of the n-th micro-batch of a run."""
    return LONG if micro_batch % LONG_EVERY == LONG_EVERY - 1 else SHORT


@dataclass(frozen=True, slots=True)
class Documents:
    """One side of one domain: token ids, whether each is learned, and where each document ends."""

    ids: np.ndarray
    learned: np.ndarray
    ends: np.ndarray

    @classmethod
    def load(cls, data: Path, domain: str, side: str) -> Documents:
        arrays = np.load(data / f"{domain}.npz")
        return cls(arrays[f"{side}_ids"], arrays[f"{side}_learned"], arrays[f"{side}_ends"])

    def start(self, document: int) -> int:
        return int(self.ends[document - 1]) if document else 0

    def window(self, start: int, length: int) -> tuple[np.ndarray, np.ndarray]:
        part = slice(start, start + length)
        return self.ids[part].astype(np.int64), self.learned[part]

    def drawn(self, r: np.random.Generator, length: int) -> tuple[np.ndarray, np.ndarray]:
        """A window that starts at a random document."""
        last = int(np.searchsorted(self.ends, len(self.ids) - length))
        return self.window(self.start(int(r.integers(last))), length)

    def rows(self, length: int, count: int) -> list[tuple[np.ndarray, np.ndarray]]:
        """Evenly spread windows that start at a document, for evaluation."""
        last = int(np.searchsorted(self.ends, len(self.ids) - length))
        return [self.window(self.start(int(i)), length) for i in np.linspace(0, last - 1, count)]


@dataclass(frozen=True, slots=True)
class Mix:
    """Shares of the domains, and of random spans that repeat (the shortest lesson in copying)."""

    chat: float = 0.9
    code: float = 0.05
    prose: float = 0.05
    copying: float = 0.02


class Sampler:
    def __init__(self, data: Path, seed: int, mix: Mix, vocab_size: int):
        self.documents = {domain: Documents.load(data, domain, "train") for domain in DOMAINS}
        self.seed, self.mix, self.vocab_size = seed, mix, vocab_size
        self.row = 0

    def _copying(self, r: np.random.Generator, length: int) -> tuple[np.ndarray, np.ndarray]:
        ids, learned = [], []
        while sum(map(len, ids)) < length:
            size, times = int(r.integers(4, 48)), int(r.integers(2, 4))
            ids.append(np.append(np.tile(r.integers(16, self.vocab_size, size), times), 0))
            learned.append(np.arange(size * times + 1) >= size)
        return np.concatenate(ids)[:length], np.concatenate(learned)[:length]

    def next_row(self, length: int) -> tuple[np.ndarray, np.ndarray]:
        r = np.random.default_rng((self.seed, self.row))
        self.row += 1
        if r.random() < self.mix.copying:
            ids, learned = self._copying(r, length)
            return ids, learned.astype(np.float32)
        shares = np.array([self.mix.chat, self.mix.code, self.mix.prose])
        documents = self.documents[DOMAINS[r.choice(3, p=shares / shares.sum())]]
        ids, learned = documents.drawn(r, length)
        context = (r.random(length) < CONTEXT_SHARE) * CONTEXT_WEIGHT
        return ids, np.where(learned, 1.0, context).astype(np.float32)

    def batch(self, rows: int, length: int) -> tuple[torch.Tensor, torch.Tensor]:
        """-> ids [rows, length] and the weight of each as a target."""
        ids, weights = zip(*(self.next_row(length) for _ in range(rows)), strict=True)
        return torch.from_numpy(np.stack(ids)), torch.from_numpy(np.stack(weights))
