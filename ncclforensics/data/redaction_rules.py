"""What tells who somebody is, and what may stay because it tells nobody."""

# Words of a variable's name behind which a secret stands (as GitHub's and Gitleaks' generic rules have them).
SECRET_WORDS = (
    "SECRET", "SECRETS", "TOKEN", "TOKENS", "PASSWORD", "PASSWD", "PASSPHRASE", "CREDENTIAL", "CREDENTIALS", "KEY",
    "APIKEY", "AUTH", "AUTHORIZATION", "COOKIE", "BEARER", "PRIVATE", "SIGNATURE", "SAS", "DSN",
)  # fmt: skip
# How tokens of well-known services begin, whatever stands in front of them: GitHub, Hugging Face, OpenAI, AWS, Slack,
# GitLab, Google, NVIDIA NGC, JSON Web Tokens.
SECRET_BEGINNINGS = (
    "ghp_", "gho_", "ghs_", "github_pat_", "hf_", "sk-", "AKIA", "ASIA", "xoxb-", "xoxp-", "glpat-", "AIza", "nvapi-",
    "eyJhbGci",
)  # fmt: skip
PLAIN_NUMBER = 6  # digits from which a number behind such a name may be a secret

# Columns that hold a host's name by another base than HOSTNAME: `node`, in these grammars.
GRAMMARS_OF_NODES = ("job", "inspector", "ras")
NO_HOSTS = ("hca",)  # a device, by the base HOSTNAME
EVERYWHERE = ("localhost", "localhost.localdomain", "master", "unknown", "none")  # names of hosts that are nobody's

# Folders that every machine has, and the beginnings of libraries that say what is wrong.
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
LONGEST_SUFFIX = 5  # characters of a file's suffix, which is kept
