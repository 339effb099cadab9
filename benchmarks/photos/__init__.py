"""confgate compared with other model servers on photos, with all CPUs: `make bench-photos`."""
