"""Elementwise cases from a table: one line per family of instruction forms, expanded to one kernel per form.

A line is `PATTERN : INPUTS -> OUTPUT`. PATTERN may hold {a,b} alternatives; T in the signature is the last type of the
form; a signature token is a PTX type or a range of values.py. Operands are written in PTX order; a PATTERN with an
explicit operand list (%d, %a, %b, ...) is taken as it is.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from ptx_bitwise import values
from ptx_bitwise.case import HEAD, Buffer, Case, poisoned

THREADS = 256
NAMES = "abcefg"


def expand(pattern: str) -> Iterator[str]:
    """All choices of {x,y} groups; an empty choice removes a preceding dot that would dangle."""
    found = re.search(r"\{([^{}%]*)\}", pattern)
    if not found:
        yield re.sub(r"\.(?=[\s.;,]|$)", "", pattern).strip()
        return
    for choice in found.group(1).split(","):
        yield from expand(pattern[: found.start()] + choice.strip() + pattern[found.end() :])


def register(token: str) -> int:
    return max(values.bits(token), 16)


def kernel(body: str, ins: list[str], out: str, declare: str = "") -> str:
    """A module whose thread i reads element i of each input into %a, %b, ... and stores %d as element i."""
    names = NAMES[: len(ins)]
    params = ", ".join(f".param .u64 p{i}" for i in range(len(ins) + 1))
    lines = [
        HEAD,
        f".visible .entry k({params})",
        "{",
        ".reg .b64 %p, %x, %y;",
        ".reg .b32 %t, %u, %v;",
        ".reg .pred %q, %r;",
        ".reg .b16 %rh, %rl;",
    ]
    lines += [f".reg .b{register(token)} %{name}; .reg .b64 %p{name};" for name, token in zip(names, ins, strict=True)]
    lines += [f".reg .b{register(out) if values.bits(out) > 8 else 32} %d;", declare]
    lines += ["mov.u32 %t, %ctaid.x;", "mov.u32 %u, %ntid.x;", "mov.u32 %v, %tid.x;", "mad.lo.u32 %t, %t, %u, %v;"]
    for index, (name, token) in enumerate(zip(names, ins, strict=True)):
        width = max(values.bits(token), 8)
        lines += [f"ld.param.u64 %p{name}, [p{index}];", f"mad.wide.u32 %p{name}, %t, {width // 8}, %p{name};"]
        lines.append(f"ld.global.b{width} %{name}, [%p{name}];")
    width = 32 if values.bits(out) <= 8 else values.bits(out)
    lines += [body, f"ld.param.u64 %p, [p{len(ins)}];", f"mad.wide.u32 %p, %t, {width // 8}, %p;"]
    lines += [f"st.global.b{width} [%p], %d;", "ret;", "}"]
    return "\n".join(lines) + "\n"


def case(form: str, body: str, ins: list[str], out: str, family: str, declare: str = "", writes: str = "") -> Case:
    """`form` names the case; inputs in `writes` or that the body writes through %pa, %pb, ... are outputs too."""
    data = values.operands(ins, form)
    rule = "bits"
    if ".approx" in form or ".full" in form:
        # rcp and rsqrt .approx.ftz.f64 give the upper word of a double
        upper = "h" if form.endswith("approx.ftz.f64") else ""
        rule = "ulp:" + (out[:-2] if out.endswith("x2") else out) + upper
    width = values.dtype(out) if values.bits(out) > 8 else values.dtype("u32")
    args = (
        *(
            Buffer(v, name in writes or bool(re.search(rf"(st|atom|red)\.[^;]*\[%p{name}", body)))
            for v, name in zip(data, NAMES, strict=False)
        ),
        Buffer(poisoned(values.COUNT, width), out=True),
    )
    blocks = values.COUNT // THREADS
    helpers = {"setp", "selp", "mov", "and", "cvt", "add", "sub", "shl"}
    names = [part.split(" ")[0] for part in form.split("; ")]
    instruction = next((n for n in names if n.split(".")[0].lstrip("@") not in helpers), names[0])
    return Case(
        f"{family}/{form}",
        instruction,
        kernel(body, ins, out, declare),
        args,
        (blocks, 1, 1),
        (THREADS, 1, 1),
        rule=rule,
        family=family,
    )


def _types(form: str) -> list[str]:
    """Types in the first mnemonic that has any."""
    for word in form.split(" "):
        found = [p for p in word.split(".")[1:] if re.fullmatch(r"[usfb]\d+(x2)?|bf16(x2)?|tf32|u?e\dm\dx2", p)]
        if found:
            return found
    return ["b32"]


def table(text: str, family: str) -> Iterator[Case]:
    """Cases of a whole table; lines starting with # are comments."""
    for line in text.strip().splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        pattern, _, signature = line.rpartition(" : ")
        inputs, _, result = signature.partition("->")
        for form in expand(pattern):
            kind = _types(form)[-1]
            first = _types(form)[0]
            tokens = [{"T": kind, "F": first, "nz#T": f"nz#{kind}"}.get(t, t) for t in inputs.split()]
            out = {"T": kind, "F": first}.get(result.strip(), result.strip())
            operands = ", ".join(f"%{name}" for name in NAMES[: len(tokens)])
            form = re.sub(r"\.T ", f".{first} ", form)
            body = f"{form};" if "%" in form else f"{form} %d, {operands};"
            label = form if "%" not in form else re.sub(r"%", "", form)
            yield case(label, body, tokens, out, family)
