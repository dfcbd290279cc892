"""Compile many kernels ahead of use, in parallel, naming each as it is done."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass

from deepinfer.jit.build import Build, Compiled, Compiler
from deepinfer.jit.cache import BuildCache


@dataclass(frozen=True)
class Progress:
    """One finished kernel of a warm-up."""

    name: str
    cached: bool
    done: int
    total: int


def warmup(
    cache: BuildCache,
    builds: Sequence[Build],
    compiler: Compiler,
    *,
    jobs: int = 2,
    report: Callable[[Progress], None] | None = None,
) -> list[Compiled]:
    """Make sure every build is cached; returns the images in the order given.

    All builds are tried; the first error is raised after the others have finished, so one broken kernel does not
    cost the rest. Compilers release the interpreter lock, so threads suffice.
    """
    with ThreadPoolExecutor(max(jobs, 1)) as pool:
        futures = {pool.submit(cache.get, build, compiler): index for index, build in enumerate(builds)}
        results: dict[int, Compiled] = {}
        errors: list[BaseException] = []
        for done, future in enumerate(as_completed(futures), start=1):
            index = futures[future]
            error = future.exception()
            if error is not None:
                errors.append(error)
                continue
            results[index] = future.result()
            if report is not None:
                report(Progress(builds[index].name, results[index].cached, done, len(builds)))
    if errors:
        raise errors[0]
    return [results[index] for index in range(len(builds))]
