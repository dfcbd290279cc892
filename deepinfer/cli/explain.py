"""`deepinfer explain OP`: candidates of an op on a device for one of its specified cases, with reasons."""

from __future__ import annotations

import argparse
from dataclasses import asdict

import torch

import deepinfer
from deepinfer.cli.output import print_json, print_table
from deepinfer.errors import invalid
from deepinfer.registry import Case, explain_call, get_spec, spec_names


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("op", nargs="?", help="op name such as flash_mla.decode; without it all ops are listed")
    parser.add_argument("--backend", help="device specification (default: the automatic choice)")
    parser.add_argument("--case", help="id of one of the op's cases; default is the first")
    parser.add_argument("--cases", action="store_true", help="list the ids of the op's cases")
    parser.add_argument("--json", action="store_true", help="print JSON")


def _case(op: str, wanted: str | None) -> Case:
    cases = list(get_spec(op).cases())
    if wanted is None:
        return cases[0]
    for case in cases:
        if case.id == wanted:
            return case
    raise invalid("--case", wanted, f"must be one of the {len(cases)} case ids of {op}", nearest=cases[0].id)


def run(options: argparse.Namespace) -> int:
    if options.op is None:
        return _list_ops(options.json)
    if options.cases:
        ids = [case.id for case in get_spec(options.op).cases()]
        print_json(ids) if options.json else print("\n".join(ids))
        return 0
    device = deepinfer.device(options.backend)
    case = _case(options.op, options.case)
    args = [device.to_device(v) if isinstance(v, torch.Tensor) else v for v in case.build().values()]
    explanation = explain_call(options.op, args, device)
    if options.json:
        verdicts = [{**asdict(v), "support": v.support.ok, "reasons": v.support.reasons} for v in explanation.verdicts]
        print_json({"op": options.op, "device": explanation.device, "case": case.id, "candidates": verdicts})
    else:
        print(f"case {case.id}\n{explanation}")
    return 0


def _list_ops(as_json: bool) -> int:
    rows = [{"op": name, "about": (get_spec(name).__doc__ or "").strip().partition("\n")[0]} for name in spec_names()]
    print_json(rows) if as_json else print_table("Ops", ["op", "about"], rows)
    return 0
