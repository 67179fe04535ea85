"""The parent of all processes of the embedded mode.

docs/protocol.md, Processes of the embedded mode.
"""
