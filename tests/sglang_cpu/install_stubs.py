"""Put the stub packages into the interpreter that runs this, and let torchvision do without its CUDA library.

Run by tools/install_sglang.sh: once before pip, which then takes Triton as present, and once after it.
"""

import shutil
import sysconfig
from pathlib import Path

SITE = Path(sysconfig.get_paths()["purelib"])
STUBS = Path(__file__).parent / "stubs"
TRITON_VERSION = "3.4.0"

# torchvision registers shapes of two operators that only its CUDA library declares.
PATCH_MARK = "# declared here for want of the CUDA library"
PATCH_BEFORE = '@torch.library.register_fake("torchvision::nms")'
PATCH = f"""{PATCH_MARK}
if not torchvision.extension._has_ops():
    _declared = torch.library.Library("torchvision", "DEF")
    for _operator in ("nms", "qnms"):
        _declared.define(_operator + "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")


"""


def install_stub(name: str) -> None:
    shutil.rmtree(SITE / name, ignore_errors=True)
    shutil.copytree(STUBS / name, SITE / name, ignore=shutil.ignore_patterns("__pycache__"))


def install_metadata(name: str, version: str) -> None:
    """What pip and importlib.metadata know a package by."""
    folder = SITE / f"{name}-{version}.dist-info"
    folder.mkdir(exist_ok=True)
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n", encoding="utf-8")
    (folder / "INSTALLER").write_text("stub\n", encoding="utf-8")
    (folder / "RECORD").write_text("", encoding="utf-8")


def patch_torchvision() -> None:
    file = SITE / "torchvision" / "_meta_registrations.py"
    if not file.is_file():
        return
    text = file.read_text(encoding="utf-8")
    if PATCH_MARK in text:
        return
    if PATCH_BEFORE not in text:
        raise SystemExit(f"{file} is not the torchvision that this patch was made for: it lacks {PATCH_BEFORE}")
    file.write_text(text.replace(PATCH_BEFORE, PATCH + PATCH_BEFORE, 1), encoding="utf-8")


if __name__ == "__main__":
    install_stub("triton")
    install_metadata("triton", TRITON_VERSION)
    install_stub("sgl_kernel")
    patch_torchvision()
