"""The CPU backend: always there, runs every op; the yardstick for all other backends."""
