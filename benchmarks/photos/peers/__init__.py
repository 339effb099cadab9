"""The other servers' applications. Each runs in its server's own environment and imports nothing from confgate."""
