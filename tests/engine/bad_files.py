"""What the tests of damaged checkpoint files share: writing them, and what every refusal has to be."""

import json

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from qwen_chat_mlx.engine.checkpoint.index import open_checkpoint
from qwen_chat_mlx.engine.errors import CheckpointError

many = settings(max_examples=60, deadline=20_000, suppress_health_check=[HealthCheck.function_scoped_fixture])

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


def write_raw(path, header, data):
    """A safetensors file of these bytes; the header is JSON to be or raw bytes."""
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(len(raw).to_bytes(8, "little") + raw + data)


def refused(folder):
    """The error that opening the folder ends with: one line, fit for any terminal, with a way out."""
    with pytest.raises(CheckpointError) as caught:
        open_checkpoint(folder)
    message = str(caught.value)
    message.encode()
    assert "\n" not in message
    assert "\x1b" not in message
    assert caught.value.hint
    return caught.value
