# syntax=docker/dockerfile:1
# Two images: `toolbus`, the last stage; and `toolbus-full` with Python, uv and node, by `--target full`.

FROM rust:1.95-bookworm AS build
WORKDIR /src
COPY . .
# What `toolbus --version` and /status say; the build has no history to ask.
ARG TOOLBUS_COMMIT=unknown
ENV TOOLBUS_COMMIT=$TOOLBUS_COMMIT
RUN --mount=type=cache,target=/usr/local/cargo/registry \
    --mount=type=cache,target=/src/target \
    cargo build --profile dist --locked --package toolbus --bin toolbus --features kubernetes \
    && cp target/dist/toolbus /usr/bin/toolbus

FROM node:22-bookworm-slim AS node
FROM ghcr.io/astral-sh/uv:0.9.7 AS uv

# Scripts of models, their packages, and MCP servers that `uvx` and `npx` fetch and start.
FROM python:3.12-slim-bookworm AS full
COPY --from=uv /uv /uvx /usr/local/bin/
COPY --from=node /usr/local/bin/node /usr/local/bin/node
COPY --from=node /usr/local/lib/node_modules/npm /usr/local/lib/node_modules/npm
# Its own group and a home that a volume replaces. The programs are run once: a library that one lacks ends the build.
RUN ln -s ../lib/node_modules/npm/bin/npm-cli.js /usr/local/bin/npm \
    && ln -s ../lib/node_modules/npm/bin/npx-cli.js /usr/local/bin/npx \
    && groupadd --gid 65532 nonroot \
    && useradd --uid 65532 --gid 65532 --home-dir /var/lib/toolbus --create-home --shell /usr/sbin/nologin nonroot \
    && for program in python3 uv uvx node npm npx; do "$program" --version; done
COPY --from=build /usr/bin/toolbus /usr/bin/toolbus
# The caches of uv and npm, and `toolbus-cache` of packages, lie in the home; work folders of scripts in TMPDIR.
ENV HOME=/var/lib/toolbus TMPDIR=/tmp
WORKDIR /var/lib/toolbus
VOLUME /var/lib/toolbus
USER 65532:65532
EXPOSE 8471
HEALTHCHECK --interval=10s --timeout=5s --start-period=20s --retries=3 CMD ["/usr/bin/toolbus", "health"]
ENTRYPOINT ["/usr/bin/toolbus"]
CMD ["serve"]

# No shell and no package manager: the C library, certificates, and one program.
FROM gcr.io/distroless/cc-debian12:nonroot AS toolbus
COPY --from=build /usr/bin/toolbus /usr/bin/toolbus
USER 65532:65532
EXPOSE 8471
# Reads the configuration as the daemon does: at /etc/toolbus/toolbus.toml, or from the environment. With other options
# in `command`, give the same to the health check.
HEALTHCHECK --interval=10s --timeout=5s --start-period=20s --retries=3 CMD ["/usr/bin/toolbus", "health"]
ENTRYPOINT ["/usr/bin/toolbus"]
CMD ["serve"]
