# syntax=docker/dockerfile:1

# The image of dra-exporter: one program on glibc, without a shell. It has no libraries of vendors
# (NVML, libdcgm): the program opens those of the host, which must be mounted. `make image` builds
# it; `make image-tar` builds the same image without a container engine.

# A release sets the digests:
#   docker build --build-arg GO_DIGEST=@sha256:… --build-arg BASE_DIGEST=@sha256:…
ARG GO_DIGEST=
ARG BASE_DIGEST=
FROM golang:1.26-bookworm${GO_DIGEST} AS build
WORKDIR /src
COPY go.mod go.sum ./
RUN go mod download
COPY . .
ARG VERSION=unknown
ARG REVISION=unknown
ARG BUILD_DATE=
RUN make build VERSION=${VERSION} REVISION=${REVISION} BUILD_DATE=${BUILD_DATE}

FROM gcr.io/distroless/base-debian12${BASE_DIGEST}
ARG VERSION=unknown
ARG REVISION=unknown
LABEL org.opencontainers.image.title="dra-exporter" \
      org.opencontainers.image.description="Per-claim and per-pod Prometheus metrics of the devices that Kubernetes DRA allocates" \
      org.opencontainers.image.source="https://github.com/dra-exporter/dra-exporter" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
COPY --from=build /src/bin/dra-exporter /usr/bin/dra-exporter
# The kubelet's socket belongs to root. The DaemonSet drops all capabilities.
USER 0:0
EXPOSE 10985
ENTRYPOINT ["/usr/bin/dra-exporter"]
