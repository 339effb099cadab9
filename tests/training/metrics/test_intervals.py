"""Exact intervals of a share, against known values and the beta distribution."""

import pytest
from scipy.stats import beta

from training.metrics.intervals import share_interval, upper_bound


def test_bounds_are_clopper_pearsons():
    """Known values: 0 of 10 has the upper bound 1 − α^(1/10), and 5 of 10 lies between 18.7 % and 81.3 %."""
    assert upper_bound(0, 10, 0.05) == pytest.approx(1 - 0.05**0.1)
    assert upper_bound(10, 10, 0.05) == 1.0
    assert share_interval(5, 10) == pytest.approx((0.187086, 0.812914), abs=1e-6)
    assert share_interval(0, 10)[0] == 0.0
    assert share_interval(10, 10)[1] == 1.0


@pytest.mark.parametrize("n", [1, 10, 1_000])
def test_bounds_are_quantiles_of_the_beta_distribution(n):
    """For every k the ends are those that Clopper and Pearson define; none of n and all of n have one end each."""
    for k in {0, 1, n // 3, n - 1, n}:
        low, high = share_interval(k, n)
        assert low == (0.0 if k == 0 else pytest.approx(beta.ppf(0.025, k, n - k + 1), abs=1e-12))
        assert high == (1.0 if k == n else pytest.approx(beta.ppf(0.975, k + 1, n - k), abs=1e-12))
        assert upper_bound(k, n, 0.01) == (1.0 if k == n else pytest.approx(beta.ppf(0.99, k + 1, n - k), abs=1e-12))
