"""Small ops in Triton, a library that accelerator backends may use. Importing it needs no triton."""
