"""Answers for agents: a server of the Model Context Protocol on stdin and stdout, which only reads."""
