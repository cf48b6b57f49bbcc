"""A plain AMQP client, nothing of ours: reads requests from its arguments, prints their answers as JSON.

plain_client.py URL EXCHANGE OWN_QUEUE REQUEST...

Each request is a JSON object: `body` (text or any JSON) and `properties`, in which a text that starts with `hex:` is sent
as those bytes. The queue of answers is the reply address unless `properties` names one; with an empty name the broker
chooses.
"""

import json
import sys
import uuid

import pika

PATIENCE = 60


def value(given):
    if isinstance(given, str) and given.startswith("hex:"):
        return bytes.fromhex(given.removeprefix("hex:"))
    if isinstance(given, dict):
        return {value(name): value(inner) for name, inner in given.items()}
    return given


url, exchange, own, *arguments = sys.argv[1:]
connection = pika.BlockingConnection(pika.URLParameters(url))
channel = connection.channel()
channel.confirm_delivery()
own = channel.queue_declare(queue=own, exclusive=True).method.queue

for text in arguments:
    request = json.loads(text)
    given = value(request.get("properties", {}))
    properties = {"reply_to": own, "correlation_id": uuid.uuid4().hex, "delivery_mode": 2} | given
    body = request["body"] if isinstance(request["body"], str) else json.dumps(request["body"])
    channel.basic_publish(exchange, "tool.invoke", body, pika.BasicProperties(**properties), mandatory=True)
    method, answer, data = next(channel.consume(own, auto_ack=True, inactivity_timeout=PATIENCE))
    if method is None:
        sys.exit(f"no answer to {text}")
    shown = {
        "queue_is_own": method.routing_key == own,
        "exchange": method.exchange,
        "echoed": answer.correlation_id == properties["correlation_id"],
        "type": answer.type,
        "body": json.loads(data),
    }
    print(json.dumps(shown))
connection.close()
