"""The geometry of the demo network. Field names are ours; `export.py` spells them as the published config does."""

from __future__ import annotations

from dataclasses import asdict, dataclass


@dataclass(frozen=True)
class NetworkConfig:
    vocab_size: int = 4096
    hidden_size: int = 256
    num_layers: int = 8
    attention_every: int = 4
    """Layer i is sparse attention where (i + 1) % attention_every == 0, gated delta rule elsewhere."""
    num_heads: int = 4
    num_kv_heads: int = 2
    head_dim: int = 64
    rotary_dim: int = 32
    rope_theta: float = 10000.0
    delta_key_heads: int = 2
    delta_value_heads: int = 4
    delta_key_dim: int = 64
    delta_value_dim: int = 64
    delta_conv: int = 4
    num_experts: int = 64
    experts_per_token: int = 4
    expert_size: int = 64
    shared_expert_size: int = 64
    streams: int = 4
    stream_rank: int = 32
    ple_layer_id: int = 2
    """One-based, as published: the layer that adds the n-gram embeddings has index ple_layer_id - 1."""
    ple_size: int = 256
    ple_conv: int = 4
    ngram_size: int = 3
    heads_per_ngram: int = 2
    ngram_vocab_base: int = 8192
    ngram_vocab_multiple: int = 128
    ngram_seed: int = 1234
    index_heads: int = 2
    index_dim: int = 32
    index_budget: int = 256
    index_ratio: int = 4
    cut_token: int = 0
    """The id of <|endoftext|>: n-grams never reach back over it."""
    eps: float = 1e-6
    max_positions: int = 8192

    def is_attention(self, layer: int) -> bool:
        return (layer + 1) % self.attention_every == 0

    @property
    def ngram_heads(self) -> int:
        return (self.ngram_size - 1) * self.heads_per_ngram

    def to_dict(self) -> dict:
        return asdict(self)
