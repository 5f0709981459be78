"""What a benchmark asks for: texts to continue, two bundled ones and files of the user, cut to an exact number of tokens,
and bundled conversations.

Knows tokenizers, no engine: a prompt leaves here as text, as a chat's would.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from ..checkpoint.folder import find_model
from ..checkpoint.index import open_checkpoint
from ..codec import Codec
from ..errors import UsageError
from ..tokenizer import Tokenizer

__all__ = ["BUNDLED", "CHAT", "Workload", "cut", "load_workload", "prompt_for"]

BUNDLED = ("code", "novel")
CHAT = "chat"
_STARTS_TRIED = 1000
_MOST_BYTES = 64 << 20
_CHARACTERS_A_TOKEN = 16
"""More than most texts have; where one has more yet, a longer stretch of it is encoded."""


@dataclass(frozen=True, slots=True)
class Workload:
    """A text and what it is called in reports."""

    name: str
    """As it was asked for: a file never goes by the name of another or of what is bundled."""
    text: str
    conversations: tuple[tuple[str, ...], ...] = ()
    """The user's messages of conversations, where these are held instead of a text continued."""


def load_workload(name: str) -> Workload:
    """What is bundled under a name, or the UTF-8 text file at that path. Raises UsageError."""
    bundled = name in (*BUNDLED, CHAT)
    path = Path(__file__).parent / "corpora" / f"{name}.txt" if bundled else Path(os.path.expanduser(name))
    try:
        with open(path, "rb") as file:
            raw = file.read(_MOST_BYTES + 1)
        if len(raw) > _MOST_BYTES:
            raise UsageError(f"{path} has more than {_MOST_BYTES >> 20} MiB.", "Give a part of it.")
        text = raw.decode("utf-8-sig").replace("\r\n", "\n").replace("\r", "\n")
    except FileNotFoundError:
        raise UsageError(
            f"There is no workload {name!r}.", f"Use {', '.join(BUNDLED)} or {CHAT}, or the path of a text file."
        ) from None
    except UnicodeDecodeError:
        raise UsageError(f"{path} is not UTF-8 text.", "Convert it first, for example with iconv.") from None
    except OSError as e:
        raise UsageError(
            f"{path} cannot be read: {e.strerror or e}.",
            f"Use {', '.join(BUNDLED)} or {CHAT}, or the path of a text file.",
        ) from None
    if name == CHAT:
        return Workload(name, "", tuple(tuple(part.splitlines()) for part in text.strip().split("\n\n")))
    return Workload(name, text)


def prompt_for(workload: Workload, model: str, tokens: int) -> str:
    """A stretch of the workload that is exactly `tokens` tokens for the model a setting names.

    Raises UsageError when the text is too short, CheckpointError for a model that cannot be opened.
    """
    index = open_checkpoint(find_model(model))
    return cut(Tokenizer.load(index.folder, index.config, index.generation_config), workload, tokens)


def cut(codec: Codec, workload: Workload, tokens: int) -> str:
    """The first stretch of exactly `tokens` tokens that is still those tokens when it is encoded by itself."""
    ids = _encoded(codec, workload.text, tokens + _STARTS_TRIED)
    if len(ids) < tokens:
        raise UsageError(
            f"The text {workload.name!r} has {len(ids):,} tokens for this model; a prompt of {tokens:,} was asked for.",
            "Lower --prompt-tokens, or give a longer text with --workload FILE.",
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


def _encoded(codec: Codec, text: str, least: int) -> list[int]:
    """The tokens of a text's beginning, at least so many; of all of it where it has fewer."""
    end = least * _CHARACTERS_A_TOKEN
    while len(ids := codec.encode(text[:end])) < least and end < len(text):
        end *= 4
    return ids
