# labs
from .engine.registry import find_lab as find_lab
from .engine.registry import labs as labs
from .engine.registry import listed_labs as listed_labs
from .engine.run import run_lab as run_lab
from .engine.registry import lab as lab
from .engine.registry import Lab as Lab
from .engine.run import Run as Run

# many runs
from .engine.many import run_many as run_many
from .engine.seeds import run_seeds as run_seeds
from .engine.store import RunStore as RunStore

# what they cover
from .engine.coverage import coverage as coverage
from .engine.coverage import find_errata as find_errata
