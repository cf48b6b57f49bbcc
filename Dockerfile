# syntax=docker/dockerfile:1

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

# No shell and no package manager: the C library, certificates, and one program.
FROM gcr.io/distroless/cc-debian12:nonroot
COPY --from=build /usr/bin/toolbus /usr/bin/toolbus
USER 65532:65532
EXPOSE 8471
# Reads the configuration as the daemon does: at /etc/toolbus/toolbus.toml, or from the environment. With other options
# in `command`, give the same to the health check.
HEALTHCHECK --interval=10s --timeout=5s --start-period=20s --retries=3 CMD ["/usr/bin/toolbus", "health"]
ENTRYPOINT ["/usr/bin/toolbus"]
CMD ["serve"]
