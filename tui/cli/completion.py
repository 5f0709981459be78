"""Print a script that completes verbs and options in bash, zsh or fish.

The script is made from the verbs' own parsers, so it cannot fall behind them.
"""

from __future__ import annotations

import argparse

CHOICES = {"--mtp": ("auto", "fixed", "off")}
"""Options whose values are few, beside those that their parsers say."""
FILES = ("--config", "--trace", "--model")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=("bash", "zsh", "fish"), help="the shell that is to read the script")
    parser.epilog = (
        'bash: eval "$(qwen-chat completion bash)" in ~/.bashrc; zsh: the same in ~/.zshrc after compinit; '
        "fish: qwen-chat completion fish | source"
    )


def run(args: argparse.Namespace) -> int:
    print({"bash": _bash, "zsh": _zsh, "fish": _fish}[args.shell](_options()))
    return 0


def _options() -> dict[str, list[tuple[str, str]]]:
    """(option, help) by verb."""
    found = {}
    for verb, actions in _actions().items():
        found[verb] = [
            (option, (action.help or "").replace("%%", "%"))
            for action in actions
            if action.help != argparse.SUPPRESS
            for option in action.option_strings
            if option.startswith("--")
        ]
        positional = [a.choices for a in actions if not a.option_strings and a.choices]
        found[verb] += [(str(choice), "") for choices in positional for choice in choices or ()]
    return found


def _choices() -> dict[str, list[str]]:
    """The values of every option that has few."""
    said = {o: a.choices for actions in _actions().values() for a in actions if a.choices for o in a.option_strings}
    return {option: [str(value) for value in values] for option, values in (CHOICES | said).items()}


def _actions() -> dict[str, list[argparse.Action]]:
    """What each verb takes, by verb."""
    from . import _load, verbs
    from ._flags import Parser

    found = {}
    for verb in verbs():
        parser = Parser(prog=verb)
        _load(verb).add_arguments(parser)
        found[verb] = parser._actions
    return found


def _bash(options: dict[str, list[tuple[str, str]]]) -> str:
    cases = "\n".join(f"    {verb}) words='{' '.join(o for o, _ in found)}' ;;" for verb, found in options.items())
    values = "\n".join(
        f"    {o}) COMPREPLY=($(compgen -W '{' '.join(v)}' -- \"$word\")); return ;;" for o, v in _choices().items()
    )
    return f"""_qwen_chat() {{
  local word=${{COMP_WORDS[COMP_CWORD]}} before=${{COMP_WORDS[COMP_CWORD-1]}} verb=${{COMP_WORDS[1]}} words
  case $before in
{values}
    {"|".join(FILES)}) COMPREPLY=($(compgen -f -- "$word")); return ;;
  esac
  case $verb in
{cases}
    *) words='{" ".join(o for o, _ in options.get("chat", []))}' ;;
  esac
  [ "$COMP_CWORD" -eq 1 ] && words="{" ".join(options)} --version $words"
  COMPREPLY=($(compgen -W "$words" -- "$word"))
}}
complete -o default -F _qwen_chat qwen-chat"""


def _zsh(options: dict[str, list[tuple[str, str]]]) -> str:
    return "autoload -U +X bashcompinit && bashcompinit\n" + _bash(options)


def _fish(options: dict[str, list[tuple[str, str]]]) -> str:
    from . import summary

    def quoted(text: str) -> str:
        return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"

    choices = _choices()
    lines = ["complete -c qwen-chat -n __fish_use_subcommand -l version -d 'print the version'"]
    for verb, found in options.items():
        lines.append(f"complete -c qwen-chat -n __fish_use_subcommand -f -a {verb} -d {quoted(summary(verb))}")
        for option, said in found:
            seen = quoted(f"__fish_seen_subcommand_from {verb}")
            if not option.startswith("--"):
                lines.append(f"complete -c qwen-chat -n {seen} -f -a {option}")
                continue
            values = quoted(" ".join(choices.get(option, ())))
            value = f" -x -a {values}" if option in choices else " -r" if option in FILES else ""
            lines.append(f"complete -c qwen-chat -n {seen} -l {option[2:]} -d {quoted(said)}{value}")
    return "\n".join(lines)
