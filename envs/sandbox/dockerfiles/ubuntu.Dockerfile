# The machine of OS tasks that ask for Ubuntu by name.
ARG DEFAULT=local-os/default
FROM ${DEFAULT}
