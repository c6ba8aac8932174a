"""Objects in object stores and on web servers (`s3://`, `gs://`, `az://`, `https://`, `http://`), read by ranges.

`hang` needs the two ends of each log. They are fetched when the objects are found, many at once, because a request
takes 20 ms and not 20 us, and are kept compressed: 10 KB for a log of NCCL's calls. What lies between them is read when
it is asked for. Requests are made by obstore, which retries them; it is installed by the extra `remote`.
"""

from __future__ import annotations

import errno
import io
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import timedelta
from fnmatch import fnmatchcase
from functools import partial
from typing import TYPE_CHECKING, Any
from urllib.parse import SplitResult, urlsplit

import zstandard

from ncclforensics.data.installation import install_command
from ncclforensics.errors import UsageError
from ncclforensics.inputs.held_ends import HeldEnds

if TYPE_CHECKING:
    from obstore.store import ObjectStore

WEB = ("https", "http")
SCHEMES = (*WEB, "s3", "gs", "az")
SMALL = 256 << 10  # bytes; an object up to this size is fetched in one request
HEAD, TAIL = 128 << 10, 68 << 10  # bytes fetched of a longer one: what the first windows of a log need
AT_ONCE = 64  # requests
READ_AHEAD = 1 << 20  # bytes; between the two ends, no request is for less
WILDCARDS = "*?["
CLIENT: dict[str, Any] = {"allow_http": True, "connect_timeout": "5s", "timeout": "60s"}
RETRIES: dict[str, Any] = {"max_retries": 4, "retry_timeout": timedelta(seconds=30)}
CREDENTIALS = {
    "s3": "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_SKIP_SIGNATURE=true for a public bucket",
    "gs": "set GOOGLE_APPLICATION_CREDENTIALS, or GOOGLE_SKIP_SIGNATURE=true for a public bucket",
    "az": "set AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY, or AZURE_SKIP_SIGNATURE=true for public data",
}
# Without credentials, obstore asks the virtual machine for some.
ASKED_FOR_CREDENTIALS = ("169.254.169.254", "metadata.google.internal", "Account must be specified")
# What an error of obstore contains -> what to say. Its text holds the URL of the request, which may be signed.
REASONS = {
    "NoSuchBucket": "the bucket does not exist",
    "ContainerNotFound": "the container does not exist",
    "SlowDown": "the server asks for fewer requests",
    "operation timed out": "the server did not answer in time",
    "kind: Timeout": "the server did not answer in time",
    "error sending request": "the server was not reached",
}
STATUS = "status code: "


class RemoteError(OSError):
    """A request failed; the message has no URL."""

    def __init__(self, reason: str) -> None:
        super().__init__(errno.EIO, reason)


def is_remote(path: str) -> bool:
    """Whether a path is a URL that is read over the network."""
    scheme, separator, _ = path.partition("://")
    return bool(separator) and scheme in SCHEMES


def without_secrets(path: str) -> str:
    """A URL without user, password, query and fragment, which may hold a signature; any other path as it is."""
    if not is_remote(path):
        return path
    scheme, _, rest = path.partition("://")
    host, slash, place = rest.partition("/")
    if scheme in WEB:
        host, place = host.partition("?")[0], place.partition("?")[0].partition("#")[0]
    return f"{scheme}://{host.rpartition('@')[2]}{slash}{place}"


@dataclass(slots=True)
class RemoteObject:
    """One object: its URL as it is shown, its size, and its two ends; or why it cannot be read."""

    url: str
    size: int = 0  # bytes
    problem: str = ""
    store: ObjectStore | None = None
    key: str = ""
    ends: tuple[bytes, bytes] = field(default=(b"", b""), repr=False)  # compressed; the second is empty where all is in

    def open(self) -> io.BufferedReader:
        """Its bytes, as they are stored. Reading raises RemoteError."""
        return io.BufferedReader(_Stream(self), READ_AHEAD)

    def read(self, start: int, stop: int) -> bytes:
        """Fetch some bytes. Raises RemoteError."""
        import obstore

        if self.store is None:
            raise RemoteError(self.problem)
        try:
            return bytes(obstore.get_range(self.store, self.key, start=start, end=stop))
        except Exception as error:
            raise RemoteError(_reason(error, self.url)) from None  # its text holds the URL


class _Stream(HeldEnds):
    def __init__(self, remote: RemoteObject) -> None:
        head, tail = map(zstandard.decompress, remote.ends) if remote.size else (b"", b"")
        super().__init__(remote.size, head, tail)
        self._remote = remote

    def _between(self, start: int, stop: int) -> bytes:
        """Bytes over the network. Raises RemoteError."""
        return self._remote.read(start, stop)


def find_objects(path: str) -> list[RemoteObject]:
    """The objects that a URL names: one, or those below a folder (`s3://bucket/job/`) or of a pattern (`job/*.log`).

    Of an object that cannot be read, `problem` says why. Raises UsageError if obstore is not installed.
    """
    try:
        import obstore  # noqa: F401
    except ImportError as error:
        raise UsageError(f"{without_secrets(path)}: {install_command('remote')} installs what reads it") from error
    shown = without_secrets(path)
    try:
        url = urlsplit(path)
        store = _store(url, path)
        if url.scheme in WEB:  # the URL of a web server is that of the object, with its query
            return [_fetched(RemoteObject(shown, store=store))]
        return _below(url, shown, store)
    except Exception as error:
        return [RemoteObject(shown, problem=f"cannot be read: {_reason(error, shown)}")]


def _below(url: SplitResult, shown: str, store: ObjectStore) -> list[RemoteObject]:
    """The objects of a bucket whose key is that of the URL, begins with it as a folder, or matches it as a pattern."""
    key = _key(url).lstrip("/")
    bucket = f"{url.scheme}://{url.netloc}/"
    is_pattern = any(character in key for character in WILDCARDS)
    if not is_pattern and key and not key.endswith("/"):
        found = _fetched(RemoteObject(shown, store=store, key=key))
        if found.problem != "does not exist":
            return [found]
    first = min((key.find(character) for character in WILDCARDS if character in key), default=len(key))
    folder = key[: key.rfind("/", 0, first) + 1] if is_pattern else key
    objects = [
        RemoteObject(bucket + entry["path"], entry["size"], store=store, key=entry["path"])
        for entry in _listed(store, folder)
        if not is_pattern or fnmatchcase(entry["path"], key)
    ]
    if not objects:
        return [RemoteObject(shown, problem="does not exist")]
    with ThreadPoolExecutor(min(AT_ONCE, len(objects))) as pool:
        return list(pool.map(_fetched, sorted(objects, key=lambda found: found.key)))


def _listed(store: ObjectStore, folder: str) -> Iterator[Any]:
    """Size and path of each object in a folder and the folders in it, without hidden ones."""
    import obstore

    for page in obstore.list(store, folder.rstrip("/") or None):
        for entry in page:
            if not any(part.startswith(".") for part in entry["path"].removeprefix(folder).split("/")):
                yield entry


def _fetched(found: RemoteObject) -> RemoteObject:
    """The object with its size and its ends, or with a problem."""
    try:
        head, found.size = _head(found)
        tail = found.read(max(len(head), found.size - TAIL), found.size) if len(head) < found.size else b""
    except FileNotFoundError:
        found.problem = "does not exist"
    except Exception as error:
        found.problem = f"cannot be read: {_reason(error, found.url)}"
    else:
        found.ends = zstandard.compress(head, 1), zstandard.compress(tail, 1)
    return found


def _head(found: RemoteObject) -> tuple[bytes, int]:
    """The beginning of an object, and the size of all of it."""
    import obstore

    store = found.store
    assert store is not None
    # A request for a range states the size, too; a signature for GET does not permit HEAD.
    fetch = partial(obstore.get, store, found.key)
    try:
        result = fetch(options={"range": (0, SMALL if found.size <= SMALL else HEAD)})
    except obstore.exceptions.GenericError as error:
        if f"{STATUS}416" not in str(error):
            raise
        result = fetch()  # of an empty object, no range can be satisfied
    return bytes(result.bytes()), int(result.meta["size"])


def _key(url: SplitResult) -> str:
    """The key of an object in a bucket: a `?` in it begins no query."""
    return url.path + (f"?{url.query}" if url.query else "") + (f"#{url.fragment}" if url.fragment else "")


def _store(url: SplitResult, path: str) -> ObjectStore:
    """The store of a URL; credentials, region and endpoint come from the variables of its vendor."""
    from obstore.store import AzureStore, GCSStore, HTTPStore, S3Store

    options: dict[str, Any] = {"client_options": CLIENT, "retry_config": RETRIES}
    if url.scheme in WEB:
        return HTTPStore(path, **options)
    if url.scheme == "s3":
        return S3Store(url.netloc, **options)
    return GCSStore(url.netloc, **options) if url.scheme == "gs" else AzureStore(url.netloc, **options)


def _reason(error: Exception, url: str) -> str:
    """Why a request for a URL failed, in a few words."""
    if isinstance(error, RemoteError):
        return str(error.strerror)
    text = str(error)
    if isinstance(error, FileNotFoundError):
        return "it does not exist"
    if isinstance(error, ValueError):
        return "it is no URL"
    if type(error).__name__ == "NotSupportedError":
        return "the server does not answer requests for a range of bytes; download it first"
    scheme = url.partition("://")[0]
    if scheme in CREDENTIALS and any(mark in text for mark in ASKED_FOR_CREDENTIALS):
        return f"no credentials were found: {CREDENTIALS[scheme]}"
    for mark, reason in REASONS.items():
        if mark in text:
            return reason
    if STATUS in text:
        status = text.partition(STATUS)[2].partition("\n")[0].partition(":")[0][:40]
        refused = "; check the credentials, or the signature of the URL" if status[:3] in ("401", "403") else ""
        return f"the server answered {status}{refused}"
    return f"the request failed ({type(error).__name__})"
