"""The chassis of every service: settings, logging, telemetry, messaging, gRPC, weights, process."""
