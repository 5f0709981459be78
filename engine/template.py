"""A checkpoint's chat template: sandboxed jinja2 with the helpers that Hugging Face gives it, bounded in work and size.

Knows text only: no tokens, no message types. A template comes with a download, so it is treated as untrusted code.
"""

from __future__ import annotations

import functools
import json
import re
import traceback
from collections.abc import Callable, Iterable
from datetime import datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any

from .errors import TemplateError

if TYPE_CHECKING:
    from jinja2.sandbox import ImmutableSandboxedEnvironment

__all__ = ["ChatTemplate"]

_STEPS = 200_000
"""Steps of one render beyond four for each character of its input; 1,000 messages take some 100,000."""
_CALL = 4
"""Steps that a call costs; the turn of a loop, an operator and a filter cost one."""
_SIZE = 1 << 20
"""Characters of one render beyond eight for each character of its input."""
_WIDE = re.compile(r"%[^a-zA-Z%]*(\d{6}|\*)|\{[^{}]*\d{6}")
"""A format string that pads to a great or computed width."""


class ChatTemplate:
    """A template's source, compiled at the first use. Not for use by two threads at a time."""

    def __init__(self, source: str) -> None:
        self.source = source

    @cached_property
    def variables(self) -> frozenset[str]:
        """Names that the template reads and does not define: what can be passed to it. Raises TemplateError."""
        from jinja2 import meta

        env, _ = self._compiled
        return frozenset(meta.find_undeclared_variables(env.parse(self.source))) - set(env.globals)

    def render(self, variables: dict[str, Any], input_size: int) -> str:
        """The rendered text. `input_size`: characters of the texts passed in, against which the result is bounded.

        Raises TemplateError, one sentence, for whatever the template does wrong or refuses.
        """
        env, template = self._compiled
        limit = _SIZE + 8 * input_size
        env.budget.renew(_STEPS + 4 * input_size, limit)  # type: ignore[attr-defined]
        parts: list[str] = []
        size = 0
        try:
            for part in template.generate(variables):
                parts.append(part)
                size += len(part)
                if size > limit:
                    raise _TooMuch(f"writes more than {limit:,} characters")
        except Exception as e:  # noqa: BLE001  a template can raise anything that Python expressions can
            raise _explain(e) from None
        return "".join(parts)

    @cached_property
    def _compiled(self) -> tuple[ImmutableSandboxedEnvironment, Any]:
        from jinja2 import TemplateSyntaxError

        env = _environment()
        try:
            return env, env.from_string(self.source)
        except TemplateSyntaxError as e:
            raise TemplateError(
                f"The model's chat template has a syntax error in line {e.lineno}: {_one_line(str(e.message))}"
            ) from None
        except Exception as e:  # noqa: BLE001  constant expressions run while compiling
            raise _explain(e) from None


class _Refused(Exception):
    """The template called raise_exception."""


class _TooMuch(Exception):
    """The template used up its budget; the text says what it does."""


class _Budget:
    """What one render may still do."""

    def __init__(self) -> None:
        self.renew(_STEPS, _SIZE)

    def renew(self, steps: int, limit: int) -> None:
        self.steps = self.all_steps = steps
        self.limit = limit

    def spend(self, steps: int) -> None:
        self.steps -= steps
        if self.steps < 0:
            raise _TooMuch(f"takes more than {self.all_steps:,} steps")

    def check_size(self, size: int) -> None:
        if size > self.limit:
            raise _TooMuch(f"builds a value of more than {self.limit:,} elements")

    def check_value(self, value: Any) -> Any:
        if isinstance(value, (str, bytes, list, tuple)):
            self.check_size(len(value))
        return value

    def check_arguments(self, values: Iterable[Any]) -> None:
        """Numbers that could be lengths or widths, and format strings with a great width."""
        for value in values:
            if isinstance(value, int):
                self.check_size(abs(value))

    def check_format(self, text: Any) -> None:
        if isinstance(text, str) and _WIDE.search(text):
            self.check_size(self.limit + 1)

    def guarded(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """A filter that pays for its call and cannot be asked for a great length."""
        first = 2 if hasattr(function, "jinja_pass_arg") else 1

        @functools.wraps(function)
        def guard(*args: Any, **kwargs: Any) -> Any:
            self.spend(1)
            self.check_arguments((*args[first:], *kwargs.values()))
            if function.__name__ == "do_format":
                self.check_format(args[0])
            return self.check_value(function(*args, **kwargs))

        return guard

    def counted(self, items: Any) -> list[Any]:
        """The items of a loop, paid for in advance."""
        found = list(items)
        self.spend(1 + len(found))
        return found

    def joined(self, values: list[Any]) -> str:
        """What `a ~ b` gives."""
        texts = [str(v) for v in values]
        self.spend(1)
        self.check_size(sum(map(len, texts)))
        return "".join(texts)


def _environment() -> ImmutableSandboxedEnvironment:
    """The sandbox, with `env.budget` bounding its loops, calls, and the growth of strings and lists."""
    from jinja2 import ext, nodes
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(ext.Extension):
        """`{% generation %}…{% endgeneration %}`, used by trainers to find replies; here its body is all there is."""

        tags = {"generation"}  # noqa: RUF012

        def parse(self, parser: Any) -> Any:
            next(parser.stream)
            return parser.parse_statements(("name:endgeneration",), drop_needle=True)

    class Bounded(ImmutableSandboxedEnvironment):
        intercepted_binops = frozenset(["*", "**", "%", "+"])

        def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
            tree = super()._parse(source, name, filename)
            for loop in tree.find_all(nodes.For):
                loop.iter = nodes.Filter(loop.iter, "_counted", [], [], None, None, lineno=loop.lineno)
            for concat in list(tree.find_all(nodes.Concat)):
                items = nodes.List(concat.nodes, lineno=concat.lineno)
                concat.nodes = [nodes.Filter(items, "_joined", [], [], None, None, lineno=concat.lineno)]
            tree.set_environment(self)
            return tree

        def call(self, *args: Any, **kwargs: Any) -> Any:
            budget.spend(_CALL)
            budget.check_arguments((*args[2:], *kwargs.values()))
            budget.check_format(getattr(getattr(args[1], "__wrapped__", args[1]), "__self__", None))
            return budget.check_value(super().call(*args, **kwargs))

        def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
            budget.spend(1)
            if operator == "*":
                for a, b in ((left, right), (right, left)):
                    if isinstance(a, (str, bytes, list, tuple)) and isinstance(b, int):
                        budget.check_size(len(a) * b)
            if operator == "%":
                budget.check_format(left)
            if operator == "**" and isinstance(right, (int, float)):
                budget.check_size(int(abs(right)) * 64)
            return budget.check_value(super().call_binop(context, operator, left, right))

    budget = _Budget()
    env = Bounded(trim_blocks=True, lstrip_blocks=True, extensions=[ext.loopcontrols, Generation])
    env.budget = budget  # type: ignore[attr-defined]
    env.filters.update({name: budget.guarded(f) for name, f in env.filters.items()})
    env.filters.update(tojson=_tojson, _counted=budget.counted, _joined=budget.joined)
    env.globals.update(raise_exception=_raise_exception, strftime_now=_strftime_now)
    return env


def _raise_exception(message: Any = "no reason given") -> None:
    raise _Refused(str(message))


def _strftime_now(form: str) -> str:
    return datetime.now().astimezone().strftime(form)


def _tojson(
    value: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False
) -> str:
    """JSON without HTML escapes, unlike jinja's own filter."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _one_line(text: str) -> str:
    """A text of the template, which may hold anything, as part of a sentence."""
    line = " ".join(text.split())
    return "".join(c if c.isprintable() else "\ufffd" for c in (line if len(line) <= 300 else line[:299] + "…"))


def _explain(error: Exception) -> TemplateError:
    """One sentence for anything raised while a template ran."""
    from jinja2.exceptions import SecurityError, UndefinedError

    line = next(
        (f.lineno for f in reversed(traceback.extract_tb(error.__traceback__)) if f.filename == "<template>"), 0
    )
    where = f" in line {line}" if line else ""
    what = _one_line(str(error)).rstrip(".")
    if isinstance(error, _Refused):
        return TemplateError(f"The model's chat template refused this conversation: {what}.")
    if isinstance(error, _TooMuch):
        return TemplateError(f"The model's chat template was stopped{where}, because it {what}.")
    if isinstance(error, SecurityError):
        return TemplateError(f"The model's chat template tried something forbidden{where}: {what}.")
    if isinstance(error, UndefinedError):
        return TemplateError(f"The model's chat template needs something that is not there{where}: {what}.")
    if isinstance(error, (RecursionError, MemoryError)):
        return TemplateError(f"The model's chat template was stopped{where}, because it needs too much memory.")
    return TemplateError(f"The model's chat template failed{where}: {type(error).__name__}: {what}.")
