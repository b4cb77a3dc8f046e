# The machine of most OS tasks, and of generated chores.
ARG BASE=ubuntu:22.04
FROM ${BASE}
ENV DEBIAN_FRONTEND=noninteractive
RUN apt-get update \
 && apt-get install -y --no-install-recommends \
      bc curl file gawk git iproute2 less net-tools passwd procps python3 python3-pip sudo tree unzip vim-tiny wget zip \
 && rm -rf /var/lib/apt/lists/*
WORKDIR /root
CMD ["bash"]
