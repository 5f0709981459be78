"""Other chats on the machine, alive and left over."""

import subprocess
import sys

from qwen_chat_mlx.tui.terminal.instances import Instances, warning

GIB = 1 << 30
OTHER = """
import sys
from pathlib import Path
from qwen_chat_mlx.tui.terminal.instances import Instances
i = Instances(Path(sys.argv[1])); i.claim(int(sys.argv[2])); i.claim(int(sys.argv[2]) + 1); print("up", flush=True); sys.stdin.read()
"""


def test_a_running_chat_is_seen_until_it_ends_even_by_force(tmp_path):
    folder = tmp_path / "running"
    mine = Instances(folder)
    assert mine.others() == []
    mine.claim(5)
    other = subprocess.Popen(
        [sys.executable, "-c", OTHER, str(folder), "41"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )  # fmt: skip
    assert other.stdout.readline() == b"up\n"
    assert mine.others() == [42]
    other.kill()
    other.communicate()
    assert mine.others() == []
    assert [p.name for p in folder.iterdir()] == [mine._own.name]
    mine.release()
    mine.release()
    assert list(folder.iterdir()) == []


def test_a_folder_that_cannot_be_made_means_no_others(tmp_path):
    (tmp_path / "file").write_text("x")
    mine = Instances(tmp_path / "file" / "running")
    mine.claim(5)
    assert mine.others() == []
    mine.release()


def test_the_warning_comes_only_when_all_together_exceed_the_machine():
    assert warning(8 * GIB, [], 4 * GIB) == ""
    assert warning(8 * GIB, [8 * GIB], 16 * GIB) == ""
    assert warning(8 * GIB, [8 * GIB], 0) == ""
    said = warning(8 * GIB, [9 * GIB], 16 * GIB)
    assert "17.0 GiB" in said
    assert "16.0 GiB" in said
    assert "2 other chats" in warning(8 * GIB, [9 * GIB, GIB], 16 * GIB)
