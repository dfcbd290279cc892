"""Compares the Triton small ops with their specifications on a GPU: every quick case that a Triton kernel takes.

    PYTHONPATH=.:backends/cpu:backends/cuda_sm10:backends/triton python bench/triton_smoke.py
"""

from __future__ import annotations

import torch
from deepinfer_cuda.plugin import create

import deepinfer
from deepinfer.conformance.compare import close
from deepinfer.registry import Op, all_specs
from deepinfer.registry.dispatch import make_call
from deepinfer.registry.kernels import candidates


def main() -> int:
    deepinfer.register_backend("cuda", create)
    device = deepinfer.set_backend("cuda:0")
    failures = 0
    for spec in all_specs():
        kernels = [c for c in candidates(device, spec.name) if c.name.startswith("triton_")]
        taken = failed = 0
        for case in spec.cases() if kernels else ():
            if "quick" not in case.tags:
                continue
            args = case.build()
            moved = [device.to_device(v) if isinstance(v, torch.Tensor) else v for v in args.values()]
            call = make_call(spec, moved, (None,) * len(spec.returns), device.torch_device)
            if not any(c.supports(device.props, call) for c in kernels):
                continue
            taken += 1
            results = Op(spec)(*moved)
            masks = spec.valid(args)
            for name, got, want, mask in zip(spec.returns, results, spec.reference(args), masks, strict=True):
                problems = close(name, device.to_host(got), want, spec.tolerance(args, name), mask)
                failed += bool(problems)
                if problems and failed < 4:
                    print(spec.name, case.id, problems)
        if kernels:
            print(f"{spec.name}: {taken} cases on Triton, {failed} failed")
        failures += failed
    return int(failures > 0)


if __name__ == "__main__":
    raise SystemExit(main())
