"""Offline half of confgate: learn confidence, calibrate the threshold, export the bundle (`confgate-train --help`)."""

import service  # noqa: F401  (turns off ONNX Runtime's telemetry; must come before it is imported)
