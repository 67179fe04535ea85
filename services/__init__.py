"""Banyan's services. They never import each other: they meet on the wire."""
