"""Redaction: which names and tokens are secret, and which hosts, paths and users are common enough to stay.

Which columns hold hosts, identifiers and secrets is declared by the formats.
"""

# Words in the name of a variable whose value is a secret (as in GitHub's and Gitleaks' generic rules).
SECRET_WORDS = (
    "SECRET", "SECRETS", "TOKEN", "TOKENS", "PASSWORD", "PASSWD", "PASSPHRASE", "PASS", "PASSCODE", "CREDENTIAL",
    "CREDENTIALS", "CRED", "CREDS", "KEY", "APIKEY", "AUTH", "AUTHORIZATION", "COOKIE", "BEARER", "PRIVATE",
    "SIGNATURE", "SIG", "SAS", "DSN",
)  # fmt: skip
# Words that make a name secret wherever they stand in it: `PGPASSWORD`, `githubtoken`.
SECRET_PARTS = ("SECRET", "PASSWORD", "PASSWD", "CREDENTIAL", "APIKEY", "ACCESSKEY", "AUTHTOKEN")
# Parts of names of variables that a capture does not write down, whatever their value.
UNWRITTEN_PARTS = ("CRED", "AUTH", "PASS", "TOKEN", "KEY", "SECRET", "COOKIE", "SIGNATURE")
# The first characters of tokens that are secret under any name: GitHub, Hugging Face, OpenAI, AWS,
# Slack, GitLab, Google, NVIDIA NGC, npm, PyPI, Docker, Stripe; JSON Web Tokens and keys of SSH, which are Base64.
SECRET_BEGINNINGS = (
    "ghp_", "gho_", "ghs_", "ghu_", "ghr_", "github_pat_", "hf_", "api_org_", "sk-", "AKIA", "ASIA", "xoxb-", "xoxp-",
    "xoxa-", "xoxe.", "xoxe-", "xoxs-", "xapp-", "glpat-", "gldt-", "glrt-", "AIza", "ya29.", "nvapi-", "npm_",
    "pypi-AgE", "dckr_pat_", "sk_live_", "sk_test_", "eyJ", "AAAAB3NzaC1", "AAAAC3NzaC1", "AAAAE2VjZHNh",
)  # fmt: skip
PLAIN_NUMBER = 6  # digits; a shorter number is no secret, whatever the variable's name

# Variables whose value is the name of a user or of an account, and those whose value is the number or name of a job:
# of Slurm, PBS, LSF, Flux, SGE, torchrun, SkyPilot and the shell.
USER_VARIABLES = (
    "USER", "LOGNAME", "USERNAME", "SUDO_USER", "SLURM_JOB_USER", "SLURM_JOB_ACCOUNT", "PBS_O_LOGNAME", "LSB_SUB_USER",
    "LSFUSER", "JUPYTERHUB_USER", "NB_USER", "WANDB_ENTITY", "WANDB_USERNAME", "HF_USERNAME",
)  # fmt: skip
JOB_VARIABLES = (
    "SLURM_JOB_ID", "SLURM_JOBID", "SLURM_JOB_NAME", "SLURM_ARRAY_JOB_ID", "PBS_JOBID", "PBS_JOBNAME", "LSB_JOBID",
    "LSB_JOBNAME", "FLUX_JOB_ID", "JOB_ID", "JOB_NAME", "JOBID", "JOBNAME", "TORCHELASTIC_RUN_ID", "RDZV_ID", "RUN_ID",
    "RUN_NAME", "JobId", "JobName", "WANDB_PROJECT", "WANDB_NAME", "WANDB_RUN_ID", "SKYPILOT_TASK_ID",
)  # fmt: skip
# Commands of schedulers that take users and numbers of jobs.
JOB_COMMANDS = (
    "squeue", "sacct", "scancel", "scontrol", "sstat", "sprio", "sshare", "bjobs", "bkill", "bhist", "qstat", "qdel",
)  # fmt: skip

# Labels, of variables too, whose value is the name of a host, of a user, or of what a job belongs to.
HOST_LABELS = (
    "hostname", "host", "master addr", "master host", "node name", "node list", "nodename", "slurm_job_nodelist",
    "slurm_nodelist", "slurmd_nodename", "slurm_submit_host", "pbs_o_host", "horovod_hostname", "kubernetes_node",
    "batch host", "rdzv endpoint", "ray address", "ray_address", "host list", "node ip", "lsb_hosts",
)  # fmt: skip
USER_LABELS = ("user", "user name", "login", "owner", "job_owner", "whoami", "submitted by", "logged in as", "author")
PROJECT_LABELS = (
    "job name", "run name", "exp name", "experiment name", "project name", "pod name", "cluster name", "container name",
    "tenant name", "run group", "project", "namespace", "wandb project", "wandb entity", "wandb name", "wandb group",
    "wandb exp name", "partition", "account", "account name", "storage account", "entity", "aws profile", "queue",
    "cluster", "working_cluster", "conda_default_env", "team", "tenant", "organization", "organisation", "customer",
    "experiment", "project id", "qos", "reservation", "resource group", "model name", "dataset", "dataset name",
)  # fmt: skip
# The same where the value may be of two parts: whose it is, and its name.
REPOSITORY_LABELS = (
    "model name or path",
    "model name",
    "model",
    "dataset",
    "image",
    "repo id",
    "hf_repo",
    "push_to_hub",
)
# Words of queues, containers and operations that no rule's page holds; as a name they identify nothing.
ORDINARY_WORDS = (
    "batch", "cloud", "common", "compute", "computes", "dev", "false", "gpus", "head", "high", "infra", "interactive",
    "kube", "large", "login", "long", "main", "null", "pool", "prod", "production", "public", "rack", "shared", "short",
    "site", "small", "srun", "staging", "standard", "svc", "system", "test", "testing", "tree", "true", "unset", "work",
)  # fmt: skip
SHORTEST_SERIAL = 6  # characters; a shorter number may be any
SHORTEST_FAMILY = 3  # characters before the number in names of hosts: hosts of one family are numbered
SHORTEST_STEM = 4  # letters of a word in the name of a host that is replaced wherever it stands
EVERYWHERE = ("localhost", "localhost.localdomain", "master", "unknown", "none")  # host names that identify no host
# What numbers of ranks and devices stand behind: if hosts are called so, others with a number may be no hosts.
NO_FAMILIES = ("rank", "cuda", "eth", "mlx5_", "cpu", "numa", "job", "step")
NO_HOSTS = (
    *NO_FAMILIES,
    "gpu",
    "nic",
    "channel",
    "version",
    "python",
    "torch",
    "nccl",
    "tcp",
    "ipv",
    "port",
    "pid",
    "line",
    "task",
)

# Folders that every machine has; and files and libraries that a reader needs to see to find the fault.
SYSTEM_PATHS = ("/dev/", "/sys/", "/proc/", "/etc/nccl", "/etc/libibverbs", "/var/run/nvidia", "/run/nvidia", "/path/")
COMMON_FOLDERS = (
    ".", "..", "~", "bin", "data", "dist-packages", "etc", "home", "homes", "include", "lib", "lib64", "local", "log",
    "logs", "mnt", "opt", "root", "run", "scratch", "share", "site-packages", "srv", "tmp", "Users", "users", "usr",
    "var", "x86_64-linux-gnu", "aarch64-linux-gnu", "python3.10", "python3.11", "python3.12", "python3.13",
)  # fmt: skip
HOMES = ("home", "homes", "Users", "users", "user")
# Users of images and distributions, which identify no person.
COMMON_USERS = (
    "root", "ubuntu", "nobody", "nvidia", "user", "users", "admin", "runner", "test", "jovyan", "centos", "ec2-user",
    "opc", "slurm", "mpiuser", "appuser", "vscode", "app", "default", "none", "null", "unknown", "workspace", "git",
    "sudo", "docker", "staff", "video", "render", "wheel", "adm", "disk", "daemon", "sshd", "systemd", "hadoop",
)  # fmt: skip
SHORTEST_USER = 3  # characters; a shorter name is replaced in paths, and not in other text
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

# The last part of names of hosts. Country codes that are suffixes of files, too (`py`, `so`, `cc`, `sh`), are left out.
TOP_DOMAINS = (
    "com", "org", "net", "edu", "gov", "mil", "int", "info", "biz", "io", "ai", "cloud", "dev", "app", "tech", "corp",
    "lan", "intra", "intranet", "internal", "local", "localdomain", "cluster", "hpc", "example", "test", "invalid",
    "arpa", "de", "uk", "fr", "it", "es", "nl", "ch", "at", "be", "se", "no", "fi", "dk", "pl", "cz", "eu", "us", "ca",
    "au", "jp", "kr", "cn", "tw", "in", "br", "sg", "hk", "il", "ru", "za", "mx", "ie", "nz", "pt", "gr", "hu", "ro",
    "ua", "tr", "ae", "sa", "qa", "th", "vn", "cl", "lu", "xyz", "site", "online", "systems", "science", "network",
)  # fmt: skip
SUFFIXES_OF_FILES = ("pt",)  # as well: `model.ckpt-100.pt` is a checkpoint, `node1.institute.pt` a host
# Suffixes of files of a job: a relative path with one is replaced as others are.
SUFFIXES_OF_JOBS = (
    ".pt", ".pth", ".ckpt", ".safetensors", ".bin", ".yaml", ".yml", ".json", ".jsonl", ".parquet", ".npz", ".h5",
    ".sh", ".sbatch", ".slurm", ".log", ".err", ".out", ".ipynb", ".tar", ".csv",
)  # fmt: skip
# Ends of names of modules, too: `threading.local`. A host of such a domain has a digit or a dash before its end.
AMBIGUOUS_DOMAINS = (
    "local", "internal", "test", "app", "int", "in", "it", "no", "at", "be", "us", "dev", "cluster", "example", "info",
    "mx", "ie", "nz", "pt", "gr", "hu", "ro", "ua", "tr", "ae", "sa", "qa", "th", "vn", "cl", "lu", "site", "online",
    "systems", "network",
)  # fmt: skip
# Sites that messages of programs refer to; what follows in their addresses is public as well.
PUBLIC_DOMAINS = (
    "pytorch.org", "nvidia.com", "kernel.org", "python.org", "readthedocs.io", "slurm.schedmd.com", "open-mpi.org",
    "gnu.org", "docker.com", "kubernetes.io", "example.com", "w3.org",
)  # fmt: skip
PUBLIC_REPOSITORIES = (
    "github.com/NVIDIA/",
    "github.com/pytorch/",
    "github.com/ROCm/",
    "github.com/aws/",
    "nvcr.io/nvidia/",
)
# Schemes that name no place.
PLAIN_SCHEMES = ("env", "file", "unix")
