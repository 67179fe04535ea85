"""A learner of several ranks (ADR 027): parameters in shards (FSDP2), trees dealt, one leader."""
