"""The benchmark scripts on tiny models: they run, judge, fail where they should, and leave nothing behind."""

import importlib
import json
import subprocess
import sys
from math import prod
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def run(script, *arguments):
    command = [sys.executable, str(BENCHMARKS / script), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)


@pytest.fixture
def script(monkeypatch):
    """A script of the folder as a module, by name."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module


@pytest.mark.parametrize(
    ("form", "count", "n_bytes"), [("bf16", 1658, 359_999_963_128), ("fp8", 152_089, 185_502_232_570)]
)
def test_the_published_releases_have_their_published_totals(script, form, count, n_bytes):
    files = script("checkpoint_files")
    tensors = files.tensors_of(files.PUBLISHED, form)
    assert len(tensors) == count
    assert sum(prod(shape) * files.ITEM_BYTES[dtype] for dtype, shape in tensors.values()) == n_bytes


def test_the_experts_of_the_synthetic_checkpoint_take_eight_gibibytes(script):
    kinds = script("checkpoint_files").tensors_of(script("synthetic_checkpoint").SIZES, "fp8").values()
    experts = sum(prod(shape) for dtype, shape in kinds if dtype == "F8_E4M3" and 512 in shape)
    assert 8 << 30 <= experts < (8 << 30) * 1.01


@pytest.mark.slow
def test_full_size_passes_on_tiny_releases_and_removes_them(tmp_path):
    done = run("full_size.py", tmp_path, "--tiny", "--shards", 5, "--expert-cache", "4 MiB", "--distinct", 60)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "MISSED" not in done.stdout
    assert not list(tmp_path.iterdir())


def test_full_size_exits_with_1_when_a_target_is_missed(tmp_path):
    done = run("full_size.py", tmp_path, "--tiny", "--format", "bf16", "--expert-cache", "4 MiB", "--distinct", 129)
    assert done.returncode == 1
    assert done.stdout.count("MISSED") == 1
    assert not list(tmp_path.iterdir())


def test_full_size_refuses_prompts_without_enough_rows(tmp_path):
    done = run("full_size.py", tmp_path, "--tiny", "--prompt-tokens", 1)
    assert done.returncode == 2
    assert "--prompt-tokens takes 2 to 32" in done.stderr


@pytest.mark.slow
def test_offload_synthetic_passes_on_a_tiny_model_and_uses_a_kept_checkpoint_again(tmp_path):
    tiny = [
        "--tiny",
        "--expert-cache",
        1,
        "--tokens",
        4,
        "--prompts",
        4,
        32,
        "--repeats",
        1,
        "--step",
        16,
        "--shards",
        2,
    ]
    first = run("offload_synthetic.py", tmp_path, *tiny, "--keep")
    assert first.returncode == 0, first.stdout + first.stderr
    stamp = json.loads((tmp_path / "synthetic-fp8" / "written.json").read_text())
    assert stamp["seed"] == 0
    second = run("offload_synthetic.py", tmp_path, *tiny)
    assert second.returncode == 0, second.stdout + second.stderr
    assert "already holds the checkpoint" in second.stdout
    assert not list(tmp_path.iterdir())


def test_a_model_with_room_differs_in_its_longest_context_alone(script):
    model = Path(__file__).parent / "fixtures" / "fp8-1"
    own = json.loads((model / "config.json").read_text())
    with script("measuring").with_room(model, 1 << 20) as folder:
        config = json.loads(Path(folder, "config.json").read_text())
        assert {p.name for p in Path(folder).iterdir()} == {p.name for p in model.iterdir() if p.is_file()}
    assert config["text_config"].pop("max_position_embeddings") == 1 << 20
    own["text_config"].pop("max_position_embeddings")
    assert config == own
    assert not Path(folder).exists()


def test_turns_of_the_arms_add_up_to_pairs_and_nothing_is_left_out(script):
    pairs = script("mtp_pairs")
    turns = [{name: (1.0 + i, 32) for i, name in enumerate(pairs.ARMS)} for _ in range(5)]
    made = pairs.paired(iter(turns))
    assert [p["off"] for p in made] == [(2.0, 64), (3.0, 96)]
    assert pairs.speed(made, "auto", "off").median == 0.5
