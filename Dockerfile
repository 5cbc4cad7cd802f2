# syntax=docker/dockerfile:1
# Two targets: `dragoman`, the default, and `demo`, which adds the libraries of `dragoman demo`. The build stages create
# a virtual environment with pinned, hash-checked libraries and our two wheels. A target contains only Python and that
# environment, and runs as a user that owns only /data.

FROM python:3.13-slim-bookworm AS build
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore
WORKDIR /src
RUN python -m venv --without-pip /opt/dragoman
COPY config/requirements.txt config/build-requirements.txt config/
RUN python -m pip --python /opt/dragoman/bin/python install --no-cache-dir --require-hashes -r config/requirements.txt \
    && python -m pip install --no-cache-dir --require-hashes -r config/build-requirements.txt
COPY pyproject.toml README.md LICENSE ./
COPY gateway gateway
COPY adapters adapters
RUN python -m pip wheel --no-cache-dir --no-deps --no-build-isolation --wheel-dir /wheels ./gateway/sdk . \
    && python -m pip --python /opt/dragoman/bin/python install --no-cache-dir --no-deps /wheels/*.whl \
    && /opt/dragoman/bin/dragoman schema > /dev/null

FROM build AS build-demo
COPY config/demo-requirements.txt config/
RUN python -m pip --python /opt/dragoman/bin/python install --no-cache-dir --require-hashes -r config/demo-requirements.txt

FROM python:3.13-slim-bookworm AS runtime
ARG VERSION=0.3.0
ARG REVISION=unknown
ARG CREATED=1970-01-01T00:00:00Z
LABEL org.opencontainers.image.title="Dragoman" \
      org.opencontainers.image.description="A durable gateway between agent runtimes and the backend that serves them." \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}" \
      org.opencontainers.image.created="${CREATED}" \
      org.opencontainers.image.base.name="docker.io/library/python:3.13-slim-bookworm"
RUN python -m pip uninstall --yes pip \
    && groupadd --system --gid 10001 dragoman \
    && useradd --system --uid 10001 --gid dragoman --home-dir /data --no-create-home --shell /usr/sbin/nologin dragoman \
    && install -d -o dragoman -g dragoman -m 0750 /data
COPY config/examples/container.yaml /etc/dragoman/gateway.yaml
# The installation compiled the bytecode; a running container does not write to the root file system.
ENV PATH=/opt/dragoman/bin:$PATH PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1
USER 10001:10001
WORKDIR /data
VOLUME ["/data"]
EXPOSE 8080
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=5s --start-period=20s --retries=3 \
    CMD ["python", "-c", "import urllib.request as r; r.urlopen('http://127.0.0.1:8080/healthz', timeout=3).close()"]
ENTRYPOINT ["dragoman"]
CMD ["serve", "--config", "/etc/dragoman/gateway.yaml", "--host", "0.0.0.0"]

FROM runtime AS demo
COPY --from=build-demo /opt/dragoman /opt/dragoman

FROM runtime AS dragoman
COPY --from=build /opt/dragoman /opt/dragoman
