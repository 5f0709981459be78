"""The words of the header, the status line and the key line, from the state. Plain functions, no widget."""

from __future__ import annotations

from textual.content import Content

from ..keys import ACTIONS, key_label
from ..state import ChatState
from ..text import numbers

__all__ = ["header", "hints", "meter", "status"]

MUTED = "$text-muted"
SPIN, SPIN_ASCII = "◐◓◑◒", "|/-\\"
MTP_WORDS = {
    "ON": ("●", "ON", "$text-success"),
    "WARM": ("◐", "WARM", "$text-warning"),
    "PARKED": ("‖", "PARKED", "$text-warning"),
    "FALLBACK": ("▲", "FALLBACK", "$text-warning"),
    "OFF": ("○", "OFF", MUTED),
    "UNAVAILABLE": ("–", "n/a", MUTED),
}
REST = (
    "toggle_mtp", "toggle_metrics", "palette", "help", "toggle_thoughts", "focus_transcript", "new_chat", "sessions",
)  # fmt: skip
DOT = " · "


def spinner(now: float, ascii_only: bool) -> str:
    frames = SPIN_ASCII if ascii_only else SPIN
    return frames[int(now * 2) % 4]


def meter(state: ChatState, wide: bool) -> Content:
    """How full the context is."""
    limit, share = state.context_limit, state.context_share
    if not limit:
        return Content("")
    style = "bold $text-error" if share >= 0.95 else "bold $text-warning" if share >= 0.8 else ""
    said = f"{numbers.percent(share)}"
    if not wide:
        return Content.assemble(("ctx ", MUTED), (said, style))
    cells = 10
    n = min(cells, round(share * cells + 0.49)) if share else 0
    return Content.assemble(
        ("ctx ", MUTED), (f"{numbers.count(state.context_used)}/{numbers.count(limit)} ", ""),
        ("█" * n, style or "$primary"), ("░" * (cells - n), MUTED), (f" {said}", style),
    )  # fmt: skip


def header(state: ChatState, wide: bool, narrow: bool) -> tuple[Content, Content]:
    title = (state.title or "New chat") + (" (temporary)" if state.temporary else "")
    model = state.model.name if state.model else ""
    if narrow:
        return Content.styled(title, "bold"), meter(state, False)
    left = [("qwen-chat", "bold $text-primary")]
    if model:
        left.append((f"{DOT}{model}", MUTED))
    return Content.assemble(*left, (DOT, MUTED), (title, "bold")), meter(state, wide)


def status(state: ChatState, now: float, narrow: bool, ascii_only: bool, stop: str) -> tuple[Content, Content]:
    """What is going on, and the settings in force. `stop` is the key that stops a reply."""
    return _doing(state, now, narrow, ascii_only, stop), Content("") if narrow else _settings(state)


def _doing(state: ChatState, now: float, narrow: bool, ascii_only: bool, stop: str) -> Content:
    spin: tuple[str, str] = (f"{spinner(now, ascii_only)} ", "$text-primary")
    if state.phase == "failed":
        return Content.assemble(
            ("! ", "$text-error"), (state.failure.message if state.failure else "failed", "$text-error")
        )
    if state.phase == "loading":
        load = state.loading
        said = [spin, ("loading", "")] if load is None else [spin, (load.phase, "")]
        if load is not None and load.total:
            amount = f"{numbers.size(load.done)} / {numbers.size(load.total)}" if load.unit == "bytes" else ""
            said.append((f" {amount or f'{load.done:,} / {load.total:,} {load.unit}'}", ""))
            said.append((f" {numbers.percent(load.done / load.total)}", "bold"))
        return Content.assemble(*said, (DOT + numbers.clock(now - state.loading_since_s), MUTED))
    turn = state.running
    if turn is None:
        said = DOT.join(s for s in (state.mtp_notice, state.notice) if s)
        return Content.styled(said, "$text-accent") if said else Content.styled("ready", MUTED)
    parts: list[tuple[str, str]] = [spin]
    elapsed = numbers.clock(now - turn.asked_s)
    if turn.status == "waiting":
        parts.append((f"waiting {elapsed}", ""))
    elif turn.status == "prefill" and state.prefill is not None:
        p = state.prefill
        parts.append((f"{p.phase} {numbers.count(p.done)} / {numbers.count(p.total)} tok", ""))
        if p.reused and not narrow:
            parts.append((f"{DOT}{numbers.count(p.reused)} reused", MUTED))
        if p.rate > 0:
            parts.append((f"{DOT}{numbers.rate(p.rate)} tok/s", ""))
            parts.append((f"{DOT}{numbers.duration((p.total - p.done) / p.rate)} left", MUTED))
    else:
        word = "" if narrow else "thinking " if turn.status == "thinking" else "answering "
        parts.append((f"{word}{elapsed}{DOT}{turn.tokens:,} tok", ""))
    if stop and not narrow:
        parts.append((f"{DOT}{stop} stop", MUTED))
    for said in (state.mtp_notice, state.notice):
        if said:
            parts.append((DOT + said, "$text-accent"))
    return Content.assemble(*parts)


def _settings(state: ChatState) -> Content:
    out: list[tuple[str, str]] = []
    drafting = state.mtp.state if state.mtp is not None else "OFF" if state.wanted_mtp == "off" else None
    if drafting is not None:
        glyph, word, style = MTP_WORDS[drafting]
        out += [("MTP ", MUTED), (f"{glyph} {word}", style)]
    if state.think is not None:
        out.append((f"  think {'on' if state.think else 'off'}", MUTED))
    for name in ("temperature", "top_p", "max_tokens"):
        if state.sampling.get(name) is not None:
            short = {"temperature": "temp", "top_p": "top-p", "max_tokens": "max"}[name]
            out.append((f"  {short} {state.sampling[name]}", MUTED))
    return Content.assemble(*out)


def hints(keys: dict[str, str], width: int, state: ChatState, selected: bool, ascii_only: bool) -> Content:
    """The keys that matter now, as many as there is room for. `selected`: they act on a message."""
    running = state.running is not None
    words = {a.id: a.hint for a in ACTIONS}
    if selected:
        words |= {"focus_transcript": "back"}
        change = ("stop",) if running else ("edit", "regenerate", *(("continue",) if state.cut_off else ()))
        names = ("copy", *change, "message_prev", "message_next", "focus_transcript", "toggle_thoughts", "help")
    else:
        names = (*(("stop",) if running else ()), "send", "newline", *REST)
    out: list[tuple[str, str]] = []
    used = 0
    for name in names:
        label = key_label(keys[name], ascii_only)
        if not label:
            continue
        word = f" {words[name]}  " if words[name] else " "
        used += len(label) + len(word)
        if used > width:
            break
        out += [(label, "bold"), (word, MUTED)]
    return Content.assemble(*out)
