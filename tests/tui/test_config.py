"""Where a setting's value comes from, and what is said when it cannot be used."""

import os
import re
from dataclasses import replace
from pathlib import Path

import pytest

import qwen_chat_mlx
from qwen_chat_mlx.engine.config import EngineConfig, settings_of
from qwen_chat_mlx.engine.errors import ConfigError
from qwen_chat_mlx.tui.config import Live, UiConfig, all_settings, load
from qwen_chat_mlx.tui.config_text import example, line_of, parse_scalar, read_toml, shown, to_toml, tomllib
from qwen_chat_mlx.tui.places import Places, recall, remember


@pytest.fixture
def env(tmp_path):
    return {"QWEN_CHAT_HOME": str(tmp_path / "home")}


def write(tmp_path, text):
    path = tmp_path / "some.toml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def refused(*args, **kwargs):
    with pytest.raises(ConfigError) as e:
        load(*args, **kwargs)
    assert e.value.exit_code == 2
    return e.value


def test_without_any_source_the_defaults_are_in_force(env):
    loaded = load(environ=env)
    assert (loaded.engine, loaded.ui, loaded.file) == (EngineConfig(), UiConfig(), None)
    assert set(loaded.origins.values()) == {"default"}


def test_flag_beats_set_beats_environment_beats_file_beats_default(tmp_path, env):
    path = write(tmp_path, "[sampling]\ntop_k = 1\nseed = 1\ntemperature = 0.1\nmin_p = 0.1\n")
    env |= {"QWEN_CHAT_SAMPLING_SEED": "2", "QWEN_CHAT_SAMPLING_TEMPERATURE": "0.2", "QWEN_CHAT_SAMPLING_MIN_P": "0.2"}
    loaded = load(
        {"sampling.min_p": "0.4"}, ["sampling.temperature=0.3", "sampling.min_p=0.3"], env, path,
        flag_names={"sampling.min_p": "--min-p"},
    )  # fmt: skip
    e = loaded.engine
    assert (e.top_p, e.top_k, e.seed, e.temperature, e.min_p) == (None, 1, 2, 0.3, 0.4)
    names = ("top_p", "top_k", "seed", "temperature", "min_p")
    assert [loaded.origins[f"sampling.{n}"] for n in names] == [
        "default", str(path), "QWEN_CHAT_SAMPLING_SEED", "--set", "--min-p",
    ]  # fmt: skip
    assert loaded.line("sampling.top_k") == 2
    assert loaded.line("sampling.seed") is None


def test_what_the_app_remembered_beats_only_the_default(tmp_path, env):
    remember(Places.of(env), **{"ui.theme": "paper", "ui.metrics": "nonsense"})
    loaded = load(environ=env)
    assert (loaded.ui.theme, loaded.origins["ui.theme"]) == ("paper", "remembered")
    assert loaded.ui.metrics == UiConfig().metrics
    assert load(environ=env, file=write(tmp_path, '[ui]\ntheme = "ember"\n')).ui.theme == "ember"


def test_texts_from_flags_and_environment_are_read_as_the_setting_needs(env):
    sets = ["model.path=123", "chat.system=true", "chat.think=false", "ui.mouse=false", "offload.expert_cache=12 %"]
    loaded = load(
        {}, sets, env | {"QWEN_CHAT_MODEL_DTYPE": "float32", "QWEN_CHAT_UI_THEME": '"x"', "QWEN_CHAT_UI_BELL": ""}
    )
    assert (loaded.engine.model, loaded.ui.system, loaded.ui.think, loaded.ui.mouse) == ("123", "true", False, False)
    assert (loaded.engine.expert_cache, loaded.engine.dtype, loaded.ui.theme) == ("12 %", "float32", "x")
    assert loaded.origins["ui.bell"] == "default"
    assert load({}, ["chat.system=1\nx = 2"], env).ui.system == "1\nx = 2"


def test_a_home_folder_in_a_path_is_expanded(env):
    assert load({"model.path": "~/m"}, [], env).engine.model == os.path.expanduser("~/m")


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("[sampling]\ntop_k = 1\ntemprature = 1\n", 3, ["sampling.temprature", "sampling.temperature"]),
        ("\n[sampeling]\ntop_k = 1\n", 3, ["[sampeling]", "[sampling]"]),
        ("[nonsense]\n", 1, ["[nonsense]"]),
        ("[model]\ntemperature = 1\n", 2, ["model.temperature", "sampling.temperature"]),
        ("[model]\n\n[sampling]\ntop_k = [\n 1,\n]\n", 4, ["sampling.top_k", "[1]", "whole number from 0"]),
        ("[sampling]\ntemperature = 9\n", 2, ["sampling.temperature", "9", "0 to 5"]),
        ("[sampling]\ntop_k = true\n", 2, ["sampling.top_k", "True", "whole number"]),
        ("[mtp]\nmode = 'on'\n", 2, ["mtp.mode", "'on'", "'auto', 'fixed', 'off'"]),
        ("[ui]\nx.y = 1\n", 2, ["ui.x"]),
        ("model = 'x'\n", 1, ["model", "table"]),
        ("[[model]]\npath = 'x'\n", 1, ["model", "table"]),
        ("[model]\npath = x\n", 2, ["TOML"]),
        ("[model]\npath = '''x\n", 3, ["TOML"]),
        (b"[model]\n\npath = '\xff'\n", 3, ["UTF-8"]),
        ("[keys]\nstop = 5\n", 2, ["keys", "5"]),
        ("[keys]\nstop = 'contrl+z'\n", 2, ["'stop'", "'contrl+z'", "'ctrl'"]),
        ("[keys]\nstop = ['f1', 'pgup']\n", 2, ["'stop'", "'pgup'", "'pageup'"]),
        ("[keys]\nstop = 'ctrl+'\n", 2, ["'stop'", "'ctrl+'", "f1 to f24"]),
        ("[panels]\nacceptance_percent = [50, 20]\n", 2, ["ascending"]),
        ("[panels]\nacceptance_percent = [20]\n", 2, ["ascending"]),
        ("[panels]\norder = 'mtp'\n", 2, ["list"]),
        ("[ui]\nmouse = 1979-05-27\n", 2, ["true or false"]),
    ],
)
def test_a_bad_file_is_refused_with_file_line_key_and_what_is_accepted(text, line, words, tmp_path, env):
    path = write(tmp_path, text)
    e = refused(environ=env, file=path)
    assert str(e).startswith(f"{path}:{line}: ")
    assert [w for w in words if w not in str(e)] == []
    assert "\n" not in str(e)


def test_a_file_that_was_asked_for_must_exist_and_be_a_file(tmp_path, env):
    assert "config --init" in str(refused(environ=env, file=tmp_path / "none.toml"))
    assert str(tmp_path) in str(refused(environ=env, file=tmp_path))
    assert "~nobody-of-this-name" in str(refused(environ=env, file="~nobody-of-this-name/x"))


def test_bad_flags_sets_and_variables_name_themselves(env):
    assert str(
        refused({"sampling.temperature": "hot"}, [], env, flag_names={"sampling.temperature": "--temperature"})
    ) == ("--temperature: sampling.temperature = 'hot' cannot be used: it takes 'model' or a number from 0 to 5.")
    assert "mtp.mode" in str(refused({}, ["mtp.mod=off"], env))
    assert "table.key=value" in str(refused({}, ["mtp"], env))
    assert "table.key=value" in str(refused({}, ["mode=off"], env))
    assert "QWEN_CHAT_MODEL_PATH" in str(refused(environ=env | {"QWEN_CHAT_MODLE_PATH": "x"}))
    assert "QWEN_CHAT_MTP_SPEED is not a setting" in str(refused(environ=env | {"QWEN_CHAT_MTP_SPEED": "1"}))
    assert str(refused(environ=env | {"QWEN_CHAT_MTP_MODE": "on"})).startswith("QWEN_CHAT_MTP_MODE: mtp.mode = 'on'")


def test_variables_of_other_programs_are_left_alone(env):
    assert load(environ=env | {"QWEN_CHAT_TOKEN": "x", "QWEN_CHAT_": "y"}).engine == EngineConfig()


def test_keys_come_together_from_all_sources_and_are_checked_where_the_actions_are_known(tmp_path, env):
    path = write(tmp_path, '[keys]\nstop = "escape"\nnewline = ["ctrl+j", "shift+enter"]\nquit = ""\n')
    loaded = load({}, ["keys.stop=f9"], env | {"QWEN_CHAT_KEYS_TOGGLE_MTP": "f4"}, path)
    assert loaded.ui.keys == {"stop": "f9", "newline": "ctrl+j,shift+enter", "quit": "", "toggle_mtp": "f4"}
    e = refused(environ=env, file=write(tmp_path, '[keys]\nstpo = "f1"\n'), actions=("stop", "send"))
    assert "keys.stop" in str(e)
    assert "some.toml:2:" in str(e)
    e = refused(environ=env, file=write(tmp_path, '[panels]\nhide = ["ssd"]\n'), panels=("ssd_reads", "memory"))
    assert "'ssd_reads'" in str(e)


def test_one_variable_moves_every_place(tmp_path):
    home = str(tmp_path / "elsewhere")
    places = Places.of({"QWEN_CHAT_HOME": home})
    assert all(str(getattr(places, f)).startswith(home) for f in Places.__slots__)
    usual = Places.of({})
    assert not any(str(getattr(usual, f)).startswith(home) for f in Places.__slots__)


def test_what_is_remembered_is_private_and_an_unreadable_state_is_set_aside(tmp_path):
    places = Places.of({"QWEN_CHAT_HOME": str(tmp_path / "a" / "b")})
    assert recall(places) == {}
    assert remember(places, theme="ink", model="x")
    assert remember(places, model=None)
    assert recall(places) == {"theme": "ink"}
    assert places.state_file.stat().st_mode & 0o777 == 0o600
    assert places.state_file.parent.stat().st_mode & 0o777 == 0o700
    places.state_file.write_text("{half")
    assert remember(places, theme="paper")
    assert recall(places) == {"theme": "paper"}
    assert places.state_file.with_name("state.json.unreadable").read_text() == "{half"


def test_the_example_file_holds_exactly_the_defaults_in_code():
    text = example(all_settings(), active=True)
    path = Path(qwen_chat_mlx.__file__).with_name("config.example.toml")
    assert path.read_text("utf-8") == text, "write it anew: qwen-chat config --example > config.example.toml"
    found, _ = read_toml(path)
    for s in all_settings():
        expected = {} if s.key == "*" else {s.key: shown(s, s.parse(s.default))}
        for key, value in expected.items():
            assert s.parse(found[s.table].pop(key)) == s.parse(value)
    assert not any(found.values())


def test_the_example_file_loads_as_the_defaults(env, tmp_path):
    loaded = load(environ=env, file=write(tmp_path, example(all_settings(), active=True)))
    assert (loaded.engine, loaded.ui) == (EngineConfig(), UiConfig())
    quiet = example(all_settings(), active=False)
    assert not any(tomllib.loads(quiet).values())
    awake = re.sub(r"(?m)^#(\w+ = )", r"\1", quiet)
    assert tomllib.loads(awake) == tomllib.loads(example(all_settings(), active=True))


def test_every_setting_explains_itself_and_has_one_place():
    every = all_settings()
    assert len({s.name for s in every}) == len(every)
    assert all(len(s.doc) > 15 and s.doc.endswith(".") for s in every)
    assert {s.field for s in settings_of(EngineConfig)}.isdisjoint({s.field for s in settings_of(UiConfig)})


@pytest.mark.parametrize(
    "value", ["", 'a"b\\c', "\x1b[2J\x7f\x9b\u202e", "日本語", "a\nb\tc", True, 0, -1.5, [1, 2], ("x",), {"a b": "c"}]
)
def test_a_value_written_as_toml_is_read_back(value):
    written = to_toml(value)
    assert written.isprintable()
    back = tomllib.loads(f"x = {written}")["x"]
    assert back == (list(value) if isinstance(value, tuple) else value)


def test_a_scalar_that_is_no_toml_stays_text():
    assert [parse_scalar(t) for t in ("1", "0.5", "true", '"a"', "a b", "", "1 # x", "nan x")] == [
        1, 0.5, True, "a", "a b", "", 1, "nan x",
    ]  # fmt: skip


def test_the_line_of_a_key_is_where_its_value_starts():
    text = '[a]\nx = 1\n\n# y = 5\ny = """\n[b]\nz = 1\n"""\n[b]\nz = 2\nc.d = 1\n'
    assert [line_of(text, *p) for p in (("a", "x"), ("a", "y"), ("b", "z"), ("b", "c", "d"), ("b", "q"))] == [
        2,
        5,
        10,
        11,
        None,
    ]


def test_every_key_that_is_bound_by_default_may_be_written_and_in_any_case():
    from qwen_chat_mlx.tui.keys import DEFAULT_KEYS

    assert UiConfig(keys=DEFAULT_KEYS).keys == DEFAULT_KEYS
    assert UiConfig(keys={"help": "F9, CTRL+A,?,A,question_mark,shift+F2,alt+Minus"}).keys == {
        "help": "f9,ctrl+a,?,A,question_mark,shift+f2,alt+minus"
    }


def test_a_changed_file_brings_theme_and_keys_and_a_broken_one_leaves_the_last_good_ones(tmp_path, env):
    path = write(tmp_path, '[ui]\ntheme = "ink"\n')
    live = Live(load(environ=env, file=path), lambda: load(environ=env, file=path))
    assert live.poll() == (None, "")
    path.write_text('[ui]\ntheme = "paper"\n[keys]\nstop = "f9"\n')
    fresh, message = live.poll()
    assert (fresh.ui.theme, fresh.ui.keys, message) == ("paper", {"stop": "f9"}, "")
    path.write_text('[ui]\ntheme = "paper"\nmouse = maybe\n')
    fresh, message = live.poll()
    assert fresh is None
    assert f"{path}:3:" in message
    assert live.loaded.ui.theme == "paper"
    path.write_text('[ui]\ntheme = "paper"\nmouse = false\n[keys]\nstop = "f9"\n')
    fresh, message = live.poll()
    assert fresh is None
    assert "next start" in message
    assert live.loaded.ui == replace(UiConfig(), theme="paper", keys={"stop": "f9"})
    path.unlink()
    assert "There is no file" in live.poll()[1]
    assert live.poll() == (None, "")


def test_an_edited_theme_file_is_noticed_without_a_changed_config(tmp_path, env):
    live = Live(load(environ=env), lambda: load(environ=env))
    folder = live.loaded.places.themes
    folder.mkdir(parents=True)
    (folder / "mine.toml").write_text("x = 1\n")
    assert live.poll() == (live.loaded, "")
    assert (live.theme_changed, live.themes_edited) == (False, True)
    assert live.poll() == (None, "")
    assert not live.themes_edited
    (folder / "mine.toml").write_text("xy = 1\n")
    assert live.poll()[0] is live.loaded
    live.loaded.places.config_file.write_text('[ui]\ntheme = "mine"\n')
    fresh, _ = live.poll()
    assert (fresh.ui.theme, live.theme_changed, live.themes_edited) == ("mine", True, False)
