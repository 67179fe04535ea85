"""A learner of several ranks (ADR 027): sharded parameters (FSDP2), trees dealt to ranks, one leader."""
