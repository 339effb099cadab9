"""confgate compared with other model servers: one network, one PNG, one closed-loop client: `make bench-serving`."""
