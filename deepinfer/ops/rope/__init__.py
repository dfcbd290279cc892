"""Rotary position embedding and its tables."""
