"""A plain client that uses RabbitMQ's direct reply-to: direct_reply.py URL EXCHANGE"""

import json
import sys

import pika

url, exchange = sys.argv[1:]
connection = pika.BlockingConnection(pika.URLParameters(url))
channel = connection.channel()
answers = channel.consume("amq.rabbitmq.reply-to", auto_ack=True, inactivity_timeout=60)
next(channel.consume("amq.rabbitmq.reply-to", auto_ack=True, inactivity_timeout=0.01))
channel.basic_publish(
    exchange,
    "tool.invoke",
    json.dumps({"toolName": "echo", "arguments": {"text": "hello, direct"}}),
    pika.BasicProperties(reply_to="amq.rabbitmq.reply-to"),
)
method, _, body = next(answers)
if method is None:
    sys.exit("no answer")
print(json.loads(body)["content"])
connection.close()
