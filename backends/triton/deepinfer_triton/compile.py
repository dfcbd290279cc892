"""Triton as a compiler: a jitted function plus types becomes a module image that our own drivers load and launch.

Compiling needs no GPU. The image is one JSON line (entry name, threads, shared bytes) followed by the cubin, or by the
PTX for simulators; it is cached by `deepinfer.jit` under the hash of the function with everything it calls.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from deepinfer.errors import invalid
from deepinfer.jit import Build, CompileError

ARCHITECTURES = {"sm_90": 90, "sm_100": 100, "sm_103": 103}


@dataclass(frozen=True)
class TritonBuild:
    """One specialisation of a Triton function.

    Attributes:
        function: the `triton.jit` function.
        signature: (argument, type) in order; types as Triton spells them ("*bf16", "i32", "fp32"), no constants.
        constants: (argument, value) of the `tl.constexpr` arguments.
        divisible: arguments known to be multiples of 16 (aligned pointers, strides), which allows wide accesses.
        warps: warps per program.
        stages: software pipelining depth.
        fuse: whether products may be fused with sums.
    """

    function: Any
    signature: tuple[tuple[str, str], ...]
    constants: tuple[tuple[str, Any], ...] = ()
    divisible: frozenset[str] = frozenset()
    warps: int = 4
    stages: int = 3
    fuse: bool = True

    @property
    def name(self) -> str:
        return str(self.function.fn.__name__)

    def as_build(self, arch: str, fmt: str) -> Build:
        """The cache's view of this specialisation."""
        if arch not in ARCHITECTURES:
            raise invalid("arch", arch, f"must be one of {tuple(ARCHITECTURES)}", nearest="'sm_90'")
        text = repr((self.function.cache_key, self.signature, self.constants, sorted(self.divisible)))
        flags = (f"warps={self.warps}", f"stages={self.stages}", f"fuse={int(self.fuse)}")
        return Build(f"triton_{self.name}", text, {}, flags, arch, fmt)


@dataclass(frozen=True)
class TritonCompiler:
    """`deepinfer.jit.Compiler` for one specialisation."""

    build: TritonBuild

    def identity(self) -> str:
        return _identity()

    def compile(self, build: Build) -> tuple[bytes, str]:
        import triton
        from triton.backends.compiler import GPUTarget
        from triton.compiler import ASTSource

        what = self.build
        names = list(what.function.arg_names)
        types = {**dict(what.signature), **dict.fromkeys(dict(what.constants), "constexpr")}
        if set(types) != set(names):
            raise invalid(f"signature of {what.name}", sorted(types), f"must name exactly the arguments {names}")
        source = ASTSource(
            fn=what.function,
            signature={name: types[name] for name in names},
            constexprs={(names.index(name),): value for name, value in what.constants},
            attrs={(names.index(name),): [["tt.divisibility", 16]] for name in sorted(what.divisible)},
        )
        options = {"num_warps": what.warps, "num_stages": what.stages, "enable_fp_fusion": what.fuse}
        try:
            compiled = triton.compile(source, target=GPUTarget("cuda", ARCHITECTURES[build.arch], 32), options=options)
        except Exception as error:  # Triton raises many kinds; all mean that this source does not compile
            raise CompileError(what.name, f"triton.compile for {build.arch}", str(error)) from error
        header = {"entry": compiled.metadata.name, "threads": 32 * what.warps, "shared": compiled.metadata.shared}
        code = compiled.asm[build.fmt]
        return pack(header, code if isinstance(code, bytes) else code.encode()), ""


@lru_cache(maxsize=1)
def _identity() -> str:
    import triton

    return f"triton {triton.__version__}"


def pack(header: dict[str, Any], code: bytes) -> bytes:
    """Image bytes from header and code."""
    return json.dumps(header).encode() + b"\n" + code


def unpack(image: bytes) -> tuple[dict[str, Any], bytes]:
    """Header and code of an image."""
    head, _, code = image.partition(b"\n")
    header: dict[str, Any] = json.loads(head)
    return header, code
