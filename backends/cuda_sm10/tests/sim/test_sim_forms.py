"""PTX forms that kernels for sm_90a and sm_100a use decode; the few that are not modelled stop with their text.

`forms.txt` covers the instruction families that compilers and hand-written kernels emit (DeepGEMM, FlashMLA, CUTLASS,
Triton); each line was accepted by ptxas. Whether forms compute right is for the other tests and bench/ptx_bitwise.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import simlib
from lanes import HEAD

REGISTERS = (
    ".reg .b32 %r<32>; .reg .b64 %rd<16>; .reg .b16 %h<16>; .reg .pred %p<8>; .reg .b128 %q<4>; .reg .b8 %b<4>; "
    ".reg .v4 .u32 %v4;\n"
)
DEVICES = {"sm_90a": simlib.SM90, "sm_100a": simlib.SM100}
UNMODELLED = {
    "tcgen05.shift.cta_group::1.down [%r0];": "tcgen05.shift",
    "tcgen05.mma.cta_group::1.kind::f16.ashift [%r0], [%r1], %rd1, %r2, %p0;": "ashift",
    "cvt.rs.f16x2.f32 %r0, %r1, %r2, %r3;": "stochastic rounding",
    "cp.async.bulk.tensor.3d.shared::cluster.global.im2col::w.mbarrier::complete_tx::bytes "
    "[%r0], [%rd0, {%r1, %r2, %r3}], [%r4], {%h0, %h1};": "im2col::w",
    "frobnicate.b32 %r0, %r1;": "unknown instruction",
}


def module(statements: str, target: str) -> simlib.Module:
    entry = ".visible .entry k(.param .align 64 .b8 p[128]) {\n"
    return simlib.Module(HEAD.format(target=target) + entry + REGISTERS + statements + "\nret; }\n", DEVICES[target])


def forms(target: str) -> list[str]:
    lines = (Path(__file__).parent / "forms.txt").read_text().splitlines()
    rows = [line.split(" | ", 1) for line in lines if line and not line.startswith("#")]
    return [text for where, text in rows if where == "both" or target.startswith(where.replace("sm", "sm_"))]


@pytest.mark.parametrize("target", list(DEVICES))
def test_known_forms_decode(target: str) -> None:
    refused = {}
    for text in forms(target):
        try:
            module(text, target).decode_all()
        except simlib.SimError as error:
            refused[text] = str(error)
    assert not refused
    assert len(forms(target)) > 250


@pytest.mark.parametrize("text", list(UNMODELLED))
def test_what_is_not_modelled_stops_with_its_text(text: str) -> None:
    with pytest.raises(simlib.SimError, match=UNMODELLED[text]) as caught:
        module(text, "sm_100a").decode_all()
    assert text.split()[0] in str(caught.value)
