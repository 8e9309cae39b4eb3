"""Many compiles in parallel processes."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait

from fa_triton.compile.variant import KernelVariant, VariantResult, compile_variant

Job = tuple[KernelVariant, str]


def compile_all(
    jobs: Sequence[Job],
    workers: int,
    on_done: Callable[[VariantResult], None] = lambda result: None,
) -> list[VariantResult]:
    """Compile variants for their targets.

    Args:
        jobs: Pairs of variant and target name.
        workers: Processes; 1 compiles in this one.
        on_done: Called in this process after each, in the order they finish.

    Returns:
        Results in the order of ``jobs``.

    Raises:
        ValueError: ``workers`` is not positive.
    """
    if workers < 1:
        raise ValueError(f"`jobs` must be at least 1, got {workers}")
    results: list[VariantResult | None] = [None] * len(jobs)
    for position, result in _run(jobs, min(workers, len(jobs))):
        results[position] = result
        on_done(result)
    return [result for result in results if result is not None]


def _run(jobs: Sequence[Job], workers: int) -> Iterator[tuple[int, VariantResult]]:
    if workers <= 1:
        for position, (variant, name) in enumerate(jobs):
            yield position, compile_variant(variant, name)
        return
    # Fresh processes: forking one that has loaded LLVM and thread pools is not safe.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, mp_context=context) as pool:
        running: dict[Future[VariantResult], int] = {
            pool.submit(compile_variant, variant, name): position
            for position, (variant, name) in enumerate(jobs)
        }
        try:
            while running:
                finished, _ = wait(running, return_when=FIRST_COMPLETED)
                for future in finished:
                    yield running.pop(future), future.result()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
