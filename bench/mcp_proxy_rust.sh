# The Rust mcp-proxy ($1), which takes a file alone: listens on $PORT, in front of the server that $SERVER starts.
exec "$1" --config /dev/stdin <<END
[proxy]
name = "proxy"

[proxy.listen]
host = "127.0.0.1"
port = $PORT

[observability]
log_level = "warn"

[[backends]]
name = "server"
transport = "stdio"
command = "sh"
args = ["-c", "exec $SERVER"]
END
