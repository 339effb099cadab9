"""confgate's serving half: bundles in, gated answers out. Nothing here needs torch."""

import os

# ONNX Runtime's Linux wheels report sessions to their maker unless told not to, before they are first imported.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
