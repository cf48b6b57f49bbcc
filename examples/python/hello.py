from toolbus.sync import Toolbus

with Toolbus("amqp://guest:guest@127.0.0.1:5672/%2f", agent="ana") as bus:
    print(bus.call("echo", text="hello", timeout=5))
