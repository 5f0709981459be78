"""How quick the interface is, over the scripted engine on a pseudo-terminal: `python benchmarks/interface.py`.

Paints are timed from outside, on the bytes that reach the terminal; work is timed as CPU time of the UI thread, which
other programs on the machine do not change. Prints its targets and exits with 1 when one is missed.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import pty
import select
import signal
import statistics
import struct
import sys
import tempfile
import termios
import time
from pathlib import Path
from typing import Any

MARK = "ZQFIRST"
FIRST_PAINT = 1.5
"""Most times what a bare Textual app takes."""
KEYS = "ЖДЛФЮЯЩЭБЦЙЪ"
BARE = """
from textual.app import App
from textual.widgets import TextArea
class Bare(App):
    def compose(self):
        yield TextArea()
Bare().run()
"""


class Terminal:
    """A child on a pseudo-terminal, and everything it wrote."""

    def __init__(self, command: list[str], home: str) -> None:
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            # An installed program is compiled, as the bare app's library is.
            os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
            os.environ |= {"TERM": "xterm-256color", "QWEN_CHAT_HOME": home, "COLORTERM": "truecolor"}
            os.execv(command[0], command)
        fcntl.ioctl(self.fd, termios.TIOCSWINSZ, struct.pack("HHHH", 36, 120, 0, 0))
        self.seen = ""

    def read(self, seconds: float) -> None:
        if select.select([self.fd], [], [], seconds)[0]:
            try:
                self.seen += os.read(self.fd, 1 << 16).decode("utf-8", "replace")
            except OSError:
                time.sleep(min(seconds, 0.05))

    def until(self, text: str, seconds: float = 60.0, since: int = 0) -> float:
        """Time at which `text` had come; raises when it does not."""
        end = time.monotonic() + seconds
        while text not in self.seen[since:]:
            if time.monotonic() > end:
                raise TimeoutError(f"{text!r} never came; the last output was {self.seen[-300:]!r}")
            self.read(0.2)
        return time.monotonic()

    def send(self, text: str) -> float:
        os.write(self.fd, text.encode())
        return time.monotonic()

    def echo(self, key: str) -> float:
        """Seconds from a key to its paint."""
        since = len(self.seen)
        begun = self.send(key)
        return self.until(key, 20.0, since) - begun

    def cpu_s(self) -> float:
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def close(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        os.close(self.fd)


# ---- the child: the app over the scripted engine, with notes on what happened when


def child(kind: str, notes: str) -> None:
    from qwen_chat_mlx.tui.terminal import interpreter

    interpreter.begin()
    from qwen_chat_mlx.engine.events import TextDelta, TurnFinished
    from qwen_chat_mlx.engine.fake import FakeEngine, FakeReply, FakeScript
    from qwen_chat_mlx.tui.app import QwenChatApp

    prose = " ".join(f"word{i} of a paragraph" + (".\n\n" if i % 40 == 39 else "") for i in range(1500))
    items = "".join(f"- item {i} with `code` and **bold** words in it\n" for i in range(200))
    text = {"prose": f"{MARK} {prose}", "list": f"{MARK}\n\n{items}\nZQLAST", "short": f"{MARK} done ZQLAST"}[kind]
    script = FakeScript(replies=(FakeReply(text),), load_s=0.1, step_s=0.005, mtp="off", prefill_rate=1e6)
    said: dict[str, Any] = {"cpu": []}

    def factory(_config: Any, emit: Any) -> FakeEngine:
        def noting(event: Any) -> None:
            if isinstance(event, TextDelta) and "first" not in said:
                said["first"] = time.monotonic()
            if isinstance(event, TurnFinished):
                said["end"], said["tokens"] = time.monotonic(), len(event.token_ids)
                Path(notes).write_text(json.dumps(said))
            emit(event)

        return FakeEngine(noting, script)

    class Noting(QwenChatApp):
        def drain(self) -> None:
            super().drain()
            turn = self.state.last_reply
            said["cpu"].append((turn.tokens if turn else 0, time.thread_time()))

    Noting(factory).run()


def headless_rate(tokens: int) -> float:
    """Tokens a second of the scripted engine without a screen."""
    from qwen_chat_mlx.engine.events import TurnFinished
    from qwen_chat_mlx.engine.fake import FakeEngine, FakeReply, FakeScript
    from qwen_chat_mlx.engine.types import GenerationRequest, Message

    done: list[float] = []
    script = FakeScript(replies=(FakeReply("word " * tokens),), load_s=0.0, step_s=0.005, mtp="off", prefill_rate=1e6)
    engine = FakeEngine(lambda e: done.append(time.monotonic()) if isinstance(e, TurnFinished) else None, script)
    begun = time.monotonic()
    engine.submit(GenerationRequest("a", (Message("user", "x"),), max_tokens=tokens))
    while not done:
        time.sleep(0.01)
    engine.close()
    return tokens / (done[0] - begun)


# ---- what is measured


def first_paint(home: str, rounds: int = 5) -> tuple[float, float]:
    """(seconds of the whole program, seconds of a bare Textual app) until a typed byte is on the screen; medians."""

    def once(command: list[str], prompt: str) -> float:
        begun = time.monotonic()
        t = Terminal(command, home)
        try:
            t.until(prompt)
            t.echo("Ж")
            return time.monotonic() - begun
        finally:
            t.close()

    ours, bare = [], []
    for _ in range(rounds + 1):
        ours.append(once([sys.executable, "-m", "qwen_chat_mlx", "--model", "/nonexistent"], "❯"))
        bare.append(once([sys.executable, "-c", BARE], "\x1b[?1049h"))
    return statistics.median(ours[1:]), statistics.median(bare[1:])  # the first ones compile and fill the page cache


def stream(kind: str, home: str, folder: str) -> dict[str, float]:
    """One reply at 200 tokens a second."""
    notes = os.path.join(folder, f"{kind}.json")
    t = Terminal([sys.executable, __file__, "--child", kind, notes], home)
    out: dict[str, float] = {}
    try:
        t.until("MTP")
        t.until("ready")
        t.send("go\r")
        painted = t.until(MARK)
        if kind == "prose":
            lags = []
            for i in range(24):
                for _ in range(8):
                    t.read(0.05)
                lags.append(t.echo(KEYS[i % len(KEYS)]))
            out["key_p50"], out["key_p95"] = statistics.median(lags), sorted(lags)[-2]
            while not os.path.exists(notes):
                t.read(0.2)
        else:
            out["last"] = t.until("ZQLAST", 120)
            while not os.path.exists(notes):
                t.read(0.05)
        said = json.loads(Path(notes).read_text())
        out["first"] = painted - said["first"]
        out["rate"] = said["tokens"] / (said["end"] - said["first"])
        out["tokens"] = said["tokens"]
        if kind == "list":
            out["late"] = out["last"] - said["end"]
        if kind == "prose":
            cpu = [(n, c) for n, c in said["cpu"] if n]
            out["early"] = _per_token(cpu, 500, 1500)
            out["late_cost"] = _per_token(cpu, said["tokens"] - 1500, said["tokens"] - 500)
    finally:
        t.close()
    return out


def _per_token(cpu: list[tuple[int, float]], low: int, high: int) -> float:
    inside = [(n, c) for n, c in cpu if low <= n <= high]
    return (inside[-1][1] - inside[0][1]) / (inside[-1][0] - inside[0][0])


def stop_and_idle(home: str, folder: str, idle_s: float) -> tuple[float, float]:
    """(seconds from Esc to the word "stopped", share of a core used while nothing runs)."""
    t = Terminal([sys.executable, __file__, "--child", "prose", os.path.join(folder, "stop.json")], home)
    try:
        t.until("ready")
        t.send("go\r")
        t.until(MARK)
        for _ in range(20):
            t.read(0.1)
        since = len(t.seen)
        begun = t.send("\x1b[27u")
        stopped = t.until("stopped", 20, since) - begun
        for _ in range(10):
            t.read(0.3)
        before, at = t.cpu_s(), time.monotonic()
        while time.monotonic() - at < idle_s:
            t.read(0.5)
        return stopped, (t.cpu_s() - before) / (time.monotonic() - at)
    finally:
        t.close()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--child", nargs=2, metavar=("KIND", "NOTES"), help=argparse.SUPPRESS)
    parser.add_argument("--idle", type=float, default=30.0, help="seconds to watch an idle screen")
    parser.add_argument("--start", type=int, metavar="ROUNDS", help="only the first paint, the median of this many")
    parser.add_argument("--lenient", action="store_true", help="exit with 0 whatever was measured: a busy machine")
    args = parser.parse_args()
    if args.child:
        child(*args.child)
        return 0
    with tempfile.TemporaryDirectory() as folder:
        home = os.path.join(folder, "home")
        ours, bare = first_paint(home, args.start or 5)
        print(f"first paint {ours:.3f} s, bare {bare:.3f} s, ratio {ours / bare:.3f}", file=sys.stderr)
        if args.start:
            return 0 if args.lenient or ours <= FIRST_PAINT * bare else 1
        prose = stream("prose", home, folder)
        print(f"prose {prose}", file=sys.stderr)
        alone = headless_rate(1000)
        listed = stream("list", home, folder)
        print(f"list {listed}", file=sys.stderr)
        stopped, idle = stop_and_idle(home, folder, args.idle)
    rows = [
        ("first paint and echo ÷ bare Textual app", ours / bare, FIRST_PAINT, f"{ours:.2f} s, bare {bare:.2f} s"),
        ("headless engine speed ÷ speed with the screen", alone / prose["rate"], 1 / 0.97, f"{alone:.0f}, {prose['rate']:.0f} tok/s"),
        ("key to paint, p95, s", prose["key_p95"], 0.05, f"p50 {1e3 * prose['key_p50']:.0f} ms"),
        ("first token emitted to painted, s", prose["first"], 0.1, ""),
        ("Esc to stopped, s", stopped, 0.1, ""),
        ("a 200-item list late at its end, s", listed["late"], 0.25, ""),
        ("UI CPU a token at the end ÷ at 1k", prose["late_cost"] / prose["early"], 1.1,
         f"{1e6 * prose['early']:.0f} µs, then {1e6 * prose['late_cost']:.0f} µs at {prose['tokens']:.0f} tokens"),
        ("CPU while idle, share of a core", idle, 0.01, f"{args.idle:.0f} s"),
    ]  # fmt: skip
    load = os.getloadavg()[0]
    print(f"{os.cpu_count()} cores, load {load:.1f}, Python {sys.version.split()[0]}\n")
    for name, value, most, more in rows:
        print(f"{'ok  ' if value <= most else 'MISS'} {name:<48} {value:8.3f}  (at most {most:.3f})  {more}")
    return 0 if args.lenient or all(v <= m for _, v, m, _ in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
