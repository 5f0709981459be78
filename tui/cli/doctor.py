"""Show what this machine has, what a model needs on it, and the speed to expect, with the arithmetic."""

from __future__ import annotations

import argparse

from ._flags import add_model_flags, load_settings

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ...engine.bench.doctor import Diagnosis, Here

_NAME_ONE = "What another model needs: qwen-chat doctor --model PATH, where PATH is its folder, or org/name in the Hugging Face cache."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_model_flags(parser)
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--no-disk", action="store_true", help="do not measure the disk")


def run(args: argparse.Namespace) -> int:
    from ...engine.bench.doctor import diagnose, has_demo

    loaded = load_settings(args)
    unnamed = loaded.origins["model.path"] == "default"
    if unnamed and not has_demo():
        return _machine_alone(args)
    found = diagnose(loaded.engine, disk=not args.no_disk)
    if args.json:
        import json
        from dataclasses import asdict

        print(json.dumps({**asdict(found), "planned_bytes": found.plan.total_bytes}, indent=2))
        return 0
    _show(found)
    if unnamed:
        _print(f"This is the built-in demo model. {_NAME_ONE}")
    return 0


def _machine_alone(args: argparse.Namespace) -> int:
    from ...engine.bench.doctor import look_around

    here = look_around()
    if args.json:
        import json
        from dataclasses import asdict

        print(json.dumps({**asdict(here), "model": None}, indent=2))
        return 0
    _print(_machine(here))
    _print(f"No model is named, and this installation has no built-in one. {_NAME_ONE}")
    return 0


def _print(text: str) -> None:
    import sys

    from ..text.folding import folded

    print(folded(text, sys.stdout))


def _machine(here: Here) -> str:
    from ...engine.plan import size_text

    return (
        f"{here.system}, {here.cores} cores, {size_text(here.memory_bytes)} memory, of which "
        f"{size_text(here.limit_bytes)} may be used"
    )


def _show(d: Diagnosis) -> None:
    from rich.table import Table

    from ...engine.plan import size_text
    from ..text.sanitise import one_line
    from ._console import TableConsole

    _print(_machine(d))
    _print(
        f"{one_line(d.model, 2000)}: {d.layers} layers x {d.experts_a_layer} experts, {d.top_k} a token, "
        f"{size_text(d.expert_bytes)} each, {size_text(d.expert_total_bytes)} in all; computing in {d.dtype}; "
        + ("has an MTP layer" if d.has_mtp else "has no MTP layer")
    )
    table = Table("memory", "bytes", "", box=None)
    for name, n in d.plan.terms:
        table.add_row(name, f"{n:,}", size_text(n))
    table.add_row("planned", f"{d.plan.total_bytes:,}", size_text(d.plan.total_bytes))
    table.add_row("available", f"{d.plan.limit_bytes:,}", size_text(d.plan.limit_bytes))
    TableConsole().print(table)
    share = d.plan.slots / max(1, d.layers * d.experts_a_layer)
    _print(
        f"context {d.plan.context:,} tokens; {d.plan.slots:,} expert slots ({share:.0%} of the experts); "
        f"{d.plan.draft_slots:,} for the draft layer; {d.plan.layer_buffers} layer buffers for prompts"
    )
    for note in d.notes:
        _print(one_line(note, 2000))
    if d.disk is not None and d.expected is not None:
        _show_disk(d)


def _show_disk(d: Diagnosis) -> None:
    e, disk = d.expected, d.disk
    assert e is not None
    assert disk is not None
    how = "past the page cache" if disk.direct_io else "through the page cache"
    _print(
        f"disk: one expert in {disk.alone_s * 1000:.2f} ms, {disk.together_bytes_a_s / 1e9:.2f} GB/s together ({how})"
    )
    if e.tokens_a_s is None:
        _print("all experts fit in memory: the disk does not limit the speed")
        return
    _print(
        f"expected: {d.layers * d.top_k} experts a token, {e.hit_rate:.0%} of them in the slots "
        f"({e.cycles:.2f} token cycles), {e.misses_a_token:.0f} x {d.expert_bytes:,} bytes at "
        f"{disk.together_bytes_a_s / 1e9:.2f} GB/s = {e.disk_s_a_token * 1000:.0f} ms: at most {e.tokens_a_s:.1f} tok/s "
        "without drafting, computing not counted"
    )
