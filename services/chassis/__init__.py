"""What every service is bolted to: settings, logging, telemetry, the bus, gRPC, and the process itself."""
