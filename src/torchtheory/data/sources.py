"""A data set from whatever a user has: one entry point for archives, folders, tables and code."""

from __future__ import annotations

import re
from pathlib import Path

from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from torchtheory.core.errors import FileProblem, InvalidInput, InvalidType
from torchtheory.core.files import existing_folder, kind_of
from torchtheory.data.files import holds_arrays, load_npy_folder, load_npz, read_idx
from torchtheory.data.tables import is_table, load_table
from torchtheory.models.loading import call_without_arguments, is_named, named_object
from torchtheory.models.samples import Data, Samples


def load_data(
    place: str | Path,
    *,
    target: str | None = None,
    test: str | Path | None = None,
    test_fraction: float = 0.2,
    channel: bool = True,
    seed: int = 0,
) -> tuple[Data, Data | None]:
    """Train and test data from wherever they are; test is None where there is none.

    - `data.npz`: `torchtheory.data.files.load_npz`
    - directory of `.npy` files: `torchtheory.data.files.load_npy_folder`
    - directory of IDX files: `load_idx_folder` (the layout of MNIST)
    - `.csv`, `.tsv`, `.csv.gz`: `torchtheory.data.tables.load_table`
    - `package.module:loader`: `call_loader`

    Args:
        place: file, directory or name of a function.
        target, test, test_fraction, seed: of a table.
        channel: of a directory of IDX files.

    Each part is as `torchtheory.models.samples.collect` accepts it; how it was read, where that
    was a choice, is in the `note` of its `Samples`.
    """
    path = Path(place)
    kind = kind_of(path)
    if is_named(str(place)) and kind == "nothing":
        _refuse_options(place, target, test)
        return call_loader(str(place))
    if is_table(path):
        table = load_table(path, target, test=test, test_fraction=test_fraction, seed=seed)
        return table.train, table.test
    _refuse_options(place, target, test)
    if path.suffix == ".npz":
        return load_npz(path)
    if kind != "directory" and (path.suffix or kind != "nothing"):
        reason = _REASONS.get(path.suffix.lower(), "is none of them")
        raise FileProblem(
            f"data are an .npz file, a directory of .npy or IDX files, a .csv or .tsv file, or "
            f"package.module:loader, and {path} {reason}"
        )
    folder = existing_folder(path)
    return load_npy_folder(folder) if holds_arrays(folder) else load_idx_folder(folder, channel)


_REASONS = {
    **dict.fromkeys((".pkl", ".pickle", ".joblib"), "is a pickle, which can run code"),
    **dict.fromkeys((".pt", ".pth"), "may be a pickle, which can run code"),
    ".npy": "is one array of at least two: give its directory",
}


def _refuse_options(place: str | Path, target: str | None, test: str | Path | None) -> None:
    if target is not None or test is not None:
        which = "a target column" if target is not None else "a second file"
        raise InvalidInput(f"{which} goes with a .csv or .tsv file, not with {place}")


def load_idx_folder(path: str | Path, channel: bool = True) -> tuple[Samples, Samples | None]:
    """Images in the layout of MNIST: pixels in [0, 1] `[n, 1, h, w]` and labels `[n]`.

    The files `train-images-idx3-ubyte`, `train-labels-idx1-ubyte`, `t10k-images-idx3-ubyte`
    and `t10k-labels-idx1-ubyte`, plain or gzipped, in the directory itself or in torchvision's
    `raw` below it. The last two may be missing together.

    Args:
        path: the directory.
        channel: whether a gray image has a dimension for its one channel, as torchvision's
            `ToTensor` gives it one.
    """
    folder = existing_folder(path)
    inner = (*sorted(folder.glob("raw")), *sorted(folder.glob("*/raw")))
    places = [p for p in (folder, *map(existing_folder, inner)) if _images(p, "train")]
    if not places:
        raise FileProblem(
            f"{folder} has neither x_train.npy and y_train.npy nor train-images-idx3-ubyte; for "
            "other layouts write a function that returns (train, test) and give its name, "
            "package.module:loader"
        )
    if len(places) > 1:
        raise InvalidInput(f"{folder} holds several data sets: {places[0]} and {places[1]}")
    train = _image_part(places[0], "train", channel)
    tests = [part for part in ("t10k", "test") if _images(places[0], part)]
    return train, _image_part(places[0], tests[0], channel) if tests else None


def _images(folder: Path, part: str) -> Path | None:
    return _idx_file(folder, f"{part}-images")


def _idx_file(folder: Path, name: str) -> Path | None:
    # the name as LeCun gave it, with the dot some copies have, or with a prefix as EMNIST has
    pattern = re.compile(rf"(?:\w+-)*{name}[-.]idx\d-ubyte(?:\.gz)?")
    found = [f for f in sorted(folder.iterdir()) if pattern.fullmatch(f.name)]
    stems = {f.name.removesuffix(".gz") for f in found}
    if len(stems) > 1:
        raise InvalidInput(f"{folder} holds several files {name}: {', '.join(sorted(stems))}")
    return found[0] if found else None


def _image_part(folder: Path, part: str, channel: bool) -> Samples:
    images, labels = _images(folder, part), _idx_file(folder, f"{part}-labels")
    if images is None or labels is None:
        raise FileProblem(f"{folder} has {part}-images but no {part}-labels")
    x: Tensor = read_idx(images)
    notes = []
    if not x.is_floating_point():
        x = x.float() / 255
        notes.append("pixels divided by 255")
    if channel and x.ndim == 3:
        x = x[:, None]
        notes.append("one channel")
    return Samples(x, read_idx(labels).long(), ", ".join(notes))


def call_loader(name: str) -> tuple[Data, Data | None]:
    """What `package.module:loader` returns when it is called: `(train, test)` or `train`.

    Each is `(x, y)`, a `Dataset` or a `DataLoader`; a pair of arrays is one `(x, y)`.
    """
    loader = named_object(name, "data", "loader")
    if not callable(loader):
        raise InvalidType(f"{name} is a {type(loader).__name__}, not a function")
    data = call_without_arguments(loader, name)
    if isinstance(data, tuple | list) and len(data) == 2 and (_is_set(data[1]) or data[1] is None):
        return data[0], data[1]
    return data, None


def _is_set(value: object) -> bool:
    """Whether something is a data set of its own rather than an array of targets."""
    pair = isinstance(value, tuple) and len(value) == 2 and hasattr(value[1], "shape")
    return pair or isinstance(value, Samples | Dataset | DataLoader)
