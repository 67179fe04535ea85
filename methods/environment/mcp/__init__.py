"""Servers of the Model Context Protocol (modelcontextprotocol.io), as far as tools need it."""
