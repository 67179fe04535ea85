"""Classes of users that answer actions, in children of the verifier."""
