"""Models from disk: a training run (with its distilled indexer, if there is one) or an exported folder of either layout."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from network import DemoModel, NetworkConfig
from safetensors.torch import load_file

TRUNK_PREFIX = "model.language_model."
BLOCK = 128


def load_checkpoint(run: Path) -> DemoModel:
    state = torch.load(run / "checkpoint.pt", weights_only=True)
    model = DemoModel(NetworkConfig(**state["config"]))
    model.load_state_dict(state["model"])
    if (run / "indexer.pt").exists():
        model.load_state_dict(torch.load(run / "indexer.pt", weights_only=True), strict=False)
    return model.eval()


def spread_scale(scale: torch.Tensor, shape: torch.Size) -> torch.Tensor:
    """One scale per 128 x 128 block -> one per value of a matrix of this shape."""
    full = scale.float().repeat_interleave(BLOCK, 0).repeat_interleave(BLOCK, 1)
    return full[: shape[0], : shape[1]]


def read_tensors(folder: Path) -> dict[str, torch.Tensor]:
    index = json.loads((folder / "model.safetensors.index.json").read_text(encoding="utf-8"))
    tensors = {}
    for file in sorted(set(index["weight_map"].values())):
        tensors.update(load_file(folder / file))
    return tensors


def _widened(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The values that the stored tensors stand for, in float32, under their own names."""
    wide = {}
    for name, value in tensors.items():
        if name.endswith(("weight_scale_inv", "weight_scale")):
            continue
        if not value.is_floating_point():
            wide[name] = value
        elif f"{name}_scale_inv" in tensors:
            wide[name] = value.float() * spread_scale(tensors[f"{name}_scale_inv"], value.shape)
        elif value.dtype == torch.float8_e4m3fn:
            table = name[: name.index("shard_")] + "weight_scale"
            wide[name] = value.float() * tensors[table].float()
        else:
            wide[name] = value.float()
    return wide


def _rejoined(wide: dict[str, torch.Tensor], config: NetworkConfig) -> dict[str, torch.Tensor]:
    """Shards of the n-gram table and single experts put together again, under the names of the network."""
    state: dict[str, torch.Tensor] = {}
    shards: dict[str, dict[int, torch.Tensor]] = {}
    experts: dict[str, dict[tuple[int, str], torch.Tensor]] = {}
    for published, value in wide.items():
        name = published.replace(TRUNK_PREFIX, "model.", 1)
        if ".shard_" in name:
            base, number = name.removesuffix(".weight").rsplit(".shard_", 1)
            shards.setdefault(f"{base}.weight", {})[int(number)] = value
        elif ".experts." in name and name.endswith(".weight"):
            base, rest = name.split(".experts.")
            number, part, _ = rest.split(".")
            experts.setdefault(f"{base}.experts", {})[int(number), part] = value
        else:
            state[name] = value
    for name, parts in shards.items():
        state[name] = torch.cat([parts[i] for i in range(len(parts))])
    for base, parts in experts.items():
        numbers = range(config.num_experts)
        state[f"{base}.gate_up_proj"] = torch.stack(
            [torch.cat([parts[e, "gate_proj"], parts[e, "up_proj"]]) for e in numbers]
        )
        state[f"{base}.down_proj"] = torch.stack([parts[e, "down_proj"] for e in numbers])
    return state


def load_export(folder: Path, config: NetworkConfig | None = None) -> DemoModel:
    """Every tensor must find its place and every parameter its tensor."""
    config = config or NetworkConfig()
    model = DemoModel(config)
    model.load_state_dict(_rejoined(_widened(read_tensors(folder)), config))
    return model.eval()
