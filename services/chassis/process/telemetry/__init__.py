"""OpenTelemetry as services use it: setup, spans, counters, histograms, levels.

Names come from banyan/runtime/telemetry_schema.py.
"""

from services.chassis.process.telemetry.metrics import count as count
from services.chassis.process.telemetry.metrics import kind_of as kind_of
from services.chassis.process.telemetry.metrics import level as level
from services.chassis.process.telemetry.metrics import measuring as measuring
from services.chassis.process.telemetry.metrics import observe as observe
from services.chassis.process.telemetry.metrics import watch as watch
from services.chassis.process.telemetry.providers import active
from services.chassis.process.telemetry.span import CONTENT as CONTENT
from services.chassis.process.telemetry.span import Span as Span
from services.chassis.process.telemetry.span import current as current
from services.chassis.process.telemetry.span import serving as serving
from services.chassis.process.telemetry.span import span as span
from services.chassis.process.telemetry.span import start as start

setup, shutdown = active.setup, active.shutdown
