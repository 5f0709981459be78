"""qwen-chat: a terminal chat over an embedded MLX engine. Importing this package imports nothing else."""

__version__ = "0.1.0"
