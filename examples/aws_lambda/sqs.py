"""An AWS Lambda function that writes the messages of an SQS queue to a store, and names those that failed.

SQS delivers at least once, so the message's id is the idempotency key: each message is written once. A message that
fails is named in the answer. SQS delivers it alone again, and moves it to the dead-letter queue in the end.
A body: {"order": "42", "event": {"type": "paid"}}.
"""

from __future__ import annotations

import json
import os
from functools import cache
from typing import Any

import streamkit
from streamkit import Record, Store


@cache
def store() -> Store:
    return streamkit.connect(timeout=10).store(os.environ["STREAMKIT_STORE"])


def write(message: dict[str, Any]) -> None:
    body = json.loads(message["body"])
    record = Record(json.dumps(body["event"]).encode(), {"source": "sqs"})
    store().produce("orders", f"order-{body['order']}", [record], idempotency_key=message["messageId"])


def handler(event: dict[str, Any], context: object) -> dict[str, list[dict[str, str]]]:
    failed = []
    for message in event["Records"]:
        try:
            write(message)
        except Exception as error:  # a wrong message does not stop the others
            print(f"message {message['messageId']}: {type(error).__name__}: {error}")
            failed.append({"itemIdentifier": message["messageId"]})
    return {"batchItemFailures": failed}
