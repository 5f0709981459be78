"""Does transformers read the BF16 export, and do its logits equal ours?  python parity.py DATA FOLDER

Also checks that the draft layer's tensors are exactly the published names. Needs transformers 5.24 or newer.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch
from batches import DOMAINS, Documents
from checkpoints import load_export, read_tensors
from transformers.models.qwen4_exp import Qwen4ExpTextConfig
from transformers.models.qwen4_exp.modeling_qwen4_exp import Qwen4ExpForCausalLM

LENGTH = 192


def load_reference(folder: Path) -> tuple[Qwen4ExpForCausalLM, list[str]]:
    """transformers' own model in float32, filled from the folder; -> it and the names it did not take."""
    fields = json.loads((folder / "config.json").read_text(encoding="utf-8"))["text_config"]
    reference = Qwen4ExpForCausalLM(Qwen4ExpTextConfig(**fields)).float().eval()
    ours = load_export(folder).state_dict()
    trunk = {n: v for n, v in ours.items() if not n.startswith("mtp.")}
    missing, unexpected = reference.load_state_dict(trunk, strict=False)
    return reference, [*missing, *unexpected]


@torch.no_grad()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("folder", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(1)
    reference, lost = load_reference(args.folder)
    print("names that did not match:", lost)
    loaded, info = Qwen4ExpForCausalLM.from_pretrained(args.folder, dtype=torch.float32, output_loading_info=True)
    print("from_pretrained:", {k: sorted(v)[:5] for k, v in info.items() if v})
    model, worst, agreed, count = load_export(args.folder), 0.0, 0, 0
    for domain in DOMAINS:
        (ids, _) = Documents.load(args.data, domain, "held").rows(LENGTH, 1)[0]
        row = torch.from_numpy(ids)[None]
        hidden, *_ = model.trunk(row)
        ours = hidden @ model.lm_head.weight.t()
        for theirs in (reference(row, use_cache=False).logits, loaded.eval()(row, use_cache=False).logits):
            worst = max(worst, (ours - theirs).abs().max().item())
            agreed += (ours.argmax(-1) == theirs.argmax(-1)).sum().item()
            count += row.numel()
    print(f"largest difference of logits {worst:.2e}, same argmax {agreed}/{count}")
    draft = sorted(n for n in read_tensors(args.folder) if n.startswith("mtp."))
    print(f"{len(draft)} draft tensors:", *draft, sep="\n  ")


if __name__ == "__main__":
    main()
