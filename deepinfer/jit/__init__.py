"""Content-addressed build cache for kernels, shared by every backend that compiles at run time.

A backend describes a build (`Build`), provides a compiler, and gets bytes. What decides the bytes - source, headers,
flags, compiler version, architecture - is the key; paths, times and users are not, so a cache can be copied, shipped
read-only, and shared by many processes.
"""

from deepinfer.jit.build import Build, Compiled, CompileError, Compiler
from deepinfer.jit.cache import BuildCache, CompileForbidden
from deepinfer.jit.warmup import Progress, warmup

__all__ = ["Build", "BuildCache", "CompileError", "CompileForbidden", "Compiled", "Compiler", "Progress", "warmup"]
