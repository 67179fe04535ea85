"""Dashboards, rules and alerts over Banyan's metrics, and the configuration of Prometheus."""
