"""Numbers as people read them: three figures and a unit. Times in s, ms, us, ns; rates in powers of 1000."""

from __future__ import annotations

import math

__all__ = [
    "bottleneck", "figures", "gbs", "gflops", "percent", "ratio", "seconds", "seconds_range", "short_flops", "size",
    "unit_of", "with_interval",
]  # fmt: skip

LEAST_S = 0.5e-9
FIVE_DIGITS = 9999.5  # from there on a time reads as 10000 or more
TIME_UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"), (1e-9, "ns"))


def figures(value: float, count: int = 3) -> str:
    """``value`` rounded to ``count`` significant figures, without an exponent: 1234.5 -> 1234, 0.012345 -> 0.0123."""
    if value == 0 or not math.isfinite(value):
        return "0" if value == 0 else str(value)
    decimals = max(0, count - 1 - math.floor(math.log10(abs(value))))
    text = f"{value:.{decimals}f}"
    if decimals and len(text.replace("-", "").replace(".", "").lstrip("0")) > count:  # 9.996 rounds up to 10.00
        text = f"{value:.{decimals - 1}f}"
    return text


def _time_unit(value: float) -> tuple[float, str]:
    # 999.6 us reads as 1.00 ms, so the limit lies where three figures would round up
    return next(((scale, name) for scale, name in TIME_UNITS if abs(value) >= 0.9995 * scale), TIME_UNITS[-1])


def unit_of(*times: float) -> tuple[float, str]:
    """The unit in which several times are compared at a glance: the least one's, ``1450 ms`` beside ``629 ms``; if the
    largest has five digits in it, the largest one's. A scale in seconds, and a name."""
    known = [abs(time) for time in times if abs(time) >= LEAST_S]
    if not known:
        return TIME_UNITS[-1]
    unit = _time_unit(min(known))
    return unit if max(known) < FIVE_DIGITS * unit[0] else _time_unit(max(known))


def seconds(value: float, unit: tuple[float, str] | None = None) -> str:
    """A time: ``12.3 ms``. Less than half a nanosecond, which nothing here can measure, is ``0``."""
    if abs(value) < LEAST_S:
        return "0"
    scale, name = unit or _time_unit(value)
    return f"{figures(value / scale)} {name}"


def seconds_range(low: float, high: float) -> str:
    """A range of times in the larger one's unit: ``3.10-4.25 ms``; one number where the two read the same."""
    low = max(low, 0.0)
    if high < LEAST_S:
        return "0"
    scale, name = _time_unit(high)
    first, last = figures(low / scale, 2), figures(high / scale, 2)
    return f"{last} {name}" if first == last else f"{first}-{last} {name}"


def with_interval(value: float, noise: float, unit: tuple[float, str] | None = None) -> str:
    """A time with what it may be off, in one unit: ``-41 +- 117 ms``; alone if no noise was measured."""
    if not noise:
        return seconds(value, unit)
    scale, name = unit or _time_unit(max(abs(value), abs(noise)))
    error = figures(noise / scale, 2)
    decimals = len(error.partition(".")[2])
    return f"{value / scale:.{decimals}f} +- {error} {name}"


def bottleneck(name: str) -> str:
    """What bounds a kernel, in the glossary's words."""
    return "cause unknown" if name == "latency" else name


def percent(share: float | None, decimals: int = 0) -> str:
    """A share as a percentage; ``-`` where there is none; ``<1%`` for what is there but small."""
    if share is None:
        return "-"
    if 0 < share < 0.005 and decimals == 0:
        return "<1%"
    return f"{100 * share:.{decimals}f}%"


def ratio(value: float | None) -> str:
    """A speedup: ``2.41x``."""
    return "-" if value is None else f"{figures(value)}x"


def gbs(value: float) -> str:
    """A bandwidth given in GB/s (10^9 bytes a second)."""
    return f"{figures(value)} GB/s" if value < 9995 else f"{figures(value / 1e3)} TB/s"


def gflops(value: float) -> str:
    """A rate given in GFLOP/s (10^9 operations a second)."""
    return f"{figures(value)} GFLOP/s" if value < 9995 else f"{figures(value / 1e3)} TFLOP/s"


def short_flops(value: float) -> str:
    """A rate given in GFLOP/s as an axis shows it: ``10 T``."""
    for scale, prefix in ((1e6, "P"), (1e3, "T"), (1.0, "G")):
        if value >= scale:
            return f"{value / scale:g} {prefix}"
    return f"{value * 1e3:g} M"


def size(count: float) -> str:
    """A number of bytes in powers of 1024, as caches are named: ``48 KiB``."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024 or unit == "GiB":
            return f"{count:.0f} {unit}" if count >= 10 or count == int(count) else f"{count:.1f} {unit}"
        count /= 1024
    raise AssertionError("unreachable: GiB ends the loop")
