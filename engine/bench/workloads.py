"""Texts that a benchmark continues: two bundled ones and files of the user, cut to an exact number of tokens.

Knows tokenizers, no engine: a prompt leaves here as text, as a chat's would.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ..checkpoint.folder import find_model
from ..checkpoint.index import open_checkpoint
from ..codec import Codec
from ..errors import UsageError
from ..tokenizer import Tokenizer

__all__ = ["BUNDLED", "Workload", "conversations", "cut", "load_workload", "prompt_for"]

BUNDLED = ("code", "novel")
_STARTS_TRIED = 1000


@dataclass(frozen=True, slots=True)
class Workload:
    """A text and what it is called in reports."""

    name: str
    text: str


def load_workload(name: str) -> Workload:
    """A bundled text by name, or the UTF-8 text file at that path. Raises UsageError."""
    path = Path(__file__).parent / "corpora" / f"{name}.txt" if name in BUNDLED else Path(name).expanduser()
    try:
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise UsageError(
            f"There is no workload {name!r}.", f"Use {' or '.join(BUNDLED)}, or the path of a text file."
        ) from None
    except UnicodeDecodeError:
        raise UsageError(f"{path} is not UTF-8 text.", "Convert it first, for example with iconv.") from None
    except OSError as e:
        raise UsageError(
            f"{path} cannot be read: {e.strerror or e}.", f"Use {' or '.join(BUNDLED)}, or the path of a text file."
        ) from None
    return Workload(name if name in BUNDLED else path.name, text)


def conversations() -> list[list[str]]:
    """The user's messages of the bundled conversations."""
    text = (Path(__file__).parent / "corpora" / "chat.txt").read_text(encoding="utf-8")
    return [part.splitlines() for part in text.strip().split("\n\n")]


def prompt_for(workload: Workload, model: str, tokens: int) -> str:
    """A stretch of the workload that is exactly `tokens` tokens for the model a setting names.

    Raises UsageError when the text is too short, CheckpointError for a model that cannot be opened.
    """
    index = open_checkpoint(find_model(model))
    return cut(Tokenizer.load(index.folder, index.config, index.generation_config), workload, tokens)


def cut(codec: Codec, workload: Workload, tokens: int) -> str:
    """The first stretch of exactly `tokens` tokens that is still those tokens when it is encoded by itself."""
    ids = codec.encode(workload.text)
    if len(ids) < tokens:
        raise UsageError(
            f"The text {workload.name!r} has {len(ids):,} tokens for this model; a prompt of {tokens:,} was asked for.",
            f"Use --prompt-tokens {len(ids)} or fewer, or a longer text with --workload FILE." if ids else "",
        )
    for start in range(min(_STARTS_TRIED, len(ids) - tokens + 1)):
        wanted = ids[start : start + tokens]
        text = codec.decode(wanted)
        if codec.encode(text) == wanted:
            return text
    raise UsageError(
        f"The text {workload.name!r} cannot be cut to exactly {tokens:,} tokens of this model.",
        "Ask for a few tokens more or fewer.",
    )
