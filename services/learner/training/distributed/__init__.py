"""A learner of several ranks: parameters sharded with FSDP2, trees dealt out, one rank that speaks for all (ADR 027)."""
