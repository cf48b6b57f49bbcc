"""Calls a tool with an ordinary AMQP client: python3 call_tool.py NAME [JSON-ARGUMENTS]"""

import json
import os
import sys
import time
import uuid

import pika

broker = pika.URLParameters(os.environ.get("AMQP_URL", "amqp://guest:guest@127.0.0.1:5672/%2f"))
if len(sys.argv) not in (2, 3):
    sys.exit(__doc__)
tool = sys.argv[1]
try:
    arguments = json.loads(sys.argv[2]) if len(sys.argv) > 2 else {}
except json.JSONDecodeError as error:
    sys.exit(f"the arguments are not JSON: {error}")

connection = pika.BlockingConnection(broker)
channel = connection.channel()
channel.confirm_delivery()  # so that a request that no queue takes is an error here

# Direct reply-to: the broker forwards messages for this address to the publisher's consumer. No queue is declared.
answers = []
reply_to = "amq.rabbitmq.reply-to"
channel.basic_consume(reply_to, lambda _channel, _method, *answer: answers.append(answer), auto_ack=True)

call = uuid.uuid4().hex
channel.basic_publish(
    exchange="rockbot",
    routing_key="tool.invoke",
    body=json.dumps({"toolName": tool, "arguments": arguments}),
    properties=pika.BasicProperties(
        reply_to=reply_to,
        correlation_id=call,  # comes back in the answer
        message_id=call,  # by which the daemon knows a redelivered request
        user_id=broker.credentials.username,  # our login, which the broker verifies
        delivery_mode=2,  # survives a restart of the broker
        expiration="20000",  # is not run when we have given up
        headers={"rb-timeout-ms": "10000"},  # what we grant the tool
    ),
    mandatory=True,
)

patience = time.monotonic() + 20
while not answers:
    if time.monotonic() > patience:
        sys.exit("no answer within 20 s")
    connection.process_data_events(time_limit=1)
connection.close()

properties, body = answers[0]
answer = json.loads(body)
if properties.type == "RockBot.Tools.ToolError":
    sys.exit(f"{answer['code']}: {answer['message']} (retryable: {answer['isRetryable']})")
print(answer["content"])
sys.exit(1 if answer["isError"] else 0)
