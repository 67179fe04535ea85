"""The form of a log line: for people, or as JSON, both with the ids of the current span."""

import datetime
import json
import logging
import os

from banyan.errors import InvalidInput
from banyan.text.printable import PrintableFormatter, printable_json
from services.chassis.process.telemetry.span import current

FORMAT = "BANYAN_LOG_FORMAT"
FORMATS = ("text", "json")


def formatter(service: str) -> logging.Formatter:
    """Return the formatter that the environment names. Raise InvalidInput for an unknown one."""
    name = os.environ.get(FORMAT, FORMATS[0])
    if name not in FORMATS:
        raise InvalidInput(f"{FORMAT}={name!r} must be {' or '.join(FORMATS)}")
    if name == "json":
        return JsonFormatter(service)
    return TextFormatter(f"%(asctime)s {service} %(levelname)s %(name)s: %(message)s")


class TextFormatter(PrintableFormatter):
    """A line for people; inside a span that is sent, its trace stands at the end."""

    def format(self, record: logging.LogRecord) -> str:
        trace, _ = current().ids
        line = super().format(record)
        return f"{line} (trace {trace})" if trace else line


class JsonFormatter(logging.Formatter):
    """An object a line, with the field names of OpenTelemetry's logs for ids and resources."""

    def __init__(self, service: str) -> None:
        super().__init__()
        run, node = os.environ.get("BANYAN_RUN", ""), os.environ.get("BANYAN_NODE_ID", "")
        self._fixed = {
            "service.name": service,
            **({"banyan.run": run} if run else {}),
            **({"banyan.node": node} if node else {}),
        }

    def format(self, record: logging.LogRecord) -> str:
        when = datetime.datetime.fromtimestamp(record.created, datetime.UTC)
        trace, span = current().ids
        fields: dict[str, object] = {
            "timestamp": when.isoformat(timespec="milliseconds"),
            "severity": record.levelname,
            **self._fixed,
            "logger": record.name,
            "message": record.getMessage(),
            **({"trace_id": trace, "span_id": span} if trace else {}),
        }
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        return printable_json(json.dumps(fields, ensure_ascii=False))
