"""qwen-chat pack: what it prints, its errors, and that a packed folder answers like any other."""

import io
import subprocess
import sys
from pathlib import Path

import pytest

from qwen_chat_mlx.tui.cli import main
from qwen_chat_mlx.tui.text.numbers import size

FIXTURES = Path(__file__).parents[2] / "engine" / "fixtures"


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("QWEN_CHAT_HOME", str(tmp_path / "home"))


def test_it_packs_verifies_and_says_what_an_expert_costs(tmp_path, capfd):
    target = tmp_path / "packed"
    assert main(["pack", str(FIXTURES / "fp8-1"), str(target), "--verify"]) == 0
    out, err = capfd.readouterr()
    assert f"{target}: packed, " in out
    assert "all of them verified" in out
    assert "experts: 5 layers x 8, mxfp4, 4,096 bytes a read, 33% smaller than in the source" in out
    assert f"qwen-chat --model {target}" in out
    assert err == ""
    assert main(["pack", str(FIXTURES / "fp8-1"), str(target)]) == 0
    assert "was packed before" in capfd.readouterr().out


def test_a_packed_folder_is_verified_without_its_source(tmp_path, capfd, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert main(["pack", str(FIXTURES / "fp8-1"), "~/packed"]) == 0
    assert f"{tmp_path / 'packed'}: packed, " in capfd.readouterr().out
    assert main(["pack", "--verify", "~/packed"]) == 0
    out, _ = capfd.readouterr()
    assert out.startswith(f"{tmp_path / 'packed'}: was packed before, ")
    assert "all of them verified\nexperts: 5 layers x 8, mxfp4, 4,096 bytes a read\n" in out
    path = tmp_path / "packed" / "experts" / "layer_00.bin"
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    assert main(["pack", "--verify", "~/packed"]) == 1
    assert "layer_00.bin was changed after packing" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("name", "said"), [("demo", "./demo"), ("my model", "'my model'"), ("plain", "plain"), ("$x", "'$x'")]
)
def test_the_line_that_opens_the_folder_can_be_pasted(name, said, tmp_path, capfd, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["pack", str(FIXTURES / "fp8-1"), name]) == 0
    assert capfd.readouterr().out.endswith(f"open it with: qwen-chat --model {said}\n")


def test_a_packed_folder_answers_like_any_other(tmp_path, capfd, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO()))
    target = tmp_path / "packed"
    assert main(["pack", str(FIXTURES / "bf16-1"), str(target), "--experts", "bf16"]) == 0
    capfd.readouterr()
    said = []
    for model in (FIXTURES / "bf16-1", target):
        args = ["ask", "--model", str(model), "--set", "model.memory_limit=4 GiB", "--temperature", "0"]
        assert main([*args, "--max-tokens", "6", "hello"]) == 0
        said.append(capfd.readouterr().out)
    assert said[0] == said[1]
    assert said[0].strip()


@pytest.mark.parametrize(("name", "form", "change"), [("fp8-1", "bf16", "larger"), ("bf16-1", "mxfp4", "smaller")])
def test_the_size_to_come_is_said_before_the_first_byte_is_written(name, form, change, tmp_path, capfd, monkeypatch):
    from qwen_chat_mlx.engine.checkpoint import pack

    written, write = [], pack._write

    def then(*args):
        written.append(capfd.readouterr().out)
        return write(*args)

    monkeypatch.setattr(pack, "_write", then)
    target = tmp_path / "packed"
    assert main(["pack", str(FIXTURES / name), str(target), "--experts", form]) == 0
    takes = sum(p.stat().st_size for p in target.rglob("*") if p.is_file() and p.name != pack.MANIFEST)
    assert written == [f"{target} takes {size(takes)}, {written[0].split(', ')[-1]}"]
    assert written[0].endswith(f"% {change} than the source.\n")


@pytest.mark.parametrize(
    ("args", "code", "message"),
    [
        (["{src}", "{src}"], 2, "is the source itself. Give another folder to pack into."),
        (["{tmp}/nowhere", "{tmp}/new"], 1, "nowhere. Give the path of a model folder."),
        (["{src}", "{tmp}"], 2, "is not empty. Give an empty folder"),
        (["{src}", "{tmp}/new", "--experts", "q4"], 2, "See `qwen-chat pack --help`."),
        (["{src}", "{tmp}/new", "--resident", "4"], 2, "See `qwen-chat pack --help`."),
        (["{src}"], 2, "The folder to write, DST, is missing. See `qwen-chat pack --help`."),
        (["{src}", "--verify"], 1, "is not a packed model folder. Give a folder that `qwen-chat pack` wrote."),
    ],
)
def test_what_cannot_be_done_is_one_sentence(args, code, message, tmp_path, capfd):
    (tmp_path / "mine.txt").write_text("")
    given = [a.format(src=FIXTURES / "fp8-1", tmp=tmp_path) for a in args]
    assert main(["pack", *given]) == code
    out, err = capfd.readouterr()
    assert out == ""
    assert len(err.splitlines()) == 1
    assert message in err
    assert not (tmp_path / "new").exists()


def test_the_help_loads_no_library():
    script = (
        "import sys; from qwen_chat_mlx.tui.cli import main\n"
        "main(['pack', '--help']); print([m for m in ('mlx', 'numpy', 'rich') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_the_forms_offered_are_those_there_are():
    from qwen_chat_mlx.engine.checkpoint.pack import EXPERT_FORMS
    from qwen_chat_mlx.tui.cli import pack

    assert pack._FORMS == EXPERT_FORMS
