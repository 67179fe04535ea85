"""The methods of papers, each a plugin that banyan.registry finds by name. Pure: banyan, numpy and the standard library."""
