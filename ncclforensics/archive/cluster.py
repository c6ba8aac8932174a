"""Read and parse logs on a Dask cluster: each worker returns a saved run of some of them.

The work is handed to an executor of `concurrent.futures`, as which a cluster of Dask presents itself. A task that a
dying worker had is run again by another one. dask.distributed is installed by the extra `cluster`.
"""

from __future__ import annotations

import io
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future, as_completed
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from ncclforensics.archive.write import save
from ncclforensics.data.installation import install_command
from ncclforensics.errors import ForensicsError, NoInputError, UsageError
from ncclforensics.extensions.loading import load_folder, loaded_folders
from ncclforensics.frames.open_run import open_run
from ncclforensics.inputs.read_policy import ReadPolicy
from ncclforensics.inputs.rotation import stem
from ncclforensics.inputs.sources import Source, find, spool
from ncclforensics.parsing.concurrency import single_threaded
from ncclforensics.report.build import Report
from ncclforensics.report.selection import Selection

SCHEME = "dask://"
CONNECT, START = 10, 30  # seconds until a scheduler must answer, and have a worker
PARTS_PER_THREAD = 4  # of the cluster: so that no thread waits long for the last part
Part = Sequence[Source]


@contextmanager
def connected(url: str) -> Iterator[tuple[Executor, int]]:
    """An executor on the cluster of this URL (`dask://HOST:PORT`, its scheduler), and the number of its threads.

    Raises UsageError if dask.distributed is not installed, the URL is none, or no scheduler or worker answers.
    """
    if not url.startswith(SCHEME):
        raise UsageError(f"--on {url}: names no cluster; {SCHEME}HOST:PORT is the scheduler of a Dask cluster")
    try:
        from distributed import Client
    except ImportError as error:
        raise UsageError(f"--on {url}: {install_command('cluster')} installs what connects to it") from error
    try:
        client = Client(f"tcp://{url.removeprefix(SCHEME)}", timeout=CONNECT, set_as_default=False)
    except (OSError, ValueError) as error:
        raise UsageError(f"--on {url}: no scheduler of a Dask cluster answers there") from error
    with client:
        try:
            client.wait_for_workers(1, timeout=START)
        except TimeoutError as error:
            raise UsageError(f"--on {url}: the cluster has no worker after {START} s") from error
        yield client.get_executor(), max(sum(client.nthreads().values()), 1)


def read_apart(
    sources: Sequence[Source], executor: Executor, threads: int, progress: Callable[[int], None] = lambda _: None
) -> list[Source]:
    """Have logs read and parsed by an executor; they are replaced by saved runs, or have a problem.

    Saved runs, standard input and what was unpacked from archives stay as they are. Every byte is read. `progress` is
    called with the bytes that were read since the last call. Raises NoInputError if nothing could be read.
    """
    apart = [source for source in sources if _is_elsewhere(source)]
    read = [source for source in sources if not _is_elsewhere(source)]
    futures: dict[Future[bytes | str], Part] = {
        executor.submit(_read_part, [_place(source) for source in part], loaded_folders()): part
        for part in _parts(apart, threads * PARTS_PER_THREAD)
    }
    for future in as_completed(futures):
        part = futures[future]
        try:
            result = future.result()
        except Exception as error:  # of the cluster: a part whose workers died, or a worker without this program
            result = f"was not read on the cluster: {type(error).__name__}: {str(error).partition(chr(10))[0]}"
        if isinstance(result, str):
            read += [source._replace(problem=result) for source in part]
        else:
            read.append(_restored(result, part))
        progress(sum(source.size for source in part))
    if all(source.problem for source in read):
        raise NoInputError("; ".join(dict.fromkeys(f"{source.path} {source.problem}" for source in read[:3])))
    return read


def _is_elsewhere(source: Source) -> bool:
    """Whether a worker can be expected to find a source: by its path, or by its URL."""
    return not (source.saved or source.problem or source.archive or source.remote) and source.file.is_file()


def _place(source: Source) -> str:
    return str(source.file.absolute())


def _parts(sources: Sequence[Source], count: int) -> list[Part]:
    """About `count` parts of a like number of bytes; the parts of a rotated log stay together."""
    logs: dict[str, list[Source]] = {}
    for source in sources:
        logs.setdefault(stem(source.path), []).append(source)
    most = sum(source.size for source in sources) / count
    parts: list[list[Source]] = [[]]
    for log in logs.values():
        if parts[-1] and sum(source.size for source in parts[-1]) + sum(source.size for source in log) > most:
            parts.append([])
        parts[-1] += log
    return [part for part in parts if part]


def _read_part(paths: Sequence[str], rule_folders: Sequence[Path]) -> bytes | str:
    """On a worker: the saved run of some logs, with parsed frames only; or why there is none.

    `rule_folders`: those with line shapes of the user's own, which the worker loads as well. What cannot be read
    names this host: elsewhere the same path may hold the file.
    """
    import ncclforensics.analyses  # noqa: F401  # registers the analyses

    host = socket.gethostname()
    try:
        for rule_folder in rule_folders:
            load_folder(rule_folder)
        sources = [_named(source, host) for source in find(paths)]
        run = open_run(sources, ReadPolicy(full=True))
        report = Report(run, {}, Selection(), [], [])
        report.hash_inputs()
        with TemporaryDirectory(prefix="ncclforensics-") as folder:
            file = Path(folder, "part.ncclf")
            # Polars 2.1 may wait for ever when the threads of a worker group rows at the same time.
            single_threaded(partial(save, report, file, with_analyses=False))
            return file.read_bytes()
    except ForensicsError as error:
        return f"on host {host}: {error}"


def _named(source: Source, host: str) -> Source:
    return source._replace(problem=f"on host {host}: {source.problem}") if source.problem else source


def _restored(data: bytes, part: Part) -> Source:
    """The saved run that a worker returned, with the paths and the hints that the user's paths give."""
    restored = spool(io.BytesIO(data), part[0].path)
    given: Mapping[str, Source] = {_place(source): source for source in part}
    for entry in restored.saved.inputs if restored.saved else ():
        with suppress(KeyError):
            source = given[entry["path"]]
            entry["path"], entry["rank_hint"] = source.path, source.rank_hint
    return restored
