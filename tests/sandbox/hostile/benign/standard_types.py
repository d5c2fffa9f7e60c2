"""Results of standard types beyond the plain ones, which a grader may declare (`sandbox.standard_types`)."""

from __future__ import annotations

from collections import deque
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from fractions import Fraction

from hostile.program import benign

PROGRAMS = (
    benign("decimals", "from decimal import Decimal\ndef f(s): return [Decimal(s) / 4, Decimal('NaN'), Decimal('-0')]", (("1",), [Decimal("0.25"), Decimal("NaN"), Decimal("-0")])),
    benign("fractions", "from fractions import Fraction\ndef f(a, b): return Fraction(a, b), {Fraction(1, 3)}", ((2, 4), (Fraction(1, 2), {Fraction(1, 3)}))),
    benign("dates", "from datetime import date\ndef f(): return date(2024, 2, 29)", ((), date(2024, 2, 29))),
    benign("times_of_day", "from datetime import time\ndef f(): return time(1, 2, 3, 4)", ((), time(1, 2, 3, 4))),
    benign("moments", "from datetime import datetime, timezone\ndef f(): return [datetime(2024, 1, 2, 3, 4, 5, 6), datetime(2024, 1, 1, tzinfo=timezone.utc)]", ((), [datetime(2024, 1, 2, 3, 4, 5, 6), datetime(2024, 1, 1, tzinfo=timezone.utc)])),
    benign("spans", "from datetime import timedelta\ndef f(): return timedelta(days=-1, microseconds=5)", ((), timedelta(days=-1, microseconds=5))),
    benign("queues", "from collections import deque\ndef f(): return deque([1, 2])", ((), deque([1, 2]))),
    benign("byte_arrays", "def f(): return bytearray(b'ab')", ((), bytearray(b"ab"))),
    benign("ranges", "def f(): return range(1, 9, 3)", ((), range(1, 9, 3))),
)  # fmt: skip
