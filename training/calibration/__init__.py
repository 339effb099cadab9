"""From graphs and images to thresholds: `epsilon`, then `policies` and `risk`, put together by `calibrate`."""
