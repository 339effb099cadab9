"""confgate's serving half: bundles in, gated answers out. Nothing here needs torch."""
