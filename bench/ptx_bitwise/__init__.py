"""The same sm_90a PTX on an H200 and in the simulator: cases, both sides, and the rows that say where their bits agree.

A case is one PTX module with fixed inputs; whatever it writes is compared. Cases are generated per instruction (tables
of forms with special and random operands) or are whole kernels. See docs/design/0005-ptx-simulator.md.
"""
