"""Triton as a compiler: a jitted function plus types becomes a module image that our own drivers load and launch.

Compiling needs no GPU. The image is one JSON line (entry name, threads, shared bytes) followed by the cubin, or by the
PTX for simulators; it is cached by `deepinfer.jit` under the hash of the function with everything it calls.

Triton's stages are run one by one instead of through `triton.compile`, which always ends in ptxas (half of the time)
and keeps a second cache on disk. The stages are internal to Triton, hence its pinned version.
"""

from __future__ import annotations

import gc
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from deepinfer.errors import invalid
from deepinfer.jit import Build, CompileError

ARCHITECTURES = {"sm_90": 90, "sm_100": 100, "sm_103": 103}
FORMATS = ("ptx", "cubin")


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
        if fmt not in FORMATS:
            raise invalid("fmt", fmt, f"must be one of {FORMATS}", nearest="'ptx'")
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
        what = self.build
        names = list(what.function.arg_names)
        types = {**dict(what.signature), **dict.fromkeys(dict(what.constants), "constexpr")}
        if set(types) != set(names):
            raise invalid(f"signature of {what.name}", sorted(types), f"must name exactly the arguments {names}")
        try:
            with _no_collection():
                code, metadata = _lower(what, types, ARCHITECTURES[build.arch], build.fmt)
        except Exception as error:  # Triton raises many kinds; all mean that this source does not compile
            raise CompileError(what.name, f"Triton for {build.arch}", str(error)) from error
        header = {"entry": metadata["name"], "threads": 32 * what.warps, "shared": metadata["shared"]}
        return pack(header, code if isinstance(code, bytes) else code.encode()), ""


def _lower(what: TritonBuild, types: dict[str, str], capability: int, fmt: str) -> tuple[str | bytes, dict[str, Any]]:
    """Code in format `fmt` ("ptx", "cubin") and what Triton says of it; later stages do not run."""
    from triton._C.libtriton import ir
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource, make_backend

    names = list(what.function.arg_names)
    source = ASTSource(
        fn=what.function,
        signature={name: types[name] for name in names},
        constexprs={(names.index(name),): value for name, value in what.constants},
        attrs={(names.index(name),): [["tt.divisibility", 16]] for name in sorted(what.divisible)},
    )
    target = GPUTarget("cuda", capability, 32)
    backend = make_backend(target)
    options = backend.parse_options(
        {"num_warps": what.warps, "num_stages": what.stages, "enable_fp_fusion": what.fuse}
    )
    stages: dict[str, Any] = {}
    backend.add_stages(stages, options, source.language)
    context = ir.context()
    ir.load_dialects(context)
    backend.load_dialects(context)
    generators = backend.get_codegen_implementation(options)
    code = source.make_ir(target, options, generators, backend.get_module_map(), context)
    metadata: dict[str, Any] = {"target": target, **options.__dict__}
    for name, stage in stages.items():
        code = stage(code, metadata)
        if name == fmt:
            break
    return code, metadata


@contextmanager
def _no_collection() -> Iterator[None]:
    """Without the garbage collector, which would walk the compiler's many small objects again and again: 6 % of it."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


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
