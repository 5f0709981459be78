"""The trunk, the draft (MTP) layer and their joint loss. Weights keep the names of the published checkpoint."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import nn

from .attention import Attention
from .basics import RMSNorm, linear, rotary_table
from .config import NetworkConfig
from .delta import DeltaNet
from .experts import MoE
from .head import weighted_cross_entropy
from .ngram import PerLayerEmbedding
from .streams import HyperConnection, inject


class Layer(nn.Module):
    def __init__(self, config, attention: bool, ple: bool = False):
        super().__init__()
        if attention:
            self.self_attn = Attention(config)
        else:
            self.linear_attn = DeltaNet(config)
        self.attention = attention
        self.mlp = MoE(config)
        self.ple = PerLayerEmbedding(config) if ple else None
        self.attn_hyper_connection = HyperConnection(config)
        self.mlp_hyper_connection = HyperConnection(config)

    def _experts(self, wide):
        read, gates = self.mlp_hyper_connection(wide)
        out, balance, chosen = self.mlp(read)
        return inject(wide, out, gates), balance, chosen

    def forward(self, wide, rope, rows=None, mask=None, before=None):
        """-> wide, balance loss, chosen experts, (key, value) of an attention layer."""
        if self.ple is not None:
            wide = self.ple(wide, rows)
        read, gates = self.attn_hyper_connection(wide)
        own = None
        if self.attention:
            out, own = self.self_attn(read, rope, mask, before)
        else:
            out = self.linear_attn(read)
        return *self._experts(inject(wide, out, gates)), own

    def step(self, wide, rope, rows, cache: dict):
        """One token, wide [B, streams*H]; the layer's caches live in `cache`."""
        if self.ple is not None:
            wide = self.ple.step(wide, rows, cache.setdefault("ple", {}))
        read, gates = self.attn_hyper_connection(wide)
        mixer = cache.setdefault("mixer", {})
        out = self.self_attn.step(read, rope, mixer) if self.attention else self.linear_attn.step(read, mixer)
        return self._experts(inject(wide, out, gates))[0]


class Draft(nn.Module):
    """The MTP layer: fuse a position's wide hidden with the next token, one attention + MoE layer, own mixer."""

    def __init__(self, config):
        super().__init__()
        self.streams, self.size = config.streams, config.hidden_size
        self.pre_fc_norm_embedding = RMSNorm(self.size, config.eps)
        self.pre_fc_norm_hidden = RMSNorm(self.streams * self.size, config.eps)
        self.fc_embedding, self.fc_hidden = linear(self.size, self.size), linear(self.size, self.size)
        self.layers = nn.ModuleList([Layer(config, attention=True)])
        self.hyper_connection_mixer = HyperConnection(config, inject=False)

    def fuse(self, wide, embedded):
        hidden = self.pre_fc_norm_hidden(wide).unflatten(-1, (self.streams, self.size))
        return (self.fc_hidden(hidden) + self.fc_embedding(self.pre_fc_norm_embedding(embedded)).unsqueeze(-2)).flatten(
            -2
        )


class Trunk(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        nn.init.normal_(self.embed_tokens.weight, std=0.5)
        self.layers = nn.ModuleList(
            Layer(config, config.is_attention(i), ple=i == config.ple_layer_id - 1) for i in range(config.num_layers)
        )
        self.hyper_connection_mixer = HyperConnection(config, inject=False)


def draft_mask(length: int, depth: int):
    """Attention of the `depth`-th self-fed draft: the true pairs up to its own, then its own chain, one row each."""
    causal = torch.ones(length, length, dtype=torch.bool).tril()
    return torch.cat([causal] + [torch.eye(length, dtype=torch.bool)] * depth, 1)


def _run_layer(layer, wide, rope, rows, mask, before):
    return layer(wide, rope, rows, mask, before)


def _run_mixer(mixer, wide):
    return mixer(wide)


def _run_fusion(draft, wide, embedded):
    return draft.fuse(wide, embedded)


class DemoModel(nn.Module):
    def __init__(self, config: NetworkConfig):
        super().__init__()
        self.config = config
        self.model = Trunk(config)
        self.lm_head = linear(config.hidden_size, config.vocab_size, 0.02)
        self.mtp = Draft(config)
        self._compiled: dict[str, Callable] = {}

    def compile_blocks(self):
        """Compile one layer at a time: a graph per kind of layer and shape, shared by all layers of that kind."""
        torch._dynamo.config.recompile_limit = 32
        self._compiled = {
            "layer": torch.compile(_run_layer, dynamic=False),
            "mix": torch.compile(_run_mixer, dynamic=False),
            "fuse": torch.compile(_run_fusion, dynamic=False),
        }

    def _block(self, kind: str, block: Callable) -> Callable:
        """The compiled form while training; evaluation has other shapes and needs no graphs of its own."""
        return self._compiled.get(kind, block) if torch.is_grad_enabled() else block

    def _layer(self, layer, wide, rope, rows=None, mask=None, before=None):
        return self._block("layer", _run_layer)(layer, wide, rope, rows, mask, before)

    def _mix(self, mixer, wide):
        return self._block("mix", _run_mixer)(mixer, wide)

    def embed(self, ids):
        return F.embedding(ids, self.model.embed_tokens.weight)

    def rope(self, length: int, first: int = 0):
        return rotary_table(torch.arange(first, first + length), self.config)

    def trunk(self, ids, masks=None):
        """ids [B,T] -> mixed hidden [B,T,H], wide hidden, balance loss, chosen experts of each layer.

        `masks(attention, input, rope)` may give a sparse attention mask; it is asked outside any compiled block.
        """
        wide = self.embed(ids).repeat(1, 1, self.config.streams)
        rope, balance, routes = self.rope(ids.shape[1]), 0.0, []
        for layer in self.model.layers:
            rows = layer.ple.ple_embedding(ids) if layer.ple is not None else None
            mask = None
            if masks is not None and layer.attention:
                mask = masks(layer.self_attn, layer.attn_hyper_connection(wide)[0], rope)
            wide, part, chosen, _ = self._layer(layer, wide, rope, rows, mask)
            balance = balance + part
            routes.append(chosen)
        return self._mix(self.model.hyper_connection_mixer, wide), wide, balance, routes

    def draft(self, wide, next_ids, depth: int = 0, before=None, masks=None):
        """Draft hiddens of all pairs (wide[i], next_ids[i]); at depth d the chain's earlier keys come in `before`."""
        layer, length = self.mtp.layers[0], wide.shape[1]
        fused = self._block("fuse", _run_fusion)(self.mtp, wide, self.embed(next_ids))
        rope = self.rope(length, first=depth)
        mask = draft_mask(length, depth) if before is not None else None
        if masks is not None and before is None:
            mask = masks(layer.self_attn, layer.attn_hyper_connection(fused)[0], rope)
        own, balance, _, pair = self._layer(layer, fused, rope, mask=mask, before=before)
        if before is not None:
            pair = (torch.cat([before[0], pair[0]], 2), torch.cat([before[1], pair[1]], 2))
        return self._mix(self.mtp.hyper_connection_mixer, own), own, balance, pair

    def loss(self, ids, weights, draft_steps: int = 0):
        """ids and weights [B,T+3]; weights[b,i] counts token i as a target. -> sums of the losses, balance loss."""
        length = ids.shape[1] - 3
        hidden, wide, balance, _ = self.trunk(ids[:, :length])
        sums = [weighted_cross_entropy(hidden, self.lm_head.weight, ids[:, 1 : length + 1], weights[:, 1 : length + 1])]
        before = None
        for step in range(draft_steps):
            shift = step + 2
            hidden, wide, part, before = self.draft(wide, ids[:, step + 1 : length + step + 1], step, before)
            target = slice(shift, length + shift)
            sums.append(weighted_cross_entropy(hidden, self.lm_head.weight, ids[:, target], weights[:, target]))
            balance = balance + (part if step == 0 else 0.0)
        return sums, balance

    @torch.no_grad()
    def step(self, history, caches: list):
        """The newest token of history [B,t] -> mixed hidden [B,H] and wide hidden. One cache dict per layer."""
        wide = self.embed(history[:, -1]).repeat(1, self.config.streams)
        rope = self.rope(1, first=history.shape[1] - 1)
        for layer, cache in zip(self.model.layers, caches, strict=True):
            rows = None
            if layer.ple is not None:
                # The hash looks back ngram_size - 1 tokens, and a cut among them hides what is before it.
                rows = layer.ple.ple_embedding(history[:, -self.config.ngram_size :])[:, -1]
            wide = layer.step(wide, rope, rows, cache)
        return self.model.hyper_connection_mixer(wide), wide
