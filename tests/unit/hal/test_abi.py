"""driver.h, its ctypes mirror and the Python Driver protocol say the same thing."""

from __future__ import annotations

import ctypes as ct
import inspect
import re
import subprocess
from pathlib import Path

import pytest

from deepinfer.hal import cabi_types
from deepinfer.hal.driver import Driver
from deepinfer.hal.types import Cap, CopyKind, DriverKind, Status

ROOT = Path(__file__).resolve().parents[3]
HEADER = ROOT / "include/deepinfer/driver.h"
STRUCTS = {
    "di_probe": cabi_types.CProbe,
    "di_device_props": cabi_types.CDeviceProps,
    "di_arg": cabi_types.CArg,
    "di_dim3": cabi_types.CDim3,
    "di_driver": cabi_types.CDriverTable,
}


def _compiled_layout(tmp_path: Path) -> dict[str, dict[str, int]]:
    lines = ["#include <stdio.h>", '#include "deepinfer/driver.h"', "int main(void) {"]
    for name, struct in STRUCTS.items():
        lines.append(f'printf("{name} sizeof %zu\\n", sizeof({name}));')
        lines += [f'printf("{name} {f[0]} %zu\\n", offsetof({name}, {f[0]}));' for f in struct._fields_]
    source, binary = tmp_path / "layout.c", tmp_path / "layout"
    source.write_text("\n".join([*lines, "return 0; }"]))
    subprocess.run(["gcc", f"-I{ROOT / 'include'}", str(source), "-o", str(binary)], check=True)
    found: dict[str, dict[str, int]] = {}
    for line in subprocess.run([str(binary)], check=True, capture_output=True, text=True).stdout.splitlines():
        struct_name, field, value = line.split()
        found.setdefault(struct_name, {})[field] = int(value)
    return found


def test_ctypes_structs_have_the_layout_of_the_header(tmp_path: Path) -> None:
    layout = _compiled_layout(tmp_path)
    for name, struct in STRUCTS.items():
        assert layout[name]["sizeof"] == ct.sizeof(struct), name
        for field in struct._fields_:
            assert layout[name][field[0]] == getattr(struct, field[0]).offset, (name, field[0])


def _table_functions() -> list[str]:
    text = HEADER.read_text()
    body = text[text.index("typedef struct di_driver {") : text.index("} di_driver;")]
    return re.findall(r"\(\*(\w+)\)", body)


def test_protocol_and_mirror_have_the_functions_of_the_table_in_order() -> None:
    functions = _table_functions()
    assert functions == [name for name, _ in cabi_types.FUNCTIONS]
    methods = [name for name, value in vars(Driver).items() if inspect.isfunction(value) and not name.startswith("_")]
    assert ["last_error", *methods] == functions


@pytest.mark.parametrize(
    ("prefix", "enum"),
    [("DI_CAP_", Cap), ("DI_KIND_", DriverKind), ("DI_COPY_", CopyKind), ("DI_", Status)],
)
def test_enums_have_the_values_of_the_header(prefix: str, enum: type) -> None:
    block = {"DI_CAP_": "di_cap", "DI_KIND_": "di_kind", "DI_COPY_": "di_copy", "DI_": "di_status"}[prefix]
    text = HEADER.read_text()
    body = re.search(rf"typedef enum {block} \{{(.*?)\}} {block};", text, re.S)
    assert body
    found = dict(re.findall(rf"{prefix}(\w+) = (\d+)", body.group(1)))
    assert {name: int(value) for name, value in found.items()} == {m.name: m.value for m in enum}


def test_abi_version_agrees_with_the_header() -> None:
    text = (ROOT / "include/deepinfer/version.h").read_text()
    assert f"DI_ABI_MAJOR {cabi_types.ABI_MAJOR}" in text
    assert f"DI_ABI_MINOR {cabi_types.ABI_MINOR}" in text
