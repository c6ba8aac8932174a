"""The output of nccl-tests and rccl-tests, of any version."""

GRAMMARS = ("nccltests",)
SIGNATURES = ("test_setting", "test_device", "table_head", "test_end")
KINDS = dict.fromkeys(("test_setting", "test_device", "table_head", "table_row", "test_end"), "nccl-tests")
