"""Build the images that sandboxes of docker are made from: `python -m envs.sandbox.images`. See `--help`."""

import io
import sys
import tarfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import tyro
from docker.errors import BuildError
from docker.models.images import ImageCollection

from agentrl_jax.errors import AgentRLError, ConfigError
from envs.sandbox.docker_engine import REPOSITORY, connect_client, engine_errors

FOLDER = Path(__file__).parent / "dockerfiles"
NAMES = ("default", "packages", "ubuntu")
"""In the order in which they are built: the others start from the first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ImagesConfig:
    """Build the images of OS tasks on a Docker engine, from Dockerfiles."""

    docker: str | None = None
    """URL of the engine (default: as DOCKER_HOST says, else this machine's)"""
    base: str = "ubuntu:22.04"
    """Image to start from: one with bash and apt-get"""
    names: str = ",".join(NAMES)
    """Images to build, separated by commas"""
    network: str | None = None
    """Network that apt-get uses, such as host (default: the engine's choice)"""
    folder: Path = FOLDER
    """Where the Dockerfiles are, NAME.Dockerfile"""


def context_of(dockerfile: Path) -> io.BytesIO:
    """A build context that holds the Dockerfile alone."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        tar.add(dockerfile, arcname="Dockerfile")
    buffer.seek(0)
    return buffer


def build(images: ImageCollection, name: str, config: ImagesConfig) -> str:
    """Build one image; returns its id. Raises ConfigError with the end of the build's output if it fails."""
    dockerfile = config.folder / f"{name}.Dockerfile"
    if not dockerfile.is_file():
        raise ConfigError(f"--names: there is no {dockerfile}")
    try:
        with engine_errors():
            image, _ = images.build(
                fileobj=context_of(dockerfile),
                custom_context=True,
                tag=f"{REPOSITORY}/{name}",
                buildargs={"BASE": config.base, "DEFAULT": f"{REPOSITORY}/default"},
                network_mode=config.network,
                rm=True,
                forcerm=True,
            )
    except BuildError as error:
        said = "".join(str(line.get("stream", "")) for line in error.build_log if isinstance(line, dict))
        raise ConfigError(f"image {name} cannot be built: {error.msg}\n{said[-2000:]}") from error
    return str(image.id)


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code 1 if an image cannot be built, 2 for wrong settings."""
    config = tyro.cli(ImagesConfig, args=arguments, prog="python -m envs.sandbox.images")
    wanted = [name.strip() for name in config.names.split(",") if name.strip()]
    unknown = [name for name in wanted if not (config.folder / f"{name}.Dockerfile").is_file()]
    if unknown or not wanted:
        print(f"envs.sandbox.images: --names: there is no {', '.join(unknown) or 'image'} to build", file=sys.stderr)
        return 2
    try:
        client = connect_client(config.docker)
        try:
            for name in wanted:
                print(f"{REPOSITORY}/{name} {build(client.images, name, config)}", flush=True)
        finally:
            client.close()
    except AgentRLError as error:
        print(f"envs.sandbox.images: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
