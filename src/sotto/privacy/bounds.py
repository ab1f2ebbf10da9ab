"""Bounds in words: a printed number is never better than the bound that it stands for.

A parameter of a mechanism is rounded so that it meets the epsilon that is printed with it. Noise,
sensitivities, floors, thresholds and hazards are rounded up; concentrations and sampling rates are
rounded down.
"""

import math
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal

_EXACT = 1 - 1e-12  # float64 has rounded the bound itself, which is not rounded up


def at_most(bound: float, digits: int = 4) -> str:
    """Returns an upper bound with so many digits, rounded up.

    What float64 has rounded, up to 1e-12 of the bound, does not count.

    Example:
        at_most(1.2710878)  # '1.272'
    """
    if not math.isfinite(bound):
        return "infinite" if bound > 0 else str(bound)
    up = Context(prec=digits, rounding=ROUND_CEILING).create_decimal(Decimal(float(bound) * _EXACT))
    return f"{float(up):.{digits}g}"


def at_least(bound: float, digits: int = 4) -> str:
    """Returns a lower bound of at least 0 with so many digits, rounded down.

    What float64 has rounded, up to 1e-12 of the bound, does not count.

    Example:
        at_least(1.2719)  # '1.271'
    """
    if not math.isfinite(bound):
        return "infinite"
    down = Context(prec=digits, rounding=ROUND_FLOOR).create_decimal(Decimal(float(bound) / _EXACT))
    return f"{float(down):.{digits}g}"


def percent(share: float) -> str:
    """Returns a share that is an upper bound in per cent, rounded up to a tenth."""
    up = Decimal(float(100 * share) * _EXACT).quantize(Decimal("0.1"), ROUND_CEILING)
    return f"{min(up, Decimal(100)):.1f}%"


def guarantee(epsilon: float, delta: float) -> str:
    """Returns a guarantee in words, such as 'epsilon 1.3 at delta 1e-05', rounded up."""
    return f"epsilon {at_most(epsilon)} at delta {at_most(delta, 3)}"
