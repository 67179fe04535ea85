"""The one parent of all processes of the embedded mode (PROTOCOL 7)."""
