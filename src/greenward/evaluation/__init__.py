"""Measurement: pass@k with intervals, suites, folders of answers, paired comparison, audits."""
