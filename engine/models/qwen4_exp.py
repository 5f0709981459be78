"""Qwen4-Exp (Qwen3.8-Flash-Next): hyper-connected Gated DeltaNet and QSA layers, PLE, MoE, a native MTP layer.

The formulas are those of transformers 5.24.0 `models/qwen4_exp`; the MTP layer is composed as vLLM and SGLang do.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import mlx.core as mx

from ..cache.base import CacheGroup, LayerCache
from ..cache.kv import KVCache
from ..cache.recurrent import DeltaCache
from ..checkpoint.header import TensorEntry
from ..checkpoint.index import read_tensor
from ..checkpoint.names import Expected, table_shards
from ..errors import CheckpointError
from ..layers.gated_delta import GatedDelta
from ..layers.hyper_connection import HyperConnection, inject
from ..layers.linear import Take, linear, under
from ..layers.moe import Router, SharedExpert, weighted_sum
from ..layers.ngram import NgramEmbedding, NgramHash
from ..layers.norm import centred, rms_norm
from ..layers.rope import Rope
from ..layers.sparse_attention import SparseAttention
from .contract import ExpertInput, RowTable
from .reading import Fields

__all__ = ["MODEL_TYPES", "Config", "Qwen4Exp", "read_config"]

MODEL_TYPES = ("qwen4_exp", "qwen4_exp_text", "qwen3_8_flash_next", "qwen3_8_flash_next_text")

_TRUNK = "model.language_model."
_SPARSE = frozenset({"full_attention", "indexed_attention", "qwen_sparse_attention", "deepseek_sparse_attention"})
_FLOATS = ("BF16", "F16", "F32")
_STORED = (*_FLOATS, "F8_E4M3")


@dataclass(frozen=True, slots=True)
class Config:
    """The numbers of config.json that the model depends on."""

    model_type: str
    layers: int
    hidden: int
    vocab: int
    max_context: int
    sparse: tuple[bool, ...]
    """Per layer: QSA attention (True) or Gated DeltaNet."""
    heads: int
    kv_heads: int
    head_dim: int
    rope_dims: int
    rope_theta: float
    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    conv_kernel: int
    gate: str
    experts: int
    top_k: int
    normalise_top_k: bool
    expert_width: int
    shared_width: int
    streams: int
    low_rank: int
    eps: float
    ple_layers: tuple[int, ...]
    """Zero-based layers with PLE."""
    ple_width: int
    ple_kernel: int
    ngram: int
    heads_per_ngram: int
    ngram_base: int
    ngram_divisor: int
    ngram_parts: int
    seed: int
    cut_token: int
    index_heads: int
    index_dim: int
    index_budget: int
    index_ratio: int

    @property
    def wide(self) -> int:
        return self.streams * self.hidden

    def has_draft(self, entries: Mapping[str, TensorEntry]) -> bool:
        return any(name.startswith("mtp.") for name in entries)

    def expert_prefixes(self) -> tuple[str, ...]:
        return tuple(f"{_TRUNK}layers.{i}" for i in range(self.layers))

    def draft_expert_prefixes(self) -> tuple[str, ...]:
        return ("mtp.layers.0",)

    def is_resident(self, name: str) -> bool:
        return not (".mlp.experts." in name or ".ple_embedding." in name)

    def kv_bytes(self, tokens: int, item_bytes: int) -> int:
        a_token = 2 * self.kv_heads * self.head_dim + self.index_dim + self.index_dim / self.index_ratio
        return int((sum(self.sparse) + 1) * tokens * a_token * item_bytes)

    def state_bytes(self, item_bytes: int) -> int:
        conv = 2 * self.key_heads * self.key_dim + self.value_heads * self.value_dim
        delta = 4 * self.value_heads * self.value_dim * self.key_dim + (self.conv_kernel - 1) * conv * item_bytes
        ple = (self.ple_kernel - 1) * self.ngram * self.wide * item_bytes
        return (self.layers - sum(self.sparse)) * delta + len(self.ple_layers) * ple

    def ngram_hash(self, layer: int) -> NgramHash:
        """The hash of the PLE at zero-based layer `layer`."""
        return NgramHash.build(
            vocab=self.vocab, ngram=self.ngram, heads=self.heads_per_ngram, base=self.ngram_base,
            layer=self.ple_layers.index(layer), seed=self.seed, cut_token=self.cut_token,
        )  # fmt: skip

    def table_rows(self, layer: int) -> int:
        rows = sum(self.ngram_hash(layer).sizes)
        return -(-rows // self.ngram_divisor) * self.ngram_divisor

    def row_tables(self, entries: Mapping[str, TensorEntry]) -> tuple[RowTable, ...]:
        tables = []
        for layer in self.ple_layers:
            stem = f"{_TRUNK}layers.{layer}.ple.ple_embedding.ngram_embedding"
            scale = entries.get(f"{stem}.weight_scale")
            hashed = self.ngram_hash(layer)
            tables.append(RowTable(layer, table_shards(entries, stem), scale, hashed, len(hashed.sizes)))
        return tuple(tables)

    def check_constants(self, entries: Mapping[str, TensorEntry]) -> None:
        for layer in self.ple_layers:
            built = self.ngram_hash(layer)
            stem = f"{_TRUNK}layers.{layer}.ple.ple_embedding"
            for name, values in (
                ("layer_multipliers", built.multipliers),
                ("ngram_heads_vocab_sizes", built.sizes),
                ("ngram_heads_offsets", built.offsets),
            ):
                entry = entries.get(f"{stem}.{name}")
                if entry is not None and tuple(read_tensor(entry).tolist()) != values:
                    raise CheckpointError(
                        f"{entry.path}: tensor {entry.name!r} differs from the n-gram constants that config.json gives "
                        f"(seed {self.seed}, base {self.ngram_base}).",
                        "The checkpoint is damaged, or its config.json is of another model.",
                        path=entry.path,
                        tensor=entry.name,
                    )

    def expected(self, entries: Mapping[str, TensorEntry]) -> dict[str, Expected]:
        return _expected(self, entries)

    def build(self, take: Take, *, draft: bool) -> Qwen4Exp:
        return Qwen4Exp(self, take, draft=draft)


def read_config(raw: Mapping[str, Any], where: str) -> Config:
    """The Config of a config.json. Raises CheckpointError naming the key that is missing or out of range."""
    text = raw.get("text_config")
    f = Fields(text if isinstance(text, Mapping) else raw, where)
    layers, hidden = f.whole("num_hidden_layers"), f.whole("hidden_size")
    rope = f.table("rope_parameters")
    head_dim = f.whole("head_dim", hidden // max(1, f.whole("num_attention_heads")))
    rope_dims = rope.even_share("partial_rotary_factor", head_dim, f.number("partial_rotary_factor", 1.0))
    theta = (rope if "rope_theta" in rope else f).number("rope_theta")
    rope.choice("rope_type", ("default",), "default")
    experts, vocab, ratio = f.whole("num_experts"), f.whole("vocab_size"), f.whole("indexer_compress_ratio")
    return Config(
        model_type="qwen4_exp",
        layers=layers, hidden=hidden, vocab=vocab,
        max_context=f.whole("max_position_embeddings", 32768),
        sparse=_layer_kinds(f, layers),
        heads=f.whole("num_attention_heads"), kv_heads=f.whole("num_key_value_heads"), head_dim=head_dim,
        rope_dims=rope_dims, rope_theta=theta,
        key_heads=f.whole("linear_num_key_heads"), value_heads=f.whole("linear_num_value_heads"),
        key_dim=f.whole("linear_key_head_dim"), value_dim=f.whole("linear_value_head_dim"),
        conv_kernel=f.whole("linear_conv_kernel_dim", 4),
        gate=f.choice("output_gate_type", ("sigmoid", "silu"), f.choice("hidden_act", ("silu",), "silu")),
        experts=experts, top_k=f.whole("num_experts_per_tok", most=experts),
        normalise_top_k=f.flag("norm_topk_prob", True),
        expert_width=f.whole("moe_intermediate_size"), shared_width=f.whole("shared_expert_intermediate_size"),
        streams=f.whole("hc_count", least=2), low_rank=f.whole("hc_lowrank"),
        eps=f.number("rms_norm_eps", 1e-6),
        ple_layers=tuple(i - 1 for i in f.wholes("ple_layer_ids", 1, layers)),
        ple_width=f.whole("ple_embed_dim", hidden), ple_kernel=f.whole("ple_conv_kernel_size", 4),
        ngram=f.whole("ngram_size", 3, least=2, most=8), heads_per_ngram=f.whole("heads_per_ngram", 8),
        ngram_base=f.whole("ngram_vocab_size_base", 20_000_000),
        ngram_divisor=f.whole("make_ngram_vocab_size_divisible_by", 128),
        ngram_parts=f.whole("split_ngram_parts", 512),
        seed=f.whole("seed", 1234, least=0),
        cut_token=f.first_whole("eos_token_id", most=vocab - 1),
        index_heads=f.whole("indexer_n_heads"), index_dim=f.whole("indexer_head_dim"),
        index_budget=f.whole("indexer_budget", least=ratio), index_ratio=ratio,
    )  # fmt: skip


def _layer_kinds(f: Fields, layers: int) -> tuple[bool, ...]:
    kinds = f.words("layer_types")
    if not kinds:
        interval = f.whole("full_attention_interval", 4)
        return tuple((i + 1) % interval == 0 for i in range(layers))
    if len(kinds) != layers:
        raise f.fault("layer_types", f"names {len(kinds)} layers, num_hidden_layers says {layers}")
    for kind in kinds:
        if kind not in _SPARSE and kind != "linear_attention":
            raise f.fault("layer_types", f"holds {kind!r}; known are linear_attention, {', '.join(sorted(_SPARSE))}")
    return tuple(kind in _SPARSE for kind in kinds)


def _expected(c: Config, entries: Mapping[str, TensorEntry]) -> dict[str, Expected]:
    """Every tensor of a checkpoint, per checkpoint layout (experts fused or single, table whole or in shards)."""
    made: dict[tuple[int, ...], Expected] = {}
    found: dict[str, Expected] = {}

    def add(stem: str, shapes: Mapping[str, tuple[int, ...]]) -> None:
        for name, shape in shapes.items():
            found[f"{stem}{name}"] = made.setdefault(shape, Expected(shape, _FLOATS))

    mix = {
        "hc_norm.weight": (c.wide,),
        "input_mix_weight_down.weight": (c.low_rank, c.wide),
        "input_mix_weight_up.weight": (c.wide, c.low_rank),
    }
    add("", {"lm_head.weight": (c.vocab, c.hidden), f"{_TRUNK}embed_tokens.weight": (c.vocab, c.hidden)})
    add(f"{_TRUNK}hyper_connection_mixer.", mix)
    layers = [(f"{_TRUNK}layers.{i}.", c.sparse[i]) for i in range(c.layers)]
    if c.has_draft(entries):
        layers.append(("mtp.layers.0.", True))
        add("mtp.hyper_connection_mixer.", mix)
        add(
            "mtp.",
            {
                "pre_fc_norm_embedding.weight": (c.hidden,),
                "pre_fc_norm_hidden.weight": (c.wide,),
                "fc_embedding.weight": (c.hidden, c.hidden),
                "fc_hidden.weight": (c.hidden, c.hidden),
            },
        )
    for stem, sparse in layers:
        for side in ("attn_hyper_connection.", "mlp_hyper_connection."):
            add(stem + side, {**mix, "block_inject_weight.weight": (c.streams, c.wide)})
        if sparse:
            add(f"{stem}self_attn.", _attention_shapes(c))
        else:
            add(f"{stem}linear_attn.", _delta_shapes(c))
        add(f"{stem}mlp.", _moe_shapes(c))
        found.update(_expected_experts(c, f"{stem}mlp.experts", entries))
    for layer in c.ple_layers:
        found.update(_expected_ple(c, layer, entries))
    return found


def _attention_shapes(c: Config) -> dict[str, tuple[int, ...]]:
    return {
        "q_proj.weight": (2 * c.heads * c.head_dim, c.hidden),
        "k_proj.weight": (c.kv_heads * c.head_dim, c.hidden),
        "v_proj.weight": (c.kv_heads * c.head_dim, c.hidden),
        "o_proj.weight": (c.hidden, c.heads * c.head_dim),
        "q_norm.weight": (c.head_dim,),
        "k_norm.weight": (c.head_dim,),
        "indexer.index_qk_proj.weight": ((c.index_heads + 1) * c.index_dim, c.hidden),
        "indexer.q_layernorm.weight": (c.index_dim,),
        "indexer.k_layernorm.weight": (c.index_dim,),
    }


def _delta_shapes(c: Config) -> dict[str, tuple[int, ...]]:
    values = c.value_heads * c.value_dim
    conv = 2 * c.key_heads * c.key_dim + values
    return {
        "in_proj_qkv.weight": (conv, c.hidden),
        "in_proj_z.weight": (values, c.hidden),
        "in_proj_a.weight": (c.value_heads, c.hidden),
        "in_proj_b.weight": (c.value_heads, c.hidden),
        "out_proj.weight": (c.hidden, values),
        "A_log": (c.value_heads,),
        "dt_bias": (c.value_heads,),
        "conv1d.weight": (conv, 1, c.conv_kernel),
        "norm.weight": (c.value_dim,),
    }


def _moe_shapes(c: Config) -> dict[str, tuple[int, ...]]:
    return {
        "gate.weight": (c.experts, c.hidden),
        "shared_expert.gate_proj.weight": (c.shared_width, c.hidden),
        "shared_expert.up_proj.weight": (c.shared_width, c.hidden),
        "shared_expert.down_proj.weight": (c.hidden, c.shared_width),
        "shared_expert_gate.weight": (1, c.hidden),
    }


def _expected_experts(c: Config, stem: str, entries: Mapping[str, TensorEntry]) -> dict[str, Expected]:
    wide, narrow = (c.expert_width, c.hidden), (c.hidden, c.expert_width)
    if f"{stem}.gate_up_proj" in entries or f"{stem}.down_proj" in entries:
        return {
            f"{stem}.gate_up_proj": Expected((c.experts, 2 * wide[0], wide[1]), _FLOATS),
            f"{stem}.down_proj": Expected((c.experts, *narrow), _FLOATS),
        }
    found: dict[str, Expected] = {}
    for role, shape in (("gate_proj", wide), ("up_proj", wide), ("down_proj", narrow)):
        weight, scale = Expected(shape, _STORED), None
        for e in range(c.experts):
            name = f"{stem}.{e}.{role}.weight"
            found[name] = weight
            # The scale's shape depends on the block size, which the layout checks.
            stored, coded = entries.get(f"{name}_scale_inv"), entries.get(name)
            if stored is not None and (coded is None or coded.dtype == "F8_E4M3"):
                if scale is None or scale.shape != stored.shape:
                    scale = Expected(stored.shape, ("BF16",))
                found[f"{name}_scale_inv"] = scale
    return found


def _expected_ple(c: Config, layer: int, entries: Mapping[str, TensorEntry]) -> dict[str, Expected]:
    stem = f"{_TRUNK}layers.{layer}.ple"
    table = f"{stem}.ple_embedding.ngram_embedding"
    heads = (c.ngram - 1) * c.heads_per_ngram
    rows, columns, shards = c.table_rows(layer), c.ple_width // heads, table_shards(entries, table)
    found = {
        f"{stem}.key_proj.weight": Expected((c.wide, c.ple_width), _FLOATS),
        f"{stem}.value_proj.weight": Expected((c.hidden, c.ple_width), _FLOATS),
        f"{stem}.conv1d.weight": Expected((c.wide, 1, c.ple_kernel), _FLOATS),
        **{f"{stem}.{norm}.weight": Expected((c.wide,), _FLOATS) for norm in ("norm_key", "norm_query", "norm_conv")},
    }
    for name, length in (
        ("layer_multipliers", c.ngram),
        ("ngram_heads_vocab_sizes", heads),
        ("ngram_heads_offsets", heads),
    ):
        if f"{stem}.ple_embedding.{name}" in entries:
            found[f"{stem}.ple_embedding.{name}"] = Expected((length,), ("I64",))
    if f"{table}.weight" in entries:
        found[f"{table}.weight"] = Expected((rows, columns), _STORED)
    else:
        # A row is read by its place alone, so all shards are stored alike.
        alike = {e.dtype for e in shards[:1]}.intersection(_STORED) or _STORED
        shard = Expected((rows // c.ngram_parts, columns), alike)
        found.update({f"{table}.shard_{i}.weight": shard for i in range(c.ngram_parts)})
    if any(e.dtype == "F8_E4M3" for e in shards):
        found[f"{table}.weight_scale"] = Expected((1,), ("BF16",))
    return found


class _Layer:
    """One decoder layer; `mixer` is Gated DeltaNet or QSA, PLE is only where the checkpoint has it."""

    def __init__(self, c: Config, take: Take, *, sparse: bool, ple: bool, theta: float) -> None:
        self._attn_mix = HyperConnection(under(take, "attn_hyper_connection."), c.streams, c.eps)
        self._mlp_mix = HyperConnection(under(take, "mlp_hyper_connection."), c.streams, c.eps)
        self._sparse = sparse
        if sparse:
            self._mixer: Any = SparseAttention(
                under(take, "self_attn."), heads=c.heads, kv_heads=c.kv_heads, head_dim=c.head_dim,
                index_heads=c.index_heads, index_dim=c.index_dim, budget=c.index_budget, ratio=c.index_ratio,
                rope=Rope(c.rope_dims, theta), eps=c.eps,
            )  # fmt: skip
        else:
            self._mixer = GatedDelta(
                under(take, "linear_attn."), key_heads=c.key_heads, value_heads=c.value_heads, key_dim=c.key_dim,
                value_dim=c.value_dim, kernel=c.conv_kernel, gate=c.gate, eps=c.eps,
            )  # fmt: skip
        self._ple: NgramEmbedding | None = None
        if ple:
            self._ple = NgramEmbedding(
                under(take, "ple."), streams=c.streams, hidden=c.hidden, kernel=c.ple_kernel, dilation=c.ngram, eps=c.eps
            )  # fmt: skip
        mlp = under(take, "mlp.")
        self._router, self._shared = Router(mlp, c.top_k, normalise=c.normalise_top_k), SharedExpert(mlp)

    def new_cache(self) -> LayerCache:
        mixer: KVCache | DeltaCache = self._mixer.new_cache()
        if self._ple is None:
            return mixer
        return CacheGroup(mixer=mixer, ple=self._ple.new_cache())

    def mix(
        self, x: mx.array, cache: Any, rows: mx.array | None, *, apart: bool = False
    ) -> tuple[mx.array, ExpertInput]:
        if self._ple is not None:
            assert rows is not None
            x = x + self._ple(x, rows, cache["ple"])
            cache = cache["mixer"]
        mixed, weights = self._attn_mix(x)
        assert weights is not None
        out = self._mixer(mixed, cache, apart=apart) if self._sparse else self._mixer(mixed, cache)
        x = inject(x, out, weights)
        hidden, weights = self._mlp_mix(x)
        assert weights is not None
        ids, scores = self._router(hidden)
        return x, ExpertInput(hidden, ids, scores, self._shared(hidden), weights)

    def append(self, x: mx.array, cache: KVCache) -> None:
        """Of a sparse layer without a table: x [T, W] into the cache, nothing attended and no expert asked."""
        self._mixer.append(self._attn_mix(x)[0], cache)

    def guess(self, hidden: mx.array, count: int) -> mx.array:
        return self._router.likeliest(hidden, count)

    def merge(self, x: mx.array, asked: ExpertInput, outputs: mx.array) -> mx.array:
        return inject(x, weighted_sum(outputs, asked.weights, asked.shared), asked.inject)


class _Draft:
    """The MTP layer: pair (wide hidden of position i, token i + 1) -> logits for position i + 2."""

    def __init__(self, c: Config, take: Take, embed: mx.array, head: Any) -> None:
        part = under(take, "mtp.")
        self._embed, self._lm_head = embed, head
        self._norm_embedding = centred(part("pre_fc_norm_embedding.weight", mx.float32))
        self._norm_hidden = centred(part("pre_fc_norm_hidden.weight", mx.float32))
        self._fc_embedding, self._fc_hidden = linear(part("fc_embedding.weight")), linear(part("fc_hidden.weight"))
        self.layer = _Layer(c, under(part, "layers.0."), sparse=True, ple=False, theta=c.rope_theta)
        self._mixer = HyperConnection(under(part, "hyper_connection_mixer."), c.streams, c.eps, injects=False)
        self._streams, self._eps = c.streams, c.eps

    def join(self, wide: mx.array, tokens: mx.array) -> mx.array:
        e = self._fc_embedding(rms_norm(self._embed[tokens], self._norm_embedding, self._eps))
        hidden = rms_norm(wide, self._norm_hidden, self._eps).reshape(wide.shape[0], self._streams, -1)
        return (self._fc_hidden(hidden) + e[:, None, :]).reshape(wide.shape)

    def head(self, x: mx.array) -> mx.array:
        return self._lm_head(self._mixer(x)[0]).astype(mx.float32)


class Qwen4Exp:
    """The trunk and, where it is there, the draft layer."""

    def __init__(self, c: Config, take: Take, *, draft: bool) -> None:
        trunk = under(take, _TRUNK)
        self._embed, self._lm_head = trunk("embed_tokens.weight"), linear(take("lm_head.weight"))
        self.layers = [
            _Layer(c, under(trunk, f"layers.{i}."), sparse=c.sparse[i], ple=i in c.ple_layers, theta=c.rope_theta)
            for i in range(c.layers)
        ]
        self._mixer = HyperConnection(under(trunk, "hyper_connection_mixer."), c.streams, c.eps, injects=False)
        self.draft = _Draft(c, take, self._embed, self._lm_head) if draft else None
        self._streams = c.streams

    def embed(self, ids: mx.array) -> mx.array:
        return mx.tile(self._embed[ids], (1, self._streams))

    def head(self, x: mx.array) -> mx.array:
        return self._lm_head(self._mixer(x)[0]).astype(mx.float32)
