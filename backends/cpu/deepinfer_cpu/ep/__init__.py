"""Deep EP transports of the CPU backend."""

TRANSPORTS: tuple[object, ...] = ()
