"""What k of n says about the share behind it: exact (Clopper–Pearson) bounds, which hold for every n."""


def share_interval(k: int, n: int, level: float = 0.95) -> tuple[float, float]:
    """The share lies in it with probability `level` or more."""
    from scipy.stats import beta

    tail = (1 - level) / 2
    low = 0.0 if k == 0 else float(beta.ppf(tail, k, n - k + 1))
    high = 1.0 if k == n else float(beta.ppf(1 - tail, k + 1, n - k))
    return low, high


def upper_bound(k: int, n: int, alpha: float) -> float:
    """The share is at most this with probability 1 − α or more."""
    from scipy.stats import beta

    return 1.0 if k == n else float(beta.ppf(1 - alpha, k + 1, n - k))
