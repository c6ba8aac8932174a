"""What leaves the house tells nobody's name, and says the same."""

from __future__ import annotations

import ipaddress
import json
import re
import stat
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ncclforensics import analyze, cli
from ncclforensics.report import redacted_run, redaction
from ncclforensics.report.build import Report
from ncclforensics.report.marked_names import is_secret
from ncclforensics.report.pseudonyms import REMOVED, Pseudonyms
from ncclforensics.views import json_report, text_report
from tests.incidents import ALL, INCIDENTS, Incident, answer

SAMPLE = [incident for number, incident in enumerate(ALL) if number % 30 == 0]
ADDRESS = re.compile(r"(?<![0-9A-Za-z.])(?:[0-9]{1,3}\.){3}[0-9]{1,3}(?![0-9A-Za-z.])")
PRIVATE = st.integers(0, 2**24 - 1).map(lambda number: ipaddress.IPv4Address(10 << 24 | number))


def known() -> Pseudonyms:
    return Pseudonyms(b"a key")


def holds(text: str, name: str) -> bool:
    """Whether a name stands in a text, as a word or a part of one."""
    return re.search(rf"(?<![0-9A-Za-z]){re.escape(name)}(?![0-9A-Za-z])", text) is not None


def originals(report: Report, folder: Path) -> set[str]:
    """Hosts, as the frames have them, and addresses and names of files, as the files have them."""
    hosts = {str(name) for name in report.run["process"]["host"].cast(str).drop_nulls()}
    hosts |= {str(name) for name in report.run["rank"]["host"].cast(str).drop_nulls()}
    text = "".join(path.read_text(encoding="utf-8", errors="replace") for path in folder.rglob("*.log"))
    addresses = {ipaddress.ip_address(found) for found in ADDRESS.findall(text) if _is_address(found)}
    kept = {each for each in addresses if each.is_loopback or each.is_unspecified or each.is_multicast}
    files = {path.name for path in folder.rglob("*.log") if not re.fullmatch("[a-z]+|rank[0-9]+", path.stem)}
    return {*hosts - {"localhost"}, *map(str, addresses - kept), *files}


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def diagnosis(report: dict[str, Any]) -> dict[str, Any]:
    """All that a report says in words that are its own."""
    said = ("rule", "category", "severity", "certainty", "ranks", "communicator", "role")
    findings = [
        {name: finding[name] for name in said}
        | {"lines": [line["line"] for line in finding["evidence"]], "hosts": len(finding["hosts"])}
        for finding in report["findings"]
    ]
    hang = {name: value for name, value in report["hang"].items() if name not in ("reason", "collect_next")}
    calls = [{**call, "path": None} for call in hang["last_operations"]]
    chain = [{**link, "text": None, "path": None} for link in hang["chain"]]
    explanations = [
        {**one, "hosts": len(one["hosts"]), "contradicted_by": [line["line"] for line in one["contradicted_by"]]}
        for one in hang["explanations"]
    ]
    unexplained = [(failure["rank"], failure["line"]) for failure in hang["unexplained"]]
    hang |= {"explanations": explanations, "unexplained": unexplained}
    return {"findings": findings, **hang, "last_operations": calls, "chain": chain, "not_shown": report["not_shown"]}


@pytest.mark.parametrize("incident", SAMPLE, ids=lambda incident: incident.name)
def test_a_redacted_report_has_the_same_findings_and_no_names(incident: Incident) -> None:
    shown = answer(incident)
    names = originals(shown.report, incident.folder)

    leaving = redacted_run.redact(shown.report, redaction.assign_pseudonyms(shown.report.run))
    data = json_report.json(leaving).decode()
    text = text_report.text(leaving, width=250, verbose=True) + text_report.text(leaving, width=250, everything=True)

    assert diagnosis(json.loads(data)) == diagnosis(shown.json)
    assert [name for name in sorted(names) if holds(data, name) or holds(text, name)] == []


def test_hosts_are_numbered_in_the_order_of_ranks() -> None:
    report = answer(Incident(INCIDENTS / "one-rank-stops-before-an-allreduce")).report
    leaving = redacted_run.redact(report, redaction.assign_pseudonyms(report.run))

    ranks = leaving.run["rank"].sort("rank")
    assert ranks["host"].cast(str).to_list() == ["host-01"] * 8 + ["host-02"] * 8
    assert (
        leaving.findings[0].title
        == "rank 11 on host-02 never called AllReduce #13 (1,179,648 x bfloat16, sum) of ranks 8-11"
    )


def test_lines_reread_for_evidence_are_redacted() -> None:
    report = analyze([str(INCIDENTS / "one-rank-stops-before-an-allreduce" / "*.log")])
    leaving = redacted_run.redact(report, redaction.assign_pseudonyms(report.run))

    assert report.run.quote([(0, 1)])[0, 1][1].startswith("gpu-node-00:")
    assert leaving.run.quote([(0, 1)])[0, 1][1].startswith("host-01:")


@given(PRIVATE, PRIVATE)
def test_addresses_of_one_network_share_a_network_after_redaction(one: Any, other: Any) -> None:
    names = known()
    a, b = (ipaddress.ip_address(names.text(str(each))) for each in (one, other))

    def common(x: Any, y: Any) -> int:
        return 32 - (int(x) ^ int(y)).bit_length()

    assert common(a, b) == common(one, other)
    assert a in ipaddress.ip_network("10.0.0.0/8")


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("127.0.0.1 0.0.0.0 ::1", True),
        ("fe80::5c3a:11ff:fe22:3344", False),
        ("::ffff:10.1.2.3", False),
        ("fe80:0000:0000:0000:5c3a:11ff:fe22:3344", False),
        ("5c:3a:11:22:33:44", False),
        ("506b:4b03:00a1:b2c3", False),
        ("2.27.7+cuda12.4 at 11:04:57 on 0000:5d:00.0, std::vector", True),
        ("NET/IB/0/GDRDMA P2P/CUMEM transport/net_ib.cc:910 (socketProgress)", True),
        ("key 0 color 1, NCCL_IB_PKEY set to 3; PAGER=less monkey=banana key=0", True),
        ("files of /sys: /dev/shm/nccl-Xq8LzA /sys/class/net/eth0/speed /proc/cpuinfo", True),
    ],
)
def test_identifying_text_is_replaced_and_other_text_stays(text: str, kept: bool) -> None:
    assert (known().text(text) == text) is kept


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("lost 10.87.133.201-10.87.133.209 behind *10.87.133.201*", "87.133"),
        ("node_10.87.133.201_rank3 10.87.133.201->10.87.133.202 10.87.133.201#29500", "87.133"),
        ("ip-10-87-133-201 does not answer", "87-133"),
        ("0xfe80000000000000bada5503009d1c37 fe80000000000000bada5503009d1c37", "9d1c37"),
        ("bada.5537.9d1c enxbada55379d1c", "9d1c"),
        ("Device Serial Number ba-da-55-03-00-9d-1c-37", "9d-1c"),
        ("[SN] Serial number: MT2130X09D1C", "X09D1C"),
        ("board_serial_number: MT2130X09D1C; MT2130X09D1C is lost", "X09D1C"),
        ("Serial Number                         : 1652523012345", "1652523012345"),
        (r"C:\Users\quagga\x.py", "quagga"),
        ("~quagga/x.py", "quagga"),
        ("~quagga/okapi.py", "okapi"),
        ("session opened for user quagga(uid=1000)", "quagga"),
        ("Accepted publickey for quagga from 10.1.2.3 port 22", "quagga"),
        ("sudo[12]:   quagga : TTY=pts/0", "quagga"),
        ("quagga+hpc@okapi.com", "quagga"),
        ("arn:aws:s3:::oryx-models/ibex.pt", "oryx"),
        ("arn:aws:iam::734991270011:role/okapi-train", "734991270011"),
        ("S3_BUCKET=oryx-models, and oryx-models is empty", "oryx"),
        ("Job <73499127> is submitted, 73499127", "73499127"),
        ("raysubmit_kuduKudu73499127", "kuduKudu"),
        ("JobId=73499127 JobName=okapi-sft", "okapi"),
        ("srun --job-name=okapi-sft", "okapi"),
        ("zebra.c.okapi-project.internal h7.okapi.xyz x_h7.okapi.com", "okapi"),
        ("quagga@zebra07:~/run$ ls, as quagga", "quagga"),
        ("[quagga@zebra07 run]$ ls on zebra07", "zebra07"),
        ("-rw-r--r-- 1 quagga okapi 123 Mar 2 11:04 model.pt", "quagga"),
        ("drwxr-xr-x 3 quagga okapi 4096 Mar 2 11:04 okapi", "okapi"),
        ("quagga  41887  99.0  1.2 123456 7890 ?  Rl  11:04  12:34 python", "quagga"),
        ("wandb: Currently logged in as: quagga (okapi). okapi/quagga", "quagga"),
        ("owner: quagga, and quagga.", "quagga"),
        ("UserId=quagga(1000) GroupId=okapi(1000), okapi", "okapi"),
        ("Partition=okapi Account=kudu, kudu of okapi", "okapi"),
        ("  wandb_exp_name .......................... okapi-sft", "okapi"),
        ("--experiment-name okapi-sft", "okapi"),
        ("pod/okapi-worker-3 is evicted", "okapi"),
        ("MASTER_ADDR=zebra, zebra does not answer", "zebra"),
        ("HOSTNAME: zebra07 is zebra07", "zebra"),
        ("--rdzv_endpoint=zebra07:29500", "zebra"),
        ("Nodes zebra[03-04] are ready for job", "zebra"),
        ("ssh: Could not resolve hostname zebra: Name or service not known", "zebra"),
        ("Warning: Permanently added 'zebra,10.0.0.3' (ECDSA)", "zebra"),
        ("Linux zebra 5.15.0-91-generic #101-Ubuntu SMP", "zebra"),
        ("failed to connect to [zebra]:29500 (errno: 110)", "zebra"),
        ("the node zebra07 is lost, zebra07", "zebra"),
        ("connect to zebra07:29500", "zebra"),
        ("2026-03-02T11:04:57+00:00 zebra07 dockerd[1]: x", "zebra"),
        ("i-0bada5503009d1c37", "9d1c37"),
        ("da:55:37:9d:1c:10.87.133.201 and 5503:009d:1c37", "9d:1c"),
        ("da:55:37:9d:1c:10.87.133.201", "133.201"),
        ("--10.87.133.201:29500", "133.201"),
        ("./okapi/train.py ../okapi okapi/model.safetensors", "okapi"),
        ("NET//scratch/okapi/train.py", "okapi"),
        ("account_id: 734991270011", "734991270011"),
        ("User quagga logged in", "quagga"),
        ('logged in as user "quagga"', "quagga"),
        ("docker run --user quagga", "quagga"),
        ("sacct -X -u quagga -j 73499127", "quagga"),
        ("sacct -X -u quagga -j 73499127", "73499127"),
        ("sudo -u quagga python", "quagga"),
        ("su - quagga -c python", "quagga"),
        ("chown -R quagga:okapi /data", "okapi"),
        ("scp -r run quagga@zebra:/data", "quagga"),
        ("Reason=bad ib [quagga@2026-03-02T11:04:57]", "quagga"),
        ("Signed-off-by: Quagga Okapi <q@example.org>", "Okapi"),
        ("#SBATCH -A okapi", "okapi"),
        ("#PBS -N okapi-sft", "okapi"),
        ("#BSUB -G okapi", "okapi"),
        ("sbatch --parsable -A okapi run.sh", "okapi"),
        ('{"user":"kudu","team":"okapi"}', "okapi"),
        ("Experiment with name 'okapi' does not exist", "okapi"),
        ("git clone git@github.com:okapi/ibex.git", "okapi"),
        ("Cloning into 'okapi'...", "okapi"),
        ("Pulling from okapi/ibex", "ibex"),
        ("pulled registry.kudu.com/okapi/ibex:1.2", "ibex"),
        ("docker run --gpus all --name okapi-train", "okapi"),
        ("--model_name_or_path okapi/ibex-7b", "ibex"),
        ("kubectl -n okapi get pods", "okapi"),
        ("kubectl exec -it okapi-worker-0 -- bash", "okapi"),
        ("Pod kudu-0 in namespace okapi", "okapi"),
        ("conda activate okapi", "okapi"),
        ("(okapi) [quagga@zebra01 ~]$ ls", "okapi"),
        ("gcloud config set project okapi-123", "okapi"),
        ("Bucket okapi-models not found", "okapi"),
        ("PING zebra01 (10.1.2.3) 56(84) bytes of data.", "zebra"),
        ("fatal: [zebra01]: UNREACHABLE!", "zebra"),
        ("zebra01 | CHANGED | rc=0 >>", "zebra"),
        ("rank 0 on zebra01", "zebra"),
        ("deepspeed --include zebra01:0,1", "zebra"),
        ("worker zebra01_41887_0 lost", "zebra"),
        ("docker run --hostname zebra", "zebra"),
    ],
)
def test_names_are_found_by_their_form(text: str, name: str) -> None:
    assert name in text
    assert name not in known().text(text)


@pytest.mark.parametrize(
    "text",
    [
        "libfabric-1.22.0.1 and 12.8.0.57rc1, driver 570.86.15, mlx5_0 fw 28.41.1000",
        "Serial Number : N/A, serial: off",
        "bucket_cap_mb=25, bucket=3, BUCKET_SIZE=64",
        "docker run -u 1000:1000 image; Bearer token",
        "waiting for user input, ~12 s",
        "torch.distributed.elastic.agent.server.api a.self.test nn.functional.at",
        "host memory, the node is down, on node 3, node: 0, server rank3:29500, [cuda0:1234]",
        "partition: gpu, queue: default, user: unknown, project: none, owner: root, cluster: compute",
        "11:04:57:12 0000:5d:00.0 libnccl-2.27.7.1 step-100.pt file-1.2.3.4",
        "NET/IB/0/GDRDMA transport/net_ib.cc:910 P2P/CUMEM/read",
        "image nvcr.io/nvidia/pytorch:24.05-py3, see docs.nvidia.com/deeplearning/nccl",
        "the user is not root; user defined function; rank 0 on the host; Connection to server lost",
        "model parallel, model: default, image 3/4, model torch/nn, in namespace default, exec -it bash",
    ],
)
def test_what_only_looks_like_a_name_stays(text: str) -> None:
    assert known().text(text) == text


def test_a_name_that_one_line_marks_is_replaced_in_all_others(tmp_path: Path) -> None:
    logs = INCIDENTS / "one-rank-stops-before-an-allreduce"
    marked = "Partition=okapi\nquagga@zebra:~$ ls\nmail to kudu@lemur.ibexes.de\n"
    (tmp_path / "other.log").write_text(marked, encoding="utf-8")

    names = redaction.assign_pseudonyms(analyze([str(logs / "*.log"), str(tmp_path)]).run)

    left = names.text("quagga and kudu lost okapi, zebra, lemur of ibexes").split()
    assert left == ["user-01", "and", "user-02", "lost", "name-01,", "host-03,", "host-04", "of", "site-01"]


def test_a_domain_makes_no_ordinary_word_a_name() -> None:
    names = known()

    assert names.text("see model.okapi-3.com and x7.info of model.ckpt-28252.pt") == (
        "see host-01.domain-01 and host-02.info of model.ckpt-28252.pt"
    )
    assert names.text("the model, www.com, logger.info") == "the model, host-03.com, logger.info"


def test_the_cluster_in_the_name_of_a_host_is_replaced_and_a_word_of_machines_is_not() -> None:
    names = known()
    names.host("zebra-gpu-node-07")

    assert (
        names.text("zebra-login: a GPU of a gpu node, zebra-gpu-node-07")
        == "cluster-01-login: a GPU of a gpu node, host-01"
    )


def test_a_gid_follows_the_replacement_of_its_address() -> None:
    names = known()

    assert names.text("::ffff:10.1.2.3") == f"::ffff:{names.text('10.1.2.3')}"
    assert names.text("fe80::5c3a:11ff:fe22:3344").startswith("fe80::")


def test_paths_are_replaced_folder_by_folder() -> None:
    names = known()

    text = names.text('File "/home/alice/acme/train.py", line 3: alice wrote /home/alice/acme/data.bin')
    assert text == 'File "/home/user-01/dir-01/file-001.py", line 3: user-01 wrote /home/user-01/dir-01/file-002.bin'
    assert names.text("/opt/acme/lib/libnccl-net.so") == "/opt/dir-01/lib/libnccl-net.so"


@pytest.mark.parametrize(
    "text",
    [
        "WANDB_API_KEY=0123abcd0123abcd",
        '"AWS_SECRET_ACCESS_KEY": "0123abcd/0123abcd+0123abcd"',
        "+ export DB_PASSWORD='0123abcd'",
        "Authorization: Bearer 0123abcd",
        "env: HF_TOKEN=0123abcd PATH=/usr/bin",
        "cloning with ghp_0123abcd",
        "dckr_pat_0123abcd sk_live_0123abcd ghu_0123abcd",
        "SG.0123abcd0123abcd.0123abcd0123abcd",
        "eyJraWQiOiJrdWR1In0.eyJzdWIiOiJrdWR1In0.0123abcd",
        "ssh-ed25519 AAAAC3NzaC1lZDI1NTE50123abcd",
        "-----BEGIN OPENSSH PRIVATE KEY-----0123abcd",
        "curl -u alice:0123abcd -H 'Bearer 0123abcd'",
        "machine api.wandb.ai login user password 0123abcd",
        "wandb: 0123abcd0123abcd0123abcd0123abcd0123abcd",
    ],
)
def test_secrets_are_removed(text: str) -> None:
    assert "0123abcd" not in known().text(text)


@pytest.mark.parametrize("secret", ["0123abcd/0123abcd==", "0123abcd=x", "0123abcd;0123abcd", "0123abcd 0123abcd"])
def test_a_known_secret_is_removed_whatever_its_signs(secret: str) -> None:
    names = known()
    names.set(secret, REMOVED)

    assert "0123abcd" not in names.text(f"{secret} is refused, as {secret}")


def test_the_name_of_a_variable_decides_whether_its_value_is_secret() -> None:
    assert is_secret("MY_TOKEN", "abc")
    assert not is_secret("NCCL_IB_PKEY", "3")
    assert not is_secret("key", "0")


def test_a_host_with_and_without_its_domain_is_one_host() -> None:
    names = known()

    assert names.host("gpu7") == "host-01"
    assert names.host("gpu7.cluster.example") == "host-01.domain-01"
    assert names.text("from gpu7.other.example, gpu7-ib0, gpu7a") == "from host-01.domain-02, host-01-ib0, gpu7a"


@pytest.mark.parametrize(
    ("text", "redacted"),
    [
        ("see http://wiki. It says", "see http://host-01. It says"),
        ("tcp://node7.okapi.de.:29500", "tcp://host-01.domain-01.:29500"),
        ("https://.x/ a :: b", "https://.host-01/ a :: b"),
        ("https://... and https://:80", "https://... and https://:80"),
    ],
)
def test_a_dot_at_either_end_of_a_host_is_no_part_of_its_name(text: str, redacted: str) -> None:
    assert known().text(text) == redacted


@given(
    st.lists(st.sampled_from([*"a:=@/.,-_%\"' ", "://", "::", "x.de", "gpu7", "KEY", "[1-3]", "/home/bo"]), max_size=16)
)
def test_any_text_is_redacted_without_an_error(pieces: list[str]) -> None:
    names = known()
    names.host("gpu7")

    names.text("".join(pieces))

    assert "" not in names.names
    assert "gpu7" not in names.text(" gpu7 ")


@pytest.mark.one_in(3)
@pytest.mark.parametrize("piece", ["a", "a-", "a.", "gpu-", "a+"])
def test_a_text_of_one_long_word_is_redacted_at_a_glance(piece: str) -> None:
    """A search that tries every place of the word to its end would take an hour."""
    names = known()
    names.host("gpu-7")
    names.set("a-" * 5000 + "b", "[removed]")

    assert names.text(piece * (1 << 17) + " gpu-7") == piece * (1 << 17) + " host-01"
    assert names.text("x" + "a-" * 5000 + "b") == "x[removed]"


def test_hosts_that_are_numbered_as_known_ones_are_hosts() -> None:
    names = known()
    names.host("node012")

    assert names.text("node013:29500, node[013-127,130], node7b") == "host-02:29500, hosts-01, node7b"


def test_the_map_file_is_private_and_is_extended(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mapping = tmp_path / "map.json"
    logs = str(INCIDENTS / "one-rank-stops-before-an-allreduce" / "*.log")
    wanted = ["hang", logs, "-q", "--redact-map", str(mapping)]

    assert cli.main(wanted) == 1
    first, kept = capsys.readouterr().out, json.loads(mapping.read_bytes())
    assert cli.main([*wanted, "-v", "--host", "gpu-node-01"]) == 1

    assert stat.S_IMODE(mapping.stat().st_mode) == 0o600
    assert kept["names"]["gpu-node-01"] == "host-02"
    assert json.loads(mapping.read_bytes()) == kept
    assert "rank 11 on host-02 never called" in first
    assert "ranks 8-15  host-02  " in capsys.readouterr().out


def test_a_malformed_map_file_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "map.json").write_text('{"key": 7}', encoding="utf-8")

    assert cli.main(["hang", str(INCIDENTS / "init-only"), "-q", "--redact-map", str(tmp_path / "map.json")]) == 2
    assert "not a pseudonym map" in capsys.readouterr().err


def test_the_html_page_and_its_command_are_redacted(tmp_path: Path) -> None:
    page, note = tmp_path / "page.md", tmp_path / "note.md"
    note.write_text("gpu-node-01 was slow", encoding="utf-8")
    logs = str(INCIDENTS / "one-rank-stops-before-an-allreduce")

    cli.main(["report", logs, "-q", "--redact", "-o", str(page), "--note", str(note), "--title", "on gpu-node-00"])

    text = page.read_text(encoding="utf-8")
    assert text.startswith("## ncclforensics: on host-01\n\nhost-02 was slow")
    assert "gpu-node" not in text
    assert "nccl_rank" not in text


def test_what_came_through_a_pipe_is_searched_for_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "copy.log"
    data = (INCIDENTS / "one-rank-stops-before-an-allreduce" / "nccl_rank11.log").read_text(encoding="utf-8")
    log.write_text("cd /home/emmanoether/run\n" + data + "owner: emmanoether\n", encoding="utf-8")
    with open(log, encoding="utf-8") as stdin:
        monkeypatch.setattr("sys.stdin", stdin)
        code = cli.main(["hang", "-", "--redact", "-v"])

    output = capsys.readouterr()
    assert (code, output.err) == (cli.Exit.UNDECIDABLE, "")
    assert "emmanoether" not in output.out
    assert "UNDECIDABLE" in output.out


def test_hosts_that_only_a_tool_of_the_fabric_names_are_redacted_in_titles() -> None:
    report = answer(Incident(INCIDENTS / "links-below-what-they-could-do")).report

    redacted = redacted_run.redact(report, redaction.assign_pseudonyms(report.run))

    assert any("node-a" in finding.title for finding in report.findings)
    assert not any("node-a" in finding.title for finding in redacted.findings)
