"""Bytes to lines: files, archives, streams and JSON documents, read in whole or in windows."""
