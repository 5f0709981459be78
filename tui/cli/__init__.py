"""The command `qwen-chat`: finds the verb, runs it, and turns every expected error into one sentence and an exit code.

A verb is a file in this folder whose name has no leading underscore. Its docstring's first line is its summary; it defines
`add_arguments(parser)` and `run(args) -> int` and imports nothing heavy at the top, so that `--help` stays instant.
This module knows no verb but the default one, and imports only the one that runs.
"""

from __future__ import annotations

import errno
import io
import os
import sys

TYPE_CHECKING = False  # typing and collections are a noticeable part of what `--version` costs
if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Sequence
    from types import ModuleType

__all__ = ["main", "summary", "verbs"]

DEFAULT_VERB = "chat"
_FOLDER = os.path.dirname(__file__)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line. Exit codes: 0 fine, 2 usage or config, 1 anything else, 130 after Ctrl+C."""
    if sys.stdout is None:  # closed by the caller (>&-): nothing to write to, but nothing to stumble over either
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a name that the terminal cannot show must not end anything
    code = _guarded(list(sys.argv[1:] if argv is None else argv))
    try:
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:
                stream.flush()
    except BrokenPipeError:
        _drop_stdout()
    return code


def _guarded(argv: list[str]) -> int:
    try:
        return _dispatch(argv)
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        _drop_stdout()
        return 0
    except SystemExit as e:
        return e.code if isinstance(e.code, int) else 0 if e.code is None else 1
    except Exception as e:
        from ...engine.errors import QwenChatError

        if not isinstance(e, (QwenChatError, OSError)):
            raise
        say(_failed(e) if isinstance(e, OSError) and e.strerror else str(e))
        return e.exit_code if isinstance(e, QwenChatError) else 1


def _failed(e: OSError) -> str:
    where = f"{e.filename} cannot be read or written" if e.filename else "Reading or writing failed"
    hint = " Make room, or write somewhere else." if e.errno in (errno.ENOSPC, errno.EDQUOT) else ""
    return f"{where}: {e.strerror}.{hint}"


def _dispatch(argv: list[str]) -> int:
    known = verbs()
    first = argv[0] if argv else ""
    if first in ("--version", "-V"):
        from ... import __version__

        print(f"qwen-chat {__version__}")
        return 0
    if first in ("--help", "-h", "help"):
        print(_overview(known))
        return 0
    verb, rest = (first, argv[1:]) if first in known else (DEFAULT_VERB, argv)
    if verb == DEFAULT_VERB and first != DEFAULT_VERB:
        _refuse_misspelt(first, known)
    module = _load(verb)

    def parsed() -> Namespace:
        return _parsed(module, verb, rest, known if verb != first else [])

    if hasattr(module, "before_parsing"):
        code = module.before_parsing(rest, parsed)
        if code is not None:
            return code
    args = parsed()
    refuse_platform()
    return module.run(args)


def _parsed(module: ModuleType, verb: str, rest: list[str], known: list[str]) -> Namespace:
    """The flags and words of one verb. `known` are the verbs that may have been meant, where none was named first."""
    from ._flags import Parser

    parser = Parser(prog=f"qwen-chat {verb}", description=summary(verb))
    module.add_arguments(parser)
    try:
        args = parser.parse_args(rest)
    except Exception as e:
        from ...engine.errors import UsageError

        meant = next((word for word in rest if word in known), None)
        if meant is None or not isinstance(e, UsageError):
            raise
        raise UsageError(e.message, f"If {meant} is the verb, it comes first: qwen-chat {meant} [options]") from None
    if known and args.prompt and args.prompt[0] in known:
        from ...engine.errors import UsageError

        raise UsageError("The verb comes first.", f"Write it as: qwen-chat {args.prompt[0]} [options]")
    return args


def verbs() -> list[str]:
    """Names of all verbs: the files of this folder."""
    return sorted(f[:-3] for f in os.listdir(_FOLDER) if f.endswith(".py") and not f.startswith("_"))


def summary(verb: str) -> str:
    """First line of a verb's docstring, read without importing it."""
    with open(os.path.join(_FOLDER, f"{verb}.py"), encoding="utf-8") as f:
        return f.readline().strip().strip('"').strip()


def _load(verb: str) -> ModuleType:
    import importlib

    return importlib.import_module(f".{verb}", __name__)


def _overview(known: list[str]) -> str:
    lines = [
        'usage: qwen-chat [VERB] [options]      or      qwen-chat "a prompt"',
        "",
        "A terminal chat for big Qwen models on small machines.",
        "",
        "verbs (chat when none is given):",
    ]
    lines += [f"  {verb:<11} {summary(verb)}" for verb in known]
    lines += [
        "",
        "options:",
        "  --version   print the version",
        "  --help      this page; `qwen-chat VERB --help` for one verb",
    ]
    return "\n".join(lines)


def _refuse_misspelt(word: str, known: list[str]) -> None:
    """A lone word that almost is a verb is more likely a slip than a prompt."""
    if not word.isalpha() or not word.isascii():
        return
    import difflib

    near = difflib.get_close_matches(word, known, n=1, cutoff=0.75)
    if near:
        from ...engine.errors import UsageError

        raise UsageError(
            f"There is no verb {word!r}; did you mean `qwen-chat {near[0]}`?",
            f'To open the chat with it as a prompt: qwen-chat chat "{word}".',
        )


def say(message: str) -> None:
    """One line on stderr."""
    from ..text.sanitise import one_line

    if sys.stderr is not None:
        print(f"qwen-chat: {one_line(message, 2000)}", file=sys.stderr)


def refuse_platform() -> None:
    """Raise where the engine cannot run: it needs Apple silicon with macOS 14, or Linux with glibc 2.35."""
    problem = unsupported(sys.platform)
    if problem:
        from ...engine.errors import UnavailableError

        raise UnavailableError(
            problem, "qwen-chat needs Apple silicon with macOS 14 or later, or Linux with glibc 2.35 or later."
        )


def unsupported(platform: str) -> str:
    """Why this machine cannot run the engine, in one sentence; empty where it can."""
    if platform == "darwin":
        machine = os.uname().machine
        if machine != "arm64":
            return f"This Python runs as {machine}, not as Apple silicon's arm64."
        import platform as details

        version = details.mac_ver()[0]
        return f"This is macOS {version}." if _numbers(version) < (14,) else ""
    if platform == "linux":
        try:
            libc = os.confstr("CS_GNU_LIBC_VERSION") or ""
        except (OSError, ValueError):
            libc = ""
        if not libc.startswith("glibc "):
            return "This Linux does not use glibc."
        return f"This Linux has {libc}." if _numbers(libc[6:]) < (2, 35) else ""
    return f"This is {platform}."


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".") if part.isdigit())


def _drop_stdout() -> None:
    """After a broken pipe: nothing more is written, and the interpreter's own flush at exit cannot fail."""
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    except OSError:
        return
