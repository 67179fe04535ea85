"""Methods of papers, each a plugin that banyan.registry finds by name.

They are pure: they import banyan, numpy and the standard library. docs/methods.md lists them.
"""
