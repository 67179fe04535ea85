"""Questions to endpoints of models, for scorers that ask one."""
