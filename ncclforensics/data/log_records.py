"""Where collectors and exporters put a log line inside of a record: keys of its text, time, host and rank.

A key of several parts is a path through nested objects; records that an exporter has flattened hold the same parts
joined with dots. Sources: Docker's json-file driver, journald (systemd.journal-fields), Grafana Loki and logcli, Google
Cloud Logging (LogEntry), AWS CloudWatch Logs and Logs Insights, Elasticsearch and Kibana (ECS), Splunk's export, the
OpenTelemetry log data model, Azure Monitor (ContainerLogV2), Fluentd, Fluent Bit, Vector, and the JSON formatters of
Python, Go and Node.js loggers.
"""

from __future__ import annotations

Path = tuple[str, ...]

# In the order in which they are looked for: what a program printed comes before what a collector made of it.
TEXT: tuple[Path, ...] = (
    ("log",),  # Docker, Fluent Bit, Fluentd
    ("MESSAGE",),  # journald, syslog-ng
    ("line",),  # logcli
    ("@message",),  # CloudWatch Logs Insights
    ("textPayload",),  # Google Cloud Logging
    ("jsonPayload", "message"),
    ("jsonPayload", "MESSAGE"),
    ("jsonPayload", "log"),
    ("jsonPayload", "msg"),
    ("_source", "event", "original"),  # Elasticsearch
    ("_source", "message"),
    ("_source", "log"),
    ("_source", "@message"),
    ("fields", "message"),  # Kibana
    ("result", "_raw"),  # Splunk
    ("_raw",),
    ("event", "original"),  # ECS
    ("message",),
    ("msg",),
    ("LogMessage",),  # Azure Monitor
    ("LogEntry",),
    ("body", "stringValue"),  # OpenTelemetry
    ("body",),
    ("Body",),
    ("attributes", "message"),  # Datadog
    ("event",),  # structlog
    ("text",),
    ("data",),
)
# Where loggers (zap, logr, zerolog, structlog) put the error that a message is about; it stands behind the message.
MESSAGES: tuple[Path, ...] = (("msg",), ("message",), ("event",))
ERRORS: tuple[Path, ...] = (("error",), ("err",))
# Where loggers (Python's, zap, zerolog) put the traceback of an exception; its lines stand below the message.
TRACEBACKS: tuple[Path, ...] = (
    ("exc_info",), ("exception",), ("exc_text",), ("stack_trace",), ("stacktrace",), ("traceback",),
)  # fmt: skip
TIME: tuple[Path, ...] = (
    ("time",),
    ("@timestamp",),
    ("timestamp",),
    ("__REALTIME_TIMESTAMP",),  # microseconds
    ("_source", "@timestamp"),
    ("fields", "@timestamp"),
    ("result", "_time"),
    ("_time",),
    ("ts",),
    ("timeUnixNano",),
    ("Timestamp",),
    ("TimeGenerated",),
    ("attributes", "timestamp"),
    ("asctime",),
    ("date",),
    ("datetime",),
    ("eventTime",),
    ("record", "time", "repr"),  # loguru
)
NODE: tuple[Path, ...] = (
    ("_HOSTNAME",),
    ("kubernetes", "pod_name"),
    ("kubernetes", "pod", "name"),
    ("labels", "pod"),
    ("labels", "instance"),
    ("labels", "host"),
    ("labels", "hostname"),
    ("resource", "labels", "pod_name"),
    ("_source", "kubernetes", "pod_name"),
    ("_source", "kubernetes", "pod", "name"),
    ("_source", "host", "name"),
    ("pod",),
    ("pod_name",),
    ("PodName",),
    ("host", "name"),
    ("hostname",),
    ("host",),
    ("node",),
    ("nodename",),
)
RANK: tuple[Path, ...] = (("global_rank",), ("rank",), ("RANK",), ("labels", "rank"), ("extra", "rank"))
# A text alone is data; a record of a log says at least when, how bad, or from which stream.
COMPANIONS = frozenset(
    {
        "stream", "level", "severity", "levelname", "log_level", "lvl", "loglevel", "PRIORITY", "labels", "kubernetes",
        "logger", "source", "_source", "insertId", "ingestionTime", "container", "pod", "tag", "LogLevel",
        "severityText", "severityNumber", "offset", "preview", "pri", "logStreamName", "eventId",
    }
)  # fmt: skip

# The driver that writes long lines in pieces, of which only the last one ends with a line feed.
IN_PIECES: Path = ("log",)

# Column names of exports as CSV, in lower case.
TEXT_COLUMNS = (
    "@message",
    "message",
    "line",
    "log",
    "_raw",
    "textpayload",
    "logmessage",
    "logentry",
    "body",
    "content",
)
TIME_COLUMNS = (
    "@timestamp", "timestamp", "time", "tsns", "_time", "date", "datetime", "timegenerated", "ts",
)  # fmt: skip
NODE_COLUMNS = ("pod", "pod_name", "host", "hostname", "node", "podname", "kubernetes.pod_name")
DELIMITERS = (",", ";", "\t")

# In events of NVSentinel and of Azure: what a line with one states stands in the event, not in the text of the record.
EVENTS = ('"entitiesImpacted":', '"ResourceType":"VirtualMachine"')

# Keys of objects that are no records of a log although they have keys of one: the events of RAS's monitor.
OTHER_OBJECTS = (b'"nvml_devs"', b'"cuda_devs"')
