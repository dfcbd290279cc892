"""Drivers of the backend: `sim` (the simulator) and `acl` (the vendor's runtime, loaded lazily)."""
