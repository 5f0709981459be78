"""The command as it is, for tests on a PTY: `python command.py IGNORED ARGV...`."""

import sys

if __name__ == "__main__":
    from qwen_chat_mlx.tui.cli import main

    raise SystemExit(main(sys.argv[2:]))
