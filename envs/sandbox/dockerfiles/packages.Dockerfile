# The machine of OS tasks about packages of Node.js.
ARG DEFAULT=local-os/default
FROM ${DEFAULT}
RUN apt-get update \
 && apt-get install -y --no-install-recommends npm \
 && rm -rf /var/lib/apt/lists/*
