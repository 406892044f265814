"""Prints what inspect-ai reads from a log; runs in an environment that has it."""

from __future__ import annotations

import json
import sys

from inspect_ai.log import read_eval_log, read_eval_log_sample_summaries

log = read_eval_log(sys.argv[1])
summaries = read_eval_log_sample_summaries(sys.argv[1])
samples = {}
for sample in log.samples or []:
    names = {event.id: event.name for event in sample.events if event.event == "span_begin"}
    events = [
        {
            "event": event.event,
            "span": names.get(event.span_id),
            "source": getattr(event, "source", None),
            "text": getattr(event, "data", None),
            "function": getattr(event, "function", None),
            "input": [message.text for message in event.input] if event.event == "model" else None,
            "cost": event.output.usage.total_cost if event.event == "model" else None,
        }
        for event in sample.events
    ]
    samples[sample.id] = {
        "scores": {name: score.value for name, score in (sample.scores or {}).items()},
        "explanations": {name: score.explanation for name, score in (sample.scores or {}).items()},
        "error": sample.error.message if sample.error else None,
        "messages": [message.text for message in sample.messages],
        "usage": {model: usage.total_cost for model, usage in sample.model_usage.items()},
        "events": events,
    }
content = {
    "status": log.status,
    "rates": {
        score.name: {name: metric.value for name, metric in score.metrics.items()}
        for score in log.results.scores
    },
    "cost": {model: usage.total_cost for model, usage in log.stats.model_usage.items()},
    "summaries": [summary.id for summary in summaries],
    "samples": samples,
}
print(json.dumps(content))
