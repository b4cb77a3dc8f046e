"""Rank 0 of a process group that broadcasts ranges of files to an inference server. Run by an interpreter with torch.

    PYTHON distributed_sidecar.py HOST WORLD_SIZE GROUP_NAME BACKEND DEVICE TIMEOUT_S

Says {"port": …} when others can join, {"joined": true} when all have; then answers each {"file", "offset", "num_bytes"}
of its input by {"sent": num_bytes}, in order, and ends with its input. It imports nothing of this package: it may run
where that is not installed.
"""

import importlib
import json
import mmap
import sys
from datetime import timedelta
from typing import Any


def main(host: str, world_size: int, group_name: str, backend: str, device: str, timeout_s: float) -> None:
    torch = importlib.import_module("torch")
    distributed = importlib.import_module("torch.distributed")
    c10d = importlib.import_module("torch.distributed.distributed_c10d")
    timeout = timedelta(seconds=timeout_s)
    store = distributed.TCPStore(host, 0, world_size, is_master=True, timeout=timeout, wait_for_workers=False)
    say({"port": store.port})
    group = join(c10d, store, world_size, group_name, backend, timeout)
    say({"joined": True})
    for line in sys.stdin:
        order = json.loads(line)
        with open(order["file"], "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
            send(torch, c10d, mapped, order["offset"], order["num_bytes"], group, device)
        say({"sent": order["num_bytes"]})


def join(c10d: Any, store: Any, world_size: int, group_name: str, backend: str, timeout: timedelta) -> Any:
    """The group under exactly the keys that SGLang's side looks for: its own prefix, then what torch adds."""
    group, _ = c10d._new_process_group_helper(
        world_size,
        0,
        [],
        c10d.Backend(backend),
        c10d.PrefixStore(group_name, store),
        group_name=group_name,
        timeout=timeout,
    )
    c10d._world.pg_group_ranks[group] = {rank: rank for rank in range(world_size)}
    return group


def send(torch: Any, c10d: Any, mapped: mmap.mmap, offset: int, num_bytes: int, group: Any, device: str) -> None:
    view = memoryview(mapped)[offset : offset + num_bytes]
    # A CPU group sends from a copy, for which a mapped file would have to be writable.
    tensor = torch.empty(num_bytes, dtype=torch.uint8)
    tensor.numpy()[:] = view
    view.release()
    tensor = tensor.to(device)
    c10d.broadcast(tensor, src=0, group=group)
    if device != "cpu":
        torch.cuda.synchronize()


def say(message: dict[str, Any]) -> None:
    print(json.dumps(message), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4], sys.argv[5], float(sys.argv[6]))
