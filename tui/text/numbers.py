"""Numbers as people read them, with their units. None, a value that is not there yet, is always an em dash."""

from __future__ import annotations

__all__ = [
    "NOTHING",
    "clock",
    "count",
    "duration",
    "gb_per_s",
    "gib",
    "ms",
    "percent",
    "plural",
    "rate",
    "short",
    "size",
]

NOTHING = "—"


def count(n: int | None) -> str:
    """1240 -> "1 240" would not survive copying; thousands above 9,999 become "12.4k"."""
    if n is None:
        return NOTHING
    if n < 10_000:
        return f"{n:,}"
    return f"{n / 1e3:.1f}k" if n < 1_000_000 else f"{n / 1e6:.1f}M"


def short(n: float | None) -> str:
    """At most four characters up to a million: 942, 1.8k, 31k."""
    if n is None:
        return NOTHING
    if n < 999.5:
        return f"{n:.0f}"
    return f"{n / 1e3:.1f}k" if n < 9950 else f"{n / 1e3:.0f}k" if n < 999_500 else f"{n / 1e6:.1f}M"


def rate(per_s: float | None) -> str:
    if per_s is None:
        return NOTHING
    return f"{per_s:.1f}" if per_s < 100 else f"{per_s:,.0f}"


def percent(share: float | None, digits: int = 0) -> str:
    return NOTHING if share is None else f"{100 * share:.{digits}f}%"


def ms(seconds: float | None) -> str:
    """Two significant digits, in milliseconds, without the unit."""
    if seconds is None:
        return NOTHING
    value = seconds * 1e3
    return f"{value:.2f}" if value < 0.995 else f"{value:.1f}" if value < 9.95 else f"{value:.0f}"


def gib(n_bytes: float | None) -> str:
    """In GiB, without the unit."""
    if n_bytes is None:
        return NOTHING
    value = n_bytes / 2**30
    return f"{value:.2f}" if value < 0.995 else f"{value:.1f}"


def of(part_bytes: float, whole_bytes: float) -> tuple[str, str]:
    """A part and its whole in the unit of the whole, which alone shows it: ("18.2", "20.0 GiB")."""
    whole = size(whole_bytes)
    unit = whole.rpartition(" ")[2]
    value = part_bytes / 1024 ** ("B", "KiB", "MiB", "GiB", "TiB").index(unit)
    return (f"{value:.0f}" if unit == "B" or value >= 100 else f"{value:.1f}"), whole


def size(n_bytes: float | None) -> str:
    """With a binary unit."""
    if n_bytes is None:
        return NOTHING
    value, unit = float(n_bytes), "B"
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if value < 1024 or unit == "TiB":
            break
        value /= 1024
    return f"{value:.0f} {unit}" if unit == "B" or value >= 100 else f"{value:.1f} {unit}"


def gb_per_s(n_bytes: float, seconds: float) -> str:
    return NOTHING if seconds <= 0 else f"{n_bytes / seconds / 1e9:.1f}"


def duration(seconds: float | None) -> str:
    if seconds is None:
        return NOTHING
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02d} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} min"


def clock(seconds: float) -> str:
    """Elapsed time as 00:18."""
    minutes, rest = divmod(int(max(0.0, seconds)), 60)
    return f"{minutes:02d}:{rest:02d}"


def plural(n: int, noun: str) -> str:
    return f"{n:,} {noun}" if n == 1 else f"{n:,} {noun}s"
