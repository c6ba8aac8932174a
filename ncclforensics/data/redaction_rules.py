"""Redaction: which names and tokens are secret, and which hosts, paths and users are common enough to stay.

Which columns hold hosts, identifiers and secrets is declared by the formats.
"""

# Words in the name of a variable whose value is a secret (as in GitHub's and Gitleaks' generic rules).
SECRET_WORDS = (
    "SECRET", "SECRETS", "TOKEN", "TOKENS", "PASSWORD", "PASSWD", "PASSPHRASE", "CREDENTIAL", "CREDENTIALS", "KEY",
    "APIKEY", "AUTH", "AUTHORIZATION", "COOKIE", "BEARER", "PRIVATE", "SIGNATURE", "SAS", "DSN",
)  # fmt: skip
# The first characters of tokens that are secret under any name: GitHub, Hugging Face, OpenAI, AWS,
# Slack, GitLab, Google, NVIDIA NGC, JSON Web Tokens.
SECRET_BEGINNINGS = (
    "ghp_", "gho_", "ghs_", "github_pat_", "hf_", "sk-", "AKIA", "ASIA", "xoxb-", "xoxp-", "glpat-", "AIza", "nvapi-",
    "eyJhbGci",
)  # fmt: skip
PLAIN_NUMBER = 6  # digits; a shorter number is no secret, whatever the variable's name

EVERYWHERE = ("localhost", "localhost.localdomain", "master", "unknown", "none")  # host names that identify no host

# Folders that every machine has; and files and libraries that a reader needs to see to find the fault.
SYSTEM_PATHS = ("/dev/", "/sys/", "/proc/", "/etc/nccl", "/etc/libibverbs", "/var/run/nvidia", "/run/nvidia", "/path/")
COMMON_FOLDERS = (
    ".", "..", "~", "bin", "data", "dist-packages", "etc", "home", "include", "lib", "lib64", "local", "log", "logs",
    "mnt", "opt", "root", "run", "scratch", "share", "site-packages", "srv", "tmp", "Users", "usr", "var",
    "x86_64-linux-gnu", "aarch64-linux-gnu", "python3.10", "python3.11", "python3.12", "python3.13",
)  # fmt: skip
HOMES = ("home", "Users")
COMMON_USERS = ("root", "ubuntu", "nobody", "nvidia")
COMMON_FILES = (
    ".nccl.conf",
    "nccl.conf",
    "libnccl",
    "librccl",
    "libibverbs",
    "libmlx",
    "libcuda",
    "libnvidia",
    "libfabric",
    "libefa",
    "libc.so",
)
LONGEST_SUFFIX = 5  # characters; a longer suffix of a file name is not kept
