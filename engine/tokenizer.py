"""A checkpoint's tokenizer and chat template, from its files to one object. Knows no model, no MLX.

`tokenizers` and `jinja2` are imported at the first use.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .checkpoint.header import DAMAGED, parse_json, unreadable
from .codec import Codec
from .errors import CheckpointError
from .prompt import Prompt, PromptWriter, raw_prompt
from .template import ChatTemplate
from .types import Message

if TYPE_CHECKING:
    import tokenizers

__all__ = ["Prompt", "Tokenizer"]


class Tokenizer(Codec):
    """Ids, text and prompts of one checkpoint. Not for use by two threads at a time."""

    fingerprint: str
    """Changes whenever tokenizer.json does; ids of another fingerprint mean something else."""
    stop_ids: frozenset[int]
    """Ids that end a reply: generation_config's eos_token_id and the tokenizer's eos_token."""
    model_vocab_size: int
    """Rows of the model's embedding; ids from `vocab_size` to here exist for the model only."""

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        fingerprint: str,
        model_vocab_size: int,
        stop_ids: Iterable[int],
        template: str | None,
        template_constants: dict[str, str],
    ) -> None:
        super().__init__(backend)
        self.fingerprint, self.model_vocab_size = fingerprint, model_vocab_size
        self.stop_ids = frozenset(stop_ids)
        self._template = ChatTemplate(template) if template is not None else None
        self._writer = PromptWriter(
            self, self._template, template_constants, fingerprint, self.stop_ids, model_vocab_size
        )

    @classmethod
    def load(cls, folder: Path | str, config: dict[str, Any], generation_config: dict[str, Any]) -> Tokenizer:
        """Read tokenizer.json, tokenizer_config.json and chat_template.jinja. Raises CheckpointError.

        `config` is the model's config.json (for the vocabulary's size). A missing template is no error until `render`.
        """
        folder = Path(folder)
        backend, fingerprint = _read_backend(folder / "tokenizer.json")
        settings = _read_json(folder / "tokenizer_config.json") if (folder / "tokenizer_config.json").exists() else {}
        model_vocab = (config.get("text_config") or config).get("vocab_size")
        highest = max(backend.get_vocab(with_added_tokens=True).values(), default=-1)
        if not isinstance(model_vocab, int):
            model_vocab = highest + 1
        if highest >= model_vocab:
            raise CheckpointError(
                f"{folder / 'tokenizer.json'} has token ids up to {highest:,}, but the model has only {model_vocab:,}.",
                "Tokenizer and weights are of different models.",
                path=str(folder / "tokenizer.json"),
            )
        constants = {k: t for k, v in settings.items() if k.endswith("_token") and (t := _token_text(v)) is not None}
        stops = _stop_ids(generation_config.get("eos_token_id"), model_vocab)
        eos = backend.token_to_id(constants["eos_token"]) if "eos_token" in constants else None
        if eos is not None:
            stops.append(eos)
        return cls(backend, fingerprint, model_vocab, stops, _find_template(folder, settings), constants)

    @property
    def has_template(self) -> bool:
        return self._template is not None

    @cached_property
    def supports_thinking(self) -> bool:
        """The template knows thinking: it can be told to, or it renders think blocks."""
        source = self._template.source if self._template else ""
        return any(word in source for word in ("enable_thinking", "<think>", "reasoning_content"))

    def raw(self, text: str) -> Prompt:
        """A text as the prompt, without a template; special tokens written in it are special tokens."""
        return raw_prompt(self, text)

    def render(
        self,
        messages: Sequence[Message],
        think: bool | None = None,
        continue_last: bool = False,
        options: Sequence[tuple[str, str]] = (),
    ) -> Prompt:
        """The prompt of a conversation; see `PromptWriter.render`."""
        return self._writer.render(messages, think, continue_last, options)


def _read_json(path: Path) -> dict[str, Any]:
    try:
        raw = path.read_bytes()
    except OSError as e:
        raise unreadable(path, e) from None
    return parse_json(raw, str(path), "the file")


def _read_backend(path: Path) -> tuple[tokenizers.Tokenizer, str]:
    """The tokenizer of a tokenizer.json, truncation and padding off, and the file's fingerprint."""
    import tokenizers

    try:
        raw = path.read_bytes()
    except FileNotFoundError:
        raise CheckpointError(
            f"{path} is missing.",
            "A model folder needs its tokenizer.json; download the complete folder.",
            path=str(path),
        ) from None
    except OSError as e:
        raise unreadable(path, e) from None
    try:
        backend = tokenizers.Tokenizer.from_str(raw.decode("utf-8"))
    except UnicodeDecodeError:
        raise CheckpointError(f"{path} is not UTF-8 text.", DAMAGED, path=str(path)) from None
    except Exception as e:  # noqa: BLE001  tokenizers raises bare Exception
        raise CheckpointError(f"{path} is not a usable tokenizer: {e}.", "Download it again.", path=str(path)) from None
    backend.no_truncation()
    backend.no_padding()
    decoder = type(backend.decoder).__name__ if backend.decoder is not None else "none"
    if decoder != "ByteLevel":
        raise CheckpointError(
            f"{path} is not a byte-level BPE tokenizer (its decoder is {decoder}).",
            "Only models with byte-level BPE, such as the Qwen family, can be used.",
            path=str(path),
        )
    return backend, hashlib.sha256(raw).hexdigest()[:32]


def _find_template(folder: Path, settings: dict[str, Any]) -> str | None:
    """chat_template.jinja, else `chat_template` in tokenizer_config.json: one text, or a list of named ones."""
    path = folder / "chat_template.jinja"
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        pass
    except OSError as e:
        raise unreadable(path, e) from None
    except UnicodeDecodeError:
        raise CheckpointError(f"{path} is not UTF-8 text.", DAMAGED, path=str(path)) from None
    found = settings.get("chat_template")
    if isinstance(found, list):
        named = {t.get("name"): t.get("template") for t in found if isinstance(t, dict)}
        found = named.get("default", next(iter(named.values()), None))
    if found is not None and not isinstance(found, str):
        path = folder / "tokenizer_config.json"
        message = f"{path}: chat_template is neither a text nor a list of named texts."
        raise CheckpointError(message, DAMAGED, path=str(path))
    return found


def _token_text(value: Any) -> str | None:
    """A special token of tokenizer_config.json: a text, or an object with `content`."""
    text = value.get("content") if isinstance(value, dict) else value
    return text if isinstance(text, str) else None


def _stop_ids(eos: Any, vocab_size: int) -> list[int]:
    ids = eos if isinstance(eos, list) else [] if eos is None else [eos]
    for i in ids:
        if isinstance(i, bool) or not isinstance(i, int) or not 0 <= i < vocab_size:
            message = (
                f"generation_config.json: eos_token_id {i!r} is no token id of this model (0 to {vocab_size - 1:,})."
            )
            raise CheckpointError(message, DAMAGED, path="generation_config.json")
    return list(ids)
