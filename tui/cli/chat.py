"""Open the full-screen chat; a prompt given here is sent at once.

With --plain it is a conversation line by line, for screen readers and terminals that cannot draw. Importing this imports next
to nothing, because the parent process does little more.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Mapping, Sequence

    from ...engine import Emit, Engine, EngineConfig
    from ..config import Loaded

PLAIN_WORDS = ("--plain", "--help", "-h")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    from ._flags import add_model_flags, add_reply_flags

    parser.add_argument("prompt", nargs="*", help="sent as soon as the model is loaded")
    parser.add_argument(
        "--plain", action="store_true", help="line by line, without a full screen and without escape codes"
    )
    keep = parser.add_mutually_exclusive_group()
    keep.add_argument("--continue", action="store_true", dest="resume_last", help="go on with the latest conversation")
    keep.add_argument("--resume", metavar="ID", help="go on with this conversation; the start of its id is enough")
    keep.add_argument("--temporary", action="store_true", help="keep no new conversation on disk")
    add_model_flags(parser)
    add_reply_flags(parser)
    look = parser.add_argument_group("looks")
    look.add_argument("--theme", metavar="NAME", help="`qwen-chat config --themes` lists them")
    look.add_argument("--ascii", action="store_true", default=None, help="draw with ASCII characters only")


def before_parsing(argv: Sequence[str], parsed: Callable[[], object]) -> int | None:
    """Refuse where no full screen can be, else stay behind as the parent that cleans up; None lets the verb run here."""
    from ..terminal.supervisor import MARK, supervise

    if MARK in os.environ or any(word in PLAIN_WORDS for word in argv):
        return None
    problem = no_terminal(os.environ)
    if problem:
        from ...engine.errors import UsageError

        parsed()  # what is wrong with the words is said first: with the right ones no terminal may be needed
        raise UsageError(
            problem, '`qwen-chat ask "..."` answers without one, and `qwen-chat --plain` talks line by line.'
        )
    return supervise()


def no_terminal(environ: Mapping[str, str]) -> str:
    """Why the full screen cannot be drawn, in one sentence; empty where all three streams are terminals that can draw."""
    for stream, name in ((sys.stdin, "stdin"), (sys.stdout, "stdout"), (sys.stderr, "stderr")):
        if stream is None or not stream.isatty():
            return f"The chat needs a terminal, and {name} is none."
    term = environ.get("TERM", "")
    return f"The chat needs a terminal that can draw, and TERM is {term or 'empty'}." if term in ("", "dumb") else ""


def run(args: argparse.Namespace) -> int:
    from ..terminal import interpreter
    from ..terminal.supervisor import parent_pipe
    from ._flags import load_settings

    if not args.plain:
        interpreter.begin()
    pipe = parent_pipe()
    loaded = load_settings(args)
    if args.plain:
        from ._plain import converse

        return converse(args, loaded)
    if pipe is None:
        return _full_screen(args, loaded)
    from ..terminal.signals import end_with_parent

    end_with_parent(pipe)
    code = _full_screen(args, loaded)
    sys.stdout.flush()
    sys.stderr.flush()
    # All files are closed; taking a whole model apart object by object would keep the shell waiting for seconds.
    os._exit(code)


def which_conversation(args: argparse.Namespace, loaded: Loaded) -> str | None:
    """Id of the conversation to go on with, or None for a new one. Raises UsageError where there is no such one."""
    from ._flags import refuse_empty

    refuse_empty(__resume=args.resume)
    if not args.resume_last and not args.resume:
        return None
    from ...engine.errors import UsageError
    from ..conversations import Store
    from . import say

    if not loaded.ui.save_history:
        raise UsageError(
            "Conversations are not kept: [history] save is false.", "`--set history.save=true` keeps them."
        )
    store = Store(loaded.places.conversations)
    if args.resume:
        return store.find(args.resume)
    for entry in store.entries():
        if not entry.problem:
            return entry.id
        say(f"{entry.id} was left out: {entry.problem}")
    raise UsageError("There is no conversation to go on with.", "`qwen-chat` starts one.")


def _full_screen(args: argparse.Namespace, loaded: Loaded) -> int:
    from ..app import QwenChatApp
    from ..config import Live
    from ..terminal.guard import OutputGuard
    from ..terminal.signals import end_on_signals
    from . import say
    from ._flags import load_settings, typed

    def open_engine(config: EngineConfig, emit: Emit) -> Engine:
        from ... import engine

        return engine.open_engine(config, emit)

    resume = which_conversation(args, loaded)
    with OutputGuard(loaded.places.log_file) as guard:
        app = QwenChatApp(
            open_engine,
            loaded.ui,
            engine_config=loaded.engine,
            places=loaded.places,
            live=Live(loaded, lambda: load_settings(args)),
            prompt=typed(args.prompt),
            resume=resume,
            temporary=args.temporary,
            released=guard.released,
        )

        def leave(code: int) -> None:
            app.leave()
            app.exit(code, code)

        def end(code: int) -> None:
            import asyncio

            asyncio.get_running_loop().call_soon_threadsafe(leave, code)

        end_on_signals(end, sys.stdin.fileno())
        code = app.run(mouse=loaded.ui.mouse)
    if app.return_code and code is None:
        say(f"The chat ended with an error of its own; {loaded.places.log_file} has the details.")
    from ..conversations import Store

    Store(loaded.places.conversations).purge()
    return code if isinstance(code, int) else app.return_code or 0
