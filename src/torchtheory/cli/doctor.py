"""`torchtheory doctor`: what this installation is made of."""

from __future__ import annotations

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from torchtheory import __version__
from torchtheory.cli.options import Json
from torchtheory.cli.output import list_console, print_json


def doctor(as_json: Json = False) -> None:
    """Versions, threads, device and data sets of this installation.

    Example:

      torchtheory doctor
    """
    import torch

    from torchtheory.data.image_sets import data_directory, locate_image_set
    from torchtheory.labs.engine.registry import listed_labs

    def version_of(package: str) -> str:
        try:
            return version(package)
        except PackageNotFoundError:
            return "not installed"

    packages = ("torch", "numpy", "scipy", "scikit-learn", "networkx", "matplotlib", "safetensors")
    places = {name: locate_image_set(name) for name in ("mnist", "fashion-mnist")}
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
    report: dict[str, dict[str, Any]] = {
        "versions": {
            "torchtheory": __version__,
            "python": platform.python_version(),
            **{p: version_of(p) for p in packages},
        },
        "machine": {
            "system": f"{platform.system()} {platform.machine()}",
            "cores": os.cpu_count(),
            "torch threads": torch.get_num_threads(),
            "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "not set"),
            "device": device,
            "default dtype": str(torch.get_default_dtype()).removeprefix("torch."),
        },
        "data": {
            "directory": str(data_directory()),
            "digits": "ships with scikit-learn",
            **{n: str(p) if p else "not found" for n, p in places.items()},
        },
        "labs": {"registered": len(listed_labs())},
    }
    if as_json:
        print_json(report)
        return
    terminal = list_console()
    for heading, facts in report.items():
        terminal.print(heading, style="bold")
        for name, value in facts.items():
            terminal.print(f"  {name:16} {value}", markup=False, highlight=False, soft_wrap=True)
