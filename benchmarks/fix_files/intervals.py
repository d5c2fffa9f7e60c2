"""Works with closed intervals, which are pairs (low, high)."""


def merge(intervals):
    """The intervals with those that touch or overlap joined, in order."""
    merged = []
    for low, high in sorted(intervals):
        if merged and low <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], high))
        else:
            merged.append((low, high))
    return merged


def covered(intervals):
    """The length that the intervals cover together."""
    return sum(high - low for low, high in merge(intervals))


def gaps(intervals):
    """What lies between the intervals."""
    joined = merge(intervals)
    return [(first[1], second[0]) for first, second in zip(joined, joined[1:])]


def contains(intervals, value):
    """Whether a value lies in one of the intervals."""
    return any(low <= value <= high for low, high in intervals)
