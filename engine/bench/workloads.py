"""What a benchmark asks for: texts to continue, two bundled ones and files of the user, cut to an exact number of tokens,
and bundled conversations.

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

__all__ = ["BUNDLED", "CHAT", "Workload", "cut", "load_workload", "prompt_for"]

BUNDLED = ("code", "novel")
CHAT = "chat"
_STARTS_TRIED = 1000


@dataclass(frozen=True, slots=True)
class Workload:
    """A text and what it is called in reports."""

    name: str
    text: str
    conversations: tuple[tuple[str, ...], ...] = ()
    """The user's messages of conversations, where these are held instead of a text continued."""


def load_workload(name: str) -> Workload:
    """What is bundled under a name, or the UTF-8 text file at that path. Raises UsageError."""
    bundled = name in (*BUNDLED, CHAT)
    path = Path(__file__).parent / "corpora" / f"{name}.txt" if bundled else Path(name).expanduser()
    try:
        text = path.read_text(encoding="utf-8-sig")
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
    return Workload(name if bundled else path.name, text)


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
