"""Reads the signals of a run from the files that it left, whoever wrote them.

`read_run_signals` finds the files (`find`), reads them by the format's reader, gives the signals greenward's
names (`names`) and aligns them by step (`columns`). No reader needs the package of the tracker.
"""

from greenward.diagnostics.readers.run import read_run_signals

__all__ = ["read_run_signals"]
