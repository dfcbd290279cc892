"""The `deepinfer` command: one module per subcommand, rich tables for people and `--json` for programs."""
