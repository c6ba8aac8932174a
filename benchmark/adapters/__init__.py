"""How tools are asked: each module writes the answers of one."""
