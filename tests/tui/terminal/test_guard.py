"""Standard descriptors under the guard, in a process of their own."""

import subprocess
import sys

SCRIPT = """
import os, subprocess, sys
from pathlib import Path
from qwen_chat_mlx.tui.terminal.guard import OutputGuard

def child(text):
    subprocess.run([sys.executable, "-c", f"print({text!r})"])

print("before")
with OutputGuard(Path(sys.argv[1])) as guard:
    os.write(1, b"native out\\n")
    os.write(2, b"native err\\n")
    print("python out")
    child("child hidden")
    sys.__stdout__.write("drawn\\n"); sys.__stdout__.flush()
    sys.__stderr__.write("drawn too\\n"); sys.__stderr__.flush()
    sys.stdout.flush()
    with guard.released():
        child("editor")
    os.write(1, b"native again\\n")
print("after", sys.__stdout__ is sys.stdout, len(os.listdir("/dev/fd")))
"""


def run(log):
    return subprocess.run(
        [sys.executable, "-c", SCRIPT, str(log)], capture_output=True, text=True, timeout=60, check=True
    )


def test_only_what_is_drawn_and_what_an_editor_prints_reaches_the_terminal(tmp_path):
    log = tmp_path / "a" / "output.log"
    done = run(log)
    assert done.stdout.startswith("before\ndrawn\neditor\nafter True ")
    assert done.stderr == "drawn too\n"
    assert sorted(log.read_text().splitlines()) == [
        "child hidden",
        "native again",
        "native err",
        "native out",
        "python out",
    ]
    assert log.stat().st_mode & 0o777 == 0o600
    assert log.parent.stat().st_mode & 0o777 == 0o700


def test_the_log_grows_from_run_to_run_up_to_a_limit(tmp_path):
    log = tmp_path / "output.log"
    run(log)
    run(log)
    assert log.read_text().count("native out") == 2
    log.write_text("x" * (1 << 20) + "y")
    run(log)
    assert log.stat().st_size < 1000


def test_without_a_place_for_the_log_the_output_is_dropped(tmp_path):
    (tmp_path / "file").write_text("x")
    done = run(tmp_path / "file" / "output.log")
    assert done.stdout.startswith("before\ndrawn\neditor\nafter")
    assert done.stderr == "drawn too\n"
