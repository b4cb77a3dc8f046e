"""What clients call the weights of a server: any text, as in SGLang, whatever came before it. No jax."""

from agentrl_jax.engines.served import ServableEngine

_KEPT = 1000  # names of versions that running turns may still have begun with


class WeightNames:
    """An engine counts its versions upwards; clients name them. first: of the weights that it was started with."""

    def __init__(self, engine: ServableEngine, first: str | None) -> None:
        self._engine = engine
        self._names = {} if first is None else {engine.version: first}

    @property
    def current(self) -> str:
        """The name of the weights that are served."""
        return self.of(self._engine.version)

    def of(self, version: int) -> str:
        """The name of the engine's `version`; its number where nobody has named it."""
        return self._names.get(version, str(version))

    def next_version(self, name: str) -> int:
        """The engine's version for weights that are to be called `name`: their number, if that is still to come."""
        counted = self._engine.version + 1
        is_number = name.isascii() and name.isdigit() and len(name) < 10
        version = max(int(name), counted) if is_number else counted
        self._names[version] = name
        for old in [known for known in self._names if known < counted - _KEPT]:
            del self._names[old]
        return version
