"""`python -m qwen_chat_mlx` is the command `qwen-chat`."""

from qwen_chat_mlx.tui.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
