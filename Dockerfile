# syntax=docker/dockerfile:1
FROM rust:1.95-bookworm AS build
WORKDIR /src
COPY . .
RUN --mount=type=cache,target=/usr/local/cargo/registry \
    --mount=type=cache,target=/src/target \
    cargo build --release --locked --bin countersign && cp target/release/countersign /countersign

FROM debian:bookworm-slim
# Certificates for servers and models, curl for the health check.
RUN apt-get update && apt-get install -y --no-install-recommends ca-certificates curl \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --system --uid 10001 --no-create-home countersign
COPY --from=build /countersign /usr/local/bin/countersign
USER countersign
EXPOSE 8080
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=3s --start-period=20s --retries=3 \
    CMD curl -fsS http://localhost:8080/readyz || exit 1
ENTRYPOINT ["countersign"]
CMD ["serve"]
