"""Calls a tool with an ordinary AMQP client: python3 call_tool.py NAME [JSON-ARGUMENTS]"""

import json
import os
import sys
import uuid

import pika

url = os.environ.get("AMQP_URL", "amqp://guest:guest@127.0.0.1:5672/%2f")
tool, arguments = sys.argv[1], json.loads(sys.argv[2]) if len(sys.argv) > 2 else {}

connection = pika.BlockingConnection(pika.URLParameters(url))
channel = connection.channel()
channel.confirm_delivery()  # so that a request that no queue takes is an error here
answers = channel.queue_declare(queue="", exclusive=True).method.queue  # our own, gone with us

call = uuid.uuid4().hex
channel.basic_publish(
    exchange="rockbot",
    routing_key="tool.invoke",
    body=json.dumps({"toolName": tool, "arguments": arguments}),
    properties=pika.BasicProperties(
        reply_to=answers,
        correlation_id=call,  # comes back in the answer
        message_id=call,  # by which the daemon knows a redelivered request
        delivery_mode=2,  # survives a restart of the broker
        headers={"rb-timeout-ms": "10000"},  # what we grant the tool
    ),
    mandatory=True,
)

for _, properties, body in channel.consume(answers, auto_ack=True, inactivity_timeout=20):
    if properties is None:
        sys.exit("no answer within 20 s")
    if properties.correlation_id == call:
        break
connection.close()

answer = json.loads(body)
if properties.type == "RockBot.Tools.ToolError":
    sys.exit(f"{answer['code']}: {answer['message']} (retryable: {answer['isRetryable']})")
print(answer["content"])
sys.exit(1 if answer["isError"] else 0)
