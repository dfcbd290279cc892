"""Every Triton kernel compiles for SM90 and SM100 without a GPU, and states its launch completely.

One case of each op is compiled; what a launch consists of is checked with a device that records launches.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from deepinfer_triton import kernels
from deepinfer_triton.code import TritonCode
from deepinfer_triton.compile import TritonCompiler, unpack
from deepinfer_triton.kernel import GRID_LIMIT, UNALIGNED, Program, TritonKernel, specialise

from deepinfer.errors import InvalidArgument
from deepinfer.hal import Arg, DeviceProps, DriverKind
from deepinfer.jit import CompileError
from deepinfer.registry import Call, Case, get_spec
from deepinfer.registry.dispatch import make_call

pytest.importorskip("triton", reason="the compiler is an optional dependency")
PROPS = {arch: DeviceProps(name="test", arch=arch, kind=DriverKind.SIMULATOR) for arch in ("sm_90", "sm_100", "sm_80")}
KERNELS = [kernel for kernel in kernels() if isinstance(kernel, TritonKernel)]
IDS = [str(kernel.name) for kernel in KERNELS]


def call_of(case: Case) -> tuple[Call, dict[str, Any]]:
    spec, args = get_spec(case.op), case.build()
    values = [args[param.name] for param in spec.params]
    return make_call(spec, values, (None,) * len(spec.returns), torch.device("cpu")), args


def quick_cases(kernel: TritonKernel) -> list[Case]:
    return [case for case in get_spec(str(kernel.op)).cases() if "quick" in case.tags]


def test_the_package_covers_the_small_ops() -> None:
    assert sorted(str(kernel.op) for kernel in KERNELS) == [
        "deep_ep.expert_layout", "deep_ep.reduce", "deep_ep.send_plan", "deep_gmm.group_rows",
        "flash_mla.kv_cache_read", "flash_mla.kv_cache_write", "flash_mla.merge_states", "moe.route",
        "moe.swiglu_quantize", "norm.fused_add_rms_norm", "norm.rms_norm", "quant.dequantize", "quant.pack_scales",
        "quant.quantize_fp8", "quant.quantize_mxfp4", "rope.apply", "sampling.apply_token_mask",
    ]


@pytest.mark.parametrize("kernel", KERNELS, ids=IDS)
def test_compiles_for_both_architectures(kernel: TritonKernel) -> None:
    case = next(case for case in quick_cases(kernel)[::-1] if kernel.programs(call_of(case)[0]))
    for program in kernel.programs(call_of(case)[0]):
        build = specialise(call_of(case)[0], program)
        for arch in ("sm_90", "sm_100"):
            header, code = unpack(TritonCompiler(build).compile(build.as_build(arch, "ptx"))[0])
            assert header["threads"] == 32 * program.warps
            assert f".entry {header['entry']}".encode() in code
            assert f".target {arch}a".encode() in code


@pytest.mark.parametrize("kernel", KERNELS, ids=IDS)
def test_every_quick_case_is_taken_and_its_launch_fits(kernel: TritonKernel) -> None:
    spec = get_spec(str(kernel.op))
    known = {param.name for param in spec.params} | set(spec.returns)
    for case in quick_cases(kernel):
        call, args = call_of(case)
        assert kernel.supports(PROPS["sm_90"], call), case.id
        for program in kernel.programs(call):
            assert 0 <= program.grid <= GRID_LIMIT, case.id
            assert set(program.tensors) <= known, case.id
            build = specialise(call, program)
            named = {name for name, _ in build.signature} | {name for name, _ in build.constants}
            assert named == set(build.function.arg_names), case.id
        nothing = all(isinstance(v, torch.Tensor) and v.numel() == 0 for v in [args[spec.params[0].name]])
        assert kernel.programs(call) or nothing or 0 in [meta.numel for meta in spec.outputs(call)] or not spec.returns


@pytest.mark.parametrize("kernel", KERNELS, ids=IDS)
def test_other_architectures_are_refused_by_name(kernel: TritonKernel) -> None:
    reasons = kernel.supports(PROPS["sm_80"], call_of(quick_cases(kernel)[0])[0]).reasons
    assert any("sm_80" in reason and "sm_90" in reason for reason in reasons)


class Recorder:
    """Stands where an executable stands and keeps what is launched."""

    def __init__(self) -> None:
        self.prepared: list[tuple[str, tuple[int, int, int], tuple[int, int, int], list[Arg], int]] = []
        self.enqueued = 0

    def prepare(self, name: str, grid: Any, block: Any, args: list[Arg], *, smem_bytes: int = 0) -> Any:
        self.prepared.append((name, grid, block, args, smem_bytes))

        def enqueue(stream: object) -> None:
            self.enqueued += 1

        return enqueue


def test_launches_are_prepared_once_per_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = Recorder()
    code = TritonCode(recorder, "rms_norm", 128, 16)  # type: ignore[arg-type]
    monkeypatch.setattr("deepinfer_triton.kernel.load", lambda device, build: code)
    kernel = next(kernel for kernel in KERNELS if kernel.name == "triton_rms_norm")
    x, weight, y = torch.ones(5, 64), torch.ones(64), torch.empty(5, 64)
    spec = get_spec("norm.rms_norm")
    plan = kernel.plan(None, make_call(spec, (x, weight, 1e-6), (y,), x.device))  # type: ignore[arg-type]
    for target in (y, y, torch.empty_like(y)):
        kernel.run(plan, None, (x, weight, 1e-6), (target,), None)  # type: ignore[arg-type]
    assert recorder.enqueued == 3
    assert len(recorder.prepared) == 2
    name, grid, block, args, shared = recorder.prepared[0]
    assert (name, grid, block, shared) == ("rms_norm", (1, 1, 1), (128, 1, 1), 16)
    pointers = [arg.span.base for arg in args if arg.span]
    assert pointers == [x.data_ptr(), weight.data_ptr(), y.data_ptr()]
    assert [arg.span.writable for arg in args if arg.span] == [False, False, True]
    assert [len(arg.value) for arg in args[3:]] == [4, 4, 4, 4, 8, 8]  # stride, rows, d, eps, two scratch pointers


def test_strided_inputs_are_taken_or_refused_by_name() -> None:
    norm = next(kernel for kernel in KERNELS if kernel.name == "triton_rms_norm")
    spec = get_spec("norm.rms_norm")
    wide = torch.ones(4, 6, 128)
    taken = make_call(spec, (wide[:, :, :64], torch.ones(64), 1e-6), (None,), wide.device)
    refused = make_call(spec, (wide[:, :3], torch.ones(128), 1e-6), (None,), wide.device)
    assert norm.supports(PROPS["sm_90"], taken)
    assert any(reason.startswith("x needs rows") for reason in norm.supports(PROPS["sm_90"], refused).reasons)


def test_a_signature_must_name_every_argument() -> None:
    case = quick_cases(KERNELS[IDS.index("triton_rms_norm")])[0]
    program = Program("norm.rms_norm", 1, ("x", "weight", "y"), {"stride": 1}, {"ROWS": 1, "BLOCK": 64})
    build = specialise(call_of(case)[0], program)
    with pytest.raises(InvalidArgument, match="signature of rms_norm"):
        TritonCompiler(build).compile(build.as_build("sm_90", "ptx"))


def test_ptx_is_made_without_the_assembler(monkeypatch: pytest.MonkeyPatch) -> None:
    from triton.backends.nvidia.compiler import CUDABackend

    def assemble(*args: object) -> bytes:
        raise RuntimeError("the assembler ran")

    monkeypatch.setattr(CUDABackend, "make_cubin", assemble)
    kernel = KERNELS[IDS.index("triton_rms_norm")]
    call = call_of(quick_cases(kernel)[0])[0]
    build = specialise(call, kernel.programs(call)[0])
    assert b".entry" in TritonCompiler(build).compile(build.as_build("sm_90", "ptx"))[0]
    with pytest.raises(CompileError, match="the assembler ran"):
        TritonCompiler(build).compile(build.as_build("sm_90", "cubin"))
    with pytest.raises(InvalidArgument, match="fmt"):
        build.as_build("sm_90", "elf")


def test_counts_do_not_split_kernels() -> None:
    """A batch of 16 rows runs the code of one of 17; a row of 64 values is not one of 65."""
    kernel, spec = KERNELS[IDS.index("triton_rms_norm")], get_spec("norm.rms_norm")

    def build(rows: int, d: int) -> object:
        call = make_call(spec, (torch.ones(rows, d), torch.ones(d), 1e-6), (None,), torch.device("cpu"))
        return specialise(call, kernel.programs(call)[0])

    assert build(16, 64) == build(17, 64)
    assert build(16, 64) != build(16, 65)
    calls = [(kernel, call_of(case)[0]) for kernel in KERNELS for case in quick_cases(kernel)]
    known = {label for kernel, call in calls for program in kernel.programs(call) for label in program.numbers}
    assert known >= UNALIGNED


def builds(op: str, *args: Any) -> list[Any]:
    kernel, spec = next(one for one in KERNELS if one.op == op), get_spec(op)
    call = make_call(spec, args, (None,) * len(spec.returns), torch.device("cpu"))
    return [(program.general, specialise(call, program)) for program in kernel.programs(call)]


def test_layouts_without_wide_accesses_share_one_form() -> None:
    """Whatever the number of blocks, of matrices, and the strides: one compilation per type and block."""
    made = [
        torch.randn(40, 390)[:, ::2], torch.randn(3, 7, 200, dtype=torch.float32), torch.randn(300, 33).T,
        torch.randn(16, 512)[:, ::2], torch.randn(1, 1000),
    ]
    found = [builds("quant.quantize_fp8", x, (1, 32), "f32", floor)[0] for x in made for floor in (0.0, 1e-4)]
    assert all(general for general, _ in found)
    assert len({build for _, build in found}) == 1
    caches = [torch.zeros(9, page, 576, dtype=torch.bfloat16) for page in (1, 3, 48)]
    rows, slots = torch.randn(5, 576, dtype=torch.bfloat16), torch.arange(5)
    pages = [builds("flash_mla.kv_cache_write", cache, rows, slots, "bf16")[0] for cache in caches]
    assert len({build for _, build in pages}) == 1
    assert not any(general for general, _ in pages)


@pytest.mark.parametrize("tokens", [1, 7, 4096])
def test_layouts_of_models_keep_forms_of_their_own(tokens: int) -> None:
    """Rows of widths that models have are compiled with what is known of them, for few and for many tokens."""
    for width in (512, 1536, 2112, 7168):
        x = torch.empty(tokens, width, dtype=torch.bfloat16)
        padded = torch.empty(tokens, width + 64, dtype=torch.bfloat16)[:, :width]
        for rows in (x, padded, torch.empty(2, tokens, width, dtype=torch.bfloat16)):
            calls = [
                builds("norm.rms_norm", rows, torch.ones(width, dtype=torch.bfloat16), 1e-6),
                builds("quant.quantize_fp8", rows, (1, 128), "f32", 1e-4),
                builds("quant.quantize_fp8", rows, (128, 128), "ue8m0", 1e-4),
                builds("quant.quantize_mxfp4", rows, (1, 32)),
            ]
            assert not any(general for call in calls for general, _ in call), (width, rows.stride())
    cache = torch.zeros(tokens, 64, 656, dtype=torch.uint8)
    rows, slots = torch.empty(tokens, 576, dtype=torch.bfloat16), torch.arange(tokens)
    general, build = builds("flash_mla.kv_cache_write", cache, rows, slots, "v32_fp8")[0]
    assert not general
    assert dict(build.constants)["page"] == 64
