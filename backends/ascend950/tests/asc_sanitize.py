"""A pytest plugin: builds the simulator and every kernel with the address and undefined-behaviour sanitizers.

    LD_PRELOAD="$(g++ -print-file-name=libasan.so) $(g++ -print-file-name=libubsan.so)" ASAN_OPTIONS=detect_leaks=0 \\
        python -m pytest -p asc_sanitize backends/ascend950/tests/test_ep.py

Images go to a cache of their own, because flags are part of their keys. Alignment is not checked: a register seen as
another type is an access the device allows, and simulated addresses are checked by the simulator itself.
"""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

from deepinfer_ascend950.drivers import sim  # noqa: E402
from deepinfer_ascend950.toolchain import gxx, simlib  # noqa: E402

FLAGS = ("-fsanitize=address,undefined", "-fno-sanitize=alignment", "-fno-sanitize-recover=all", "-g1", "-O1")

gxx.FLAGS = (*gxx.FLAGS, *FLAGS)
simlib.FLAGS = (*simlib.FLAGS, *FLAGS)
sim.find_library = simlib._cached
