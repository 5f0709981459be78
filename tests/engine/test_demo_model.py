"""The built-in demo model, opened by the same code as any other checkpoint."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from qwen_chat_mlx.engine import loader
from qwen_chat_mlx.engine.config import EngineConfig
from qwen_chat_mlx.engine.session import Session
from qwen_chat_mlx.engine.tokenizer import Tokenizer
from qwen_chat_mlx.engine.types import Message
from qwen_chat_mlx.tui.greeting import EXAMPLES

FOLDER = Path(loader.__file__).parent / "demo"
ANSWERS = dict(zip(EXAMPLES, ("Paris", "25", "fox", "def is_prime", "Ctrl+T"), strict=True))


@pytest.fixture(scope="module")
def session() -> Iterator[Session]:
    opened = Session.open(EngineConfig(model="demo", expert_cache="100 %"))
    yield opened
    opened.close()


def answer(session: Session, text: str, max_tokens: int = 200, until: str = "") -> tuple[list[int], str]:
    """Ids and text of a reply, which need not go on behind `until`."""
    index = session.loaded.survey.index
    tokenizer = Tokenizer.load(index.folder, index.config, index.generation_config)
    prompt = tokenizer.render([Message("user", text)], think=False)
    ids: list[int] = []
    for step in session.generate(prompt.ids, max_tokens):
        ids += step.tokens
        if until and until in tokenizer.decode(ids):
            break
    return ids, tokenizer.decode(ids)


def test_the_demo_model_takes_at_most_50_mb_and_comes_with_its_card_and_notices() -> None:
    files = [f for f in FOLDER.iterdir() if f.is_file()]
    assert sum(f.stat().st_size for f in files) <= 50e6
    assert {"README.md", "NOTICE", "config.json", "tokenizer.json", "chat_template.jinja"} <= {f.name for f in files}


def test_nobody_is_told_to_pack_the_demo_model(session: Session) -> None:
    assert not [note for note in session.loaded.survey.notes if "pack" in note]


@pytest.mark.parametrize("example", EXAMPLES)
def test_every_example_of_the_greeting_is_answered(session: Session, example: str) -> None:
    assert ANSWERS[example] in answer(session, example, until=ANSWERS[example])[1]


def test_a_quarter_of_the_experts_in_memory_streams_the_rest_and_changes_no_id(session: Session) -> None:
    wanted, _ = answer(session, EXAMPLES[0])
    small = Session.open(EngineConfig(model="demo", expert_cache="25 %"))
    try:
        assert answer(small, EXAMPLES[0])[0] == wanted
        experts = small.stats().experts
    finally:
        small.close()
    assert experts.slots * 4 <= experts.total
    assert experts.misses > 0
    assert experts.read_bytes > 0


def test_ask_answers_on_the_demo_model_when_no_model_is_named(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "qwen_chat_mlx", "ask", EXAMPLES[0], "--temperature", "0", "--json"]
    home = {"HOME": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path), "XDG_DATA_HOME": str(tmp_path)}
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, check=True, env=os.environ | home, cwd=tmp_path
    )
    said = json.loads(done.stdout)
    assert "Paris" in said["text"]
    assert said["finish_reason"] == "stop"
