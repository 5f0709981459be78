"""What every test starts from: no setting of the person who runs it, and a home that is thrown away."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

for _name in [n for n in os.environ if n.startswith("QWEN_CHAT_")]:
    del os.environ[_name]


@pytest.fixture(scope="session", autouse=True)
def _throwaway_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Whatever a test forgets to point elsewhere lands here, not in the person's own folders."""
    os.environ["QWEN_CHAT_HOME"] = str(tmp_path_factory.mktemp("qwen-chat-home"))
    yield
    os.environ.pop("QWEN_CHAT_HOME", None)
