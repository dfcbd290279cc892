"""Deep EP: expert-parallel dispatch and combine."""
