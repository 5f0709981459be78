"""What comes from upstream where there is a GPU: the kernel's file alone, not the libraries that its package drags in."""

import json
import subprocess
import sys

ASK = """
import json, sys
from qwen_chat_mlx.engine.layers import device
device.on_gpu = lambda: True
try:
    said = device.gated_delta_kernel()(1, 2)
except Exception as e:
    said = f"{type(e).__name__}: {e}"
print(json.dumps([said, [m for m in ("mlx_lm", "mlx_lm.models", "transformers", "torch") if m in sys.modules]]))
"""


def asked(path):
    """[what the kernel said, the forbidden modules that were imported], with `path` before everything installed."""
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(path)!r})\n{ASK}"],
        capture_output=True, text=True, check=True, timeout=60,
    )  # fmt: skip
    return json.loads(done.stdout)


def test_the_kernel_is_taken_without_importing_its_package_or_transformers(tmp_path):
    models = tmp_path / "mlx_lm" / "models"
    models.mkdir(parents=True)
    (tmp_path / "mlx_lm" / "__init__.py").write_text("import transformers\n")
    (models / "__init__.py").write_text("import torch\n")
    (models / "gated_delta.py").write_text("import mlx.core\ndef gated_delta_kernel(*given): return sum(given)\n")
    for name in ("transformers", "torch"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit(name + ' was imported')\n")
    assert asked(tmp_path) == [3, []]


def test_an_installation_without_the_kernel_says_so(tmp_path):
    (tmp_path / "mlx_lm").mkdir()
    (tmp_path / "mlx_lm" / "__init__.py").write_text("")
    said, imported = asked(tmp_path)
    assert said.startswith("UnavailableError: The library mlx-lm")
    assert imported == []
