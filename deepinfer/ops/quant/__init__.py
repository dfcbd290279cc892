"""Block quantisation: byte codecs, quantisers, scale packing."""
